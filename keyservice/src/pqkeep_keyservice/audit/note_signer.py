"""Signs checkpoints as notes too, for witnesses of transparency logs."""

from uuid import UUID

from cachetools import TTLCache
from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.audit.checkpoint_signer import CONTEXT, signed_text
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger import checkpoints, signed_notes
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Checkpoint, ListCheckpoints
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION

ALGORITHM = Algorithm.ML_DSA_65
"""The algorithm of the checkpoints in notes, and of the keys that note keys derive from."""
_MICROSECONDS = 1_000_000
KEPT, KEPT_SECONDS = 8, 3600.0
"""The number of kept notes, and their time."""


class NoteSigner:
    """Signs checkpoints as notes on request. It keeps the last notes."""

    def __init__(
        self, store: KeyStore, keys: KeyCache, material: KeyMaterial, origin: str | None
    ) -> None:
        """Take the log's name in the settings."""
        self._store = store
        self._keys = keys
        self._material = material
        self._origin = origin
        self._signed: TTLCache[bytes, str] = TTLCache(KEPT, KEPT_SECONDS)

    async def note(self, covering: int | None) -> str:
        """Return the newest checkpoint as a note, or the newest cosigned one with a record.

        Errors: RECORD_NOT_FOUND before the first checkpoint. UNAVAILABLE if its signature is not
        the log's: text planted in the database is not signed.
        """
        if covering is None:
            request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=ALGORITHM)
            listed = await self._store.database.query(checkpoints.list_checkpoints, request)
            found = listed[0] if listed else None
        else:
            log = await self._store.database.query(checkpoints.log_id)
            found = await self._store.database.query(
                checkpoints.find_checkpoint_to_prove, covering, log
            )
        if found is None:
            raise KeyServiceError(ErrorKind.RECORD_NOT_FOUND)
        name = self.origin(found.log_id)
        lines = (
            signed_notes.timestamped_line(cosignature.witness, cosignature.signature)
            for cosignature in found.cosignatures
            if cosignature.origin == name
        )
        return await self.signed(found) + "".join(lines)

    def origin(self, log_id: UUID) -> str:
        """Return the name of a log in notes."""
        return signed_notes.origin(log_id, self._origin)

    async def signed(self, checkpoint: Checkpoint) -> str:
        """Return a checkpoint as a note with the log's signature. Raises UNAVAILABLE."""
        note = self._signed.get(checkpoint.signature)
        if note is None:
            note = self._signed[checkpoint.signature] = await self._sign(checkpoint)
        return note

    async def verifier_key(self) -> str | None:
        """Return the public key of the log's notes, or None before the first checkpoint."""
        versions = await self._keys.get(KeyName(INSTALLATION, ALGORITHM))
        if versions.active is None:
            return None
        name = self.origin(await self._store.database.query(checkpoints.log_id))
        public_key = self._material.note_key(INSTALLATION, versions.active).public_bytes()
        return signed_notes.verifier_key(name, public_key)

    async def _sign(self, checkpoint: Checkpoint) -> str:
        versions = await self._keys.get(KeyName(INSTALLATION, ALGORITHM))
        try:
            entry = versions.entry(checkpoint.key_version)
            self._require_signature(checkpoint, entry)
            key = self._material.note_key(INSTALLATION, entry)
        except (KeyServiceError, InvalidSignature, DamagedKeyError):
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        name = self.origin(checkpoint.log_id)
        seconds = checkpoint.at_us // _MICROSECONDS
        size, root = checkpoint.size, checkpoint.root
        signature = key.sign(signed_notes.message(name, name, seconds, size, root))
        line = signed_notes.signature_line(name, key.public_bytes(), seconds, signature)
        return signed_notes.note(name, size, root, line)

    def _require_signature(self, checkpoint: Checkpoint, entry: KeyEntry) -> None:
        text = signed_text(checkpoint.log_id, checkpoint.size, checkpoint.root, checkpoint.at_us)
        public = self._material.verifying_key(INSTALLATION, entry)
        public.verify(checkpoint.signature, text, CONTEXT)

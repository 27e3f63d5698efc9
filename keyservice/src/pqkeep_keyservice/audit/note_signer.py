"""Signs the newest checkpoint as a note too, for witnesses of transparency logs."""

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.audit.checkpoint_signer import CONTEXT, signed_text
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger import checkpoints, signed_notes
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION

ALGORITHM = Algorithm.ML_DSA_65
"""The algorithm of the checkpoints in notes, and of the keys that note keys derive from."""
_MICROSECONDS = 1_000_000


class NoteSigner:
    """Signs each checkpoint at most once, on request, while it is the newest."""

    def __init__(self, store: KeyStore, keys: KeyCache, material: KeyMaterial) -> None:
        self._store = store
        self._keys = keys
        self._material = material
        self._newest: tuple[Checkpoint, str] | None = None

    async def note(self) -> str:
        """Return the newest checkpoint as a note.

        Errors: RECORD_NOT_FOUND before the first checkpoint. UNAVAILABLE if its signature is not
        the log's: text planted in the database is not signed.
        """
        newest = await self._store.database.query(checkpoints.find_newest_checkpoint, ALGORITHM)
        if newest is None:
            raise KeyServiceError(ErrorKind.RECORD_NOT_FOUND)
        if self._newest is None or self._newest[0] != newest:
            self._newest = newest, await self._signed(newest)
        return self._newest[1]

    async def verifier_key(self) -> str | None:
        """Return the public key of the log's notes, or None before the first checkpoint."""
        versions = await self._keys.get(KeyName(INSTALLATION, ALGORITHM))
        if versions.active is None:
            return None
        name = signed_notes.origin(await self._store.database.query(checkpoints.log_id))
        public_key = self._material.note_key(INSTALLATION, versions.active).public_bytes()
        return signed_notes.verifier_key(name, public_key)

    async def _signed(self, checkpoint: Checkpoint) -> str:
        versions = await self._keys.get(KeyName(INSTALLATION, ALGORITHM))
        try:
            entry = versions.entry(checkpoint.key_version)
            self._require_signature(checkpoint, entry)
            key = self._material.note_key(INSTALLATION, entry)
        except (KeyServiceError, InvalidSignature, DamagedKeyError):
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        name = signed_notes.origin(checkpoint.log_id)
        seconds = checkpoint.at_us // _MICROSECONDS
        size, root = checkpoint.size, checkpoint.root
        signature = key.sign(signed_notes.message(name, name, seconds, size, root))
        line = signed_notes.signature_line(name, key.public_bytes(), seconds, signature)
        return signed_notes.note(name, size, root, line)

    def _require_signature(self, checkpoint: Checkpoint, entry: KeyEntry) -> None:
        text = signed_text(checkpoint.log_id, checkpoint.size, checkpoint.root, checkpoint.at_us)
        public = self._material.verifying_key(INSTALLATION, entry)
        public.verify(checkpoint.signature, text, CONTEXT)

"""Local encryption with a client: its service has the keys, and sees none of the data."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from uuid import UUID

from pqkeep._transport import Transport
from pqkeep.compliance import Rules
from pqkeep.local import _decryption
from pqkeep.local._active import encapsulated_to, named
from pqkeep.local._encryption import encrypted, encrypted_for_service
from pqkeep.local._files import FilePath, save
from pqkeep.local._streams import Reader, Writer, write_all
from pqkeep.models import Ciphertext, Encapsulation
from pqkeep.resources.kem import Kem
from pqkeep.resources.keys import Keys


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Local:
    """Encryption and decryption here, with keys that stay in the service.

    Every method asks the service once: to encrypt for the active public key, to decrypt for the
    shared secret of one KEM ciphertext. Every method raises PqkeepError.
    """

    _kem: Kem[Transport]
    _keys: Keys[Transport]
    _rules: Rules

    def encrypt(self, plaintext: bytes, *, algorithm: str | None = None) -> bytes:
        """Encrypt data that is in memory, to the active key of an algorithm (``Kyber768``)."""
        return b"".join(encrypted(BytesIO(plaintext), self._encapsulate(algorithm)))

    def encrypt_stream(
        self, reader: Reader, writer: Writer, *, algorithm: str | None = None
    ) -> None:
        """Encrypt everything that a reader has. Neither is closed, nor is the writer flushed."""
        write_all(writer, encrypted(reader, self._encapsulate(algorithm)))

    def encrypt_file(
        self,
        source: FilePath,
        target: FilePath,
        *,
        algorithm: str | None = None,
        replace: bool = False,
    ) -> None:
        """Encrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        with Path(source).open("rb") as reader:
            save(target, encrypted(reader, self._encapsulate(algorithm)), replace=replace)

    def encrypt_for_service(
        self, plaintext: bytes, *, tenant_id: UUID | str, algorithm: str | None = None
    ) -> Ciphertext:
        """Encrypt at most 1,048,576 bytes as the service does, for ``client.kem.decrypt``.

        The tenant is the client's own. Raises ValueError too.
        """
        return encrypted_for_service(plaintext, tenant_id, self._encapsulate(algorithm))

    def decrypt(self, ciphertext: bytes) -> bytes:
        """Decrypt data that is in memory. Raises DecryptionError if it is not what was encrypted."""
        return _decryption.decrypt(ciphertext, decapsulate=self._kem.decapsulate)

    def decrypt_stream(self, reader: Reader, writer: Writer) -> None:
        """Decrypt everything that a reader has. Neither is closed, nor is the writer flushed.

        What is written was authenticated, and is how the data begins. That it is all of it is known
        when this returns, and not before: a writer must not act on what it got.
        """
        _decryption.decrypt_stream(reader, writer, decapsulate=self._kem.decapsulate)

    def decrypt_file(self, source: FilePath, target: FilePath, *, replace: bool = False) -> None:
        """Decrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        _decryption.decrypt_file(source, target, decapsulate=self._kem.decapsulate, replace=replace)

    def _encapsulate(self, algorithm: str | None) -> Encapsulation:
        chosen = named(self._rules, algorithm)
        return encapsulated_to(self._keys.active(chosen), chosen)

"""Local encryption with a client. The service has the private keys, and never sees the data."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from uuid import UUID

from pqkeep.compliance import Rules
from pqkeep.local._active import (
    allowed,
    as_recipient,
    asked,
    named,
    target_of,
)
from pqkeep.local._encryption import (
    decrypt,
    decrypt_file,
    decrypt_stream,
    encrypt_for_service,
    encrypted,
)
from pqkeep.local._header import DEFAULT_CAPACITY, Opened, open_header, read_header
from pqkeep.local._re_encryption import Change, change_file, changed_pieces
from pqkeep.local._recipients import Recipient
from pqkeep.local._streams import FilePath, Reader, Writer, save, write_all
from pqkeep.models import Ciphertext, Key
from pqkeep.new_files import changeable


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Local:
    """Encryption and decryption on this machine, with private keys that stay in the service.

    Encryption requests the active public key. Decryption requests the shared secret of each
    recipient's KEM ciphertext in turn, until one request succeeds. Re-encryption does both. Every
    method raises PqkeepError.
    """

    _decapsulate: Callable[..., bytes]
    """``client.kem.decapsulate``, or a function with the same result."""
    _active: Callable[..., Key]
    """``client.keys.active``, or a function with the same result."""
    _rules: Rules

    def encrypt(
        self,
        plaintext: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        recipients: Collection[Recipient] = (),
        capacity: int = 0,
    ) -> bytes:
        """Encrypt data in memory, to the active key of an algorithm (``Kyber768``).

        ``recipients`` can also decrypt it. ``capacity`` is the largest number of recipients. Raises
        ValueError too.
        """
        to = self._recipients(algorithm, keyring, recipients)
        return b"".join(encrypted(BytesIO(plaintext), to, capacity=capacity))

    def encrypt_stream(
        self,
        reader: Reader,
        writer: Writer,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        recipients: Collection[Recipient] = (),
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Encrypt all data of a reader. It does not close reader or writer, or flush the writer."""
        to = self._recipients(algorithm, keyring, recipients)
        write_all(writer, encrypted(reader, to, capacity=capacity))

    def encrypt_file(
        self,
        source: FilePath,
        target: FilePath,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        recipients: Collection[Recipient] = (),
        capacity: int = DEFAULT_CAPACITY,
        replace: bool = False,
    ) -> None:
        """Encrypt a file. The new file (mode 0600) appears when it is complete and on disk.

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        with Path(source).open("rb") as reader:
            to = self._recipients(algorithm, keyring, recipients)
            save(target, encrypted(reader, to, capacity=capacity), replace=replace)

    def encrypt_for_service(
        self,
        plaintext: bytes,
        *,
        tenant_id: UUID | str,
        algorithm: str | None = None,
        keyring: str | None = None,
        associated_data: bytes = b"",
    ) -> Ciphertext:
        """Encrypt at most 1,048,576 bytes in the service's format, for ``client.kem.decrypt``.

        The tenant is the client's own. Raises ValueError too.
        """
        (to,) = self._recipients(algorithm, keyring, ())
        return encrypt_for_service(
            plaintext, tenant_id=tenant_id, recipient=to, associated_data=associated_data
        )

    def decrypt(self, ciphertext: bytes) -> bytes:
        """Decrypt data in memory. Raises DecryptionError if it was changed."""
        return decrypt(ciphertext, decapsulate=self.decapsulate)

    def decrypt_stream(self, reader: Reader, writer: Writer) -> None:
        """Decrypt all data of a reader. It does not close reader or writer, or flush the writer.

        Every written byte is authenticated. The output is complete only when this returns, so do
        not use it before.
        """
        decrypt_stream(reader, writer, decapsulate=self.decapsulate)

    def decrypt_file(self, source: FilePath, target: FilePath, *, replace: bool = False) -> None:
        """Decrypt a file. The new file (mode 0600) appears when it is complete and on disk.

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        decrypt_file(source, target, decapsulate=self.decapsulate, replace=replace)

    def re_encrypt(
        self,
        ciphertext: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        to: Recipient | None = None,
        add: Collection[Recipient] = (),
        remove: Collection[bytes] = (),
        new_file_key: bool = False,
    ) -> bytes:
        """Return the data with other recipients. The arguments are those of ``re_encrypt_file``."""
        reader = BytesIO(ciphertext)
        header = read_header(reader)
        opened = open_header(header, self.decapsulate)
        change = self._change(
            opened,
            algorithm,
            keyring,
            Change(to=to, add=add, remove=remove, new_file_key=new_file_key),
        )
        return b"".join(changed_pieces(reader, header, opened, change))

    def re_encrypt_stream(
        self,
        reader: Reader,
        writer: Writer,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        to: Recipient | None = None,
        add: Collection[Recipient] = (),
        remove: Collection[bytes] = (),
        new_file_key: bool = False,
    ) -> None:
        """Copy encrypted data, with other recipients. It does not close or flush anything.

        Without a new file key, the segments are copied unchanged, and are not authenticated.
        """
        header = read_header(reader)
        opened = open_header(header, self.decapsulate)
        change = self._change(
            opened,
            algorithm,
            keyring,
            Change(to=to, add=add, remove=remove, new_file_key=new_file_key),
        )
        write_all(writer, changed_pieces(reader, header, opened, change))

    def re_encrypt_file(
        self,
        path: FilePath,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        to: Recipient | None = None,
        add: Collection[Recipient] = (),
        remove: Collection[bytes] = (),
        new_file_key: bool = False,
    ) -> bool:
        """Change the recipients of a file, in place. Return False if nothing had to change.

        By default, the active key replaces the key that opened the file. The new key has the same
        algorithm and keyring, unless they are named. ``to`` is a public key that replaces it
        instead. ``add`` are new recipients, and ``remove`` are fingerprints of recipients. With
        only these two, no key is replaced.

        Only the header is written. If it has no capacity left, a copy replaces the file. After an
        interruption, the file is either the old or the new one. Raises OSError and ValueError too,
        and BlockingIOError if another process changes the file.

        The file key stays the same, so this does not help against a broken KEM. With
        ``new_file_key``, the data is encrypted again, and a copy replaces the file. ``add`` then
        has the public keys of all other remaining recipients.
        """
        with changeable(path) as file:
            header = read_header(file)
            opened = open_header(header, self.decapsulate)
            change = self._change(
                opened,
                algorithm,
                keyring,
                Change(to=to, add=add, remove=remove, new_file_key=new_file_key),
            )
            return change_file(file, header, opened, change)

    def add_recipient(self, path: FilePath, recipient: Recipient) -> bool:
        """Let the owner of another public key decrypt a file. See ``re_encrypt_file``."""
        return self.re_encrypt_file(path, add=(recipient,))

    def remove_recipient(self, path: FilePath, fingerprint: bytes) -> bool:
        """Remove a recipient from a file's header. See ``re_encrypt_file``.

        The file key stays the same. A removed recipient may have kept it.
        """
        return self.re_encrypt_file(path, remove=(fingerprint,))

    def decapsulate(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str
    ) -> bytes:
        """Recover a shared secret, for the functions of ``pqkeep.local``."""
        return self._decapsulate(
            kem_ciphertext, key_version=key_version, algorithm=algorithm, keyring=asked(keyring)
        )

    def _recipients(
        self, algorithm: str | None, keyring: str | None, others: Collection[Recipient]
    ) -> tuple[Recipient, ...]:
        chosen = named(self._rules, algorithm)
        key = self._active(chosen, keyring=keyring)
        return (as_recipient(key, chosen, keyring), *allowed(self._rules, others))

    def _change(
        self, opened: Opened, algorithm: str | None, keyring: str | None, wanted: Change
    ) -> Change:
        target = target_of(self._rules, opened, algorithm, keyring, wanted)
        if target is None:
            return wanted
        key = self._active(target.algorithm, keyring=asked(target.keyring))
        return replace(wanted, to=as_recipient(key, *target))

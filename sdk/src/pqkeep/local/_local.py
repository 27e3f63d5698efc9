"""Local encryption with a client: its service has the keys, and sees none of the data."""

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
from pqkeep.local._rewriting import changeable
from pqkeep.local._streams import FilePath, Reader, Writer, save, write_all
from pqkeep.models import Ciphertext, Key


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Local:
    """Encryption and decryption here, with keys that stay in the service.

    To encrypt, the service is asked for the active public key; to decrypt, for the shared secret of
    a KEM ciphertext, once for each recipient until one is the client's own; to re-encrypt, for
    both. Every method raises PqkeepError.
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
        """Encrypt data that is in memory, to the active key of an algorithm (``Kyber768``).

        ``recipients`` can decrypt it too. ``capacity`` is the largest number of recipients.
        Raises ValueError too.
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
        """Encrypt everything that a reader has. Neither is closed, nor is the writer flushed."""
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
        """Encrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

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
        """Encrypt at most 1,048,576 bytes as the service does, for ``client.kem.decrypt``.

        The tenant is the client's own. Raises ValueError too.
        """
        (to,) = self._recipients(algorithm, keyring, ())
        return encrypt_for_service(
            plaintext, tenant_id=tenant_id, recipient=to, associated_data=associated_data
        )

    def decrypt(self, ciphertext: bytes) -> bytes:
        """Decrypt data that is in memory. Raises DecryptionError if it is not what was encrypted."""
        return decrypt(ciphertext, decapsulate=self.decapsulate)

    def decrypt_stream(self, reader: Reader, writer: Writer) -> None:
        """Decrypt everything that a reader has. Neither is closed, nor is the writer flushed.

        What is written was authenticated, and is how the data begins. That it is all of it is known
        when this returns, and not before: a writer must not act on what it got.
        """
        decrypt_stream(reader, writer, decapsulate=self.decapsulate)

    def decrypt_file(self, source: FilePath, target: FilePath, *, replace: bool = False) -> None:
        """Decrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

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
    ) -> bytes:
        """Return data with other recipients, as ``re_encrypt_file`` gives them to a file."""
        reader = BytesIO(ciphertext)
        header = read_header(reader)
        opened = open_header(header, self.decapsulate)
        change = self._change(opened, algorithm, keyring, Change(to=to, add=add, remove=remove))
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
    ) -> None:
        """Copy encrypted data, with other recipients. Neither is closed or flushed.

        The segments are copied as they are, and are not authenticated.
        """
        header = read_header(reader)
        opened = open_header(header, self.decapsulate)
        change = self._change(opened, algorithm, keyring, Change(to=to, add=add, remove=remove))
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
    ) -> bool:
        """Give a file other recipients, in place. Returns whether anything had to be changed.

        By itself the active key takes the place of the key that opened the file: the active one of
        the same algorithm and keyring, or of those that are named. With ``to`` another public key does. With
        ``add`` and ``remove`` alone nothing takes its place; they are new recipients, and the
        fingerprints of some that are there.

        Only the header is written, unless it has no room: then a copy takes the file's place.
        Whatever interrupts this, the file is what it was or what it is to be. Raises OSError and
        ValueError too, and BlockingIOError if another process is changing the file.
        """
        with changeable(path) as file:
            header = read_header(file)
            opened = open_header(header, self.decapsulate)
            change = self._change(opened, algorithm, keyring, Change(to=to, add=add, remove=remove))
            return change_file(file, header, opened, change)

    def add_recipient(self, path: FilePath, recipient: Recipient) -> bool:
        """Let the owner of one more key decrypt a file. See ``re_encrypt_file``."""
        return self.re_encrypt_file(path, add=(recipient,))

    def remove_recipient(self, path: FilePath, fingerprint: bytes) -> bool:
        """Take a recipient out of a file's header. See ``re_encrypt_file``.

        Whoever opened the file before may have kept the file key, which stays the same.
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

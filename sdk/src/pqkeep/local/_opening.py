"""Opens a header: asks for the shared secret of one recipient after the other.

Recipients may be keys of other people, whose secrets nobody here gets: those are skipped.
"""

from typing import NamedTuple, Protocol

from pqkeep.errors import (
    ComplianceError,
    DecryptionError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
)
from pqkeep.local._file_key import FileKey
from pqkeep.local._header import Header
from pqkeep.local._recipients import WrappedFileKey

SKIPPED = (ComplianceError, DecryptionError, NotFoundError, PermissionDeniedError)
"""What says of one recipient that its key cannot be used here, and nothing of the others."""


class Decapsulate(Protocol):
    """Recovers a shared secret.

    It raises NotFoundError or DecryptionError for a key that it has not: the next is tried then.
    """

    def __call__(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str
    ) -> bytes:
        """Return the shared secret (32 bytes)."""
        ...


class Opened(NamedTuple):
    """A file key, and whose key it was unwrapped with."""

    file_key: FileKey
    recipient: WrappedFileKey


def open_header(header: Header, decapsulate: Decapsulate) -> Opened:
    """Unwrap the file key. Raises DecryptionError, and what ``decapsulate`` does."""
    failures: list[PqkeepError] = []
    for recipient in header.recipients:
        try:
            shared_secret = decapsulate(recipient.kem_ciphertext, **recipient.key_name())
            return Opened(header.open(recipient, shared_secret), recipient)
        except SKIPPED as error:
            failures.append(error)
    raise refusal(failures)


def refusal(failures: list[PqkeepError]) -> PqkeepError:
    """Return what to raise where no recipient opened a header."""
    if len(failures) == 1 or len({type(failure) for failure in failures}) == 1:
        return failures[0]
    return DecryptionError(f"none of the {len(failures)} recipients' keys can be used here")

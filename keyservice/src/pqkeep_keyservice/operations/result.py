"""What an operation returns."""

from msgspec import Struct

from pqkeep_keyservice.keys.changes import KeyChange, KeyringChange
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyringName, KeyVersion
from pqkeep_protocol.messages import AnyResult


class RecordedError(KeyServiceError):
    """A refusal of which the record says more than the request does."""

    def __init__(
        self,
        kind: ErrorKind,
        *,
        keyring: KeyringName | None = None,
        version: KeyVersion | None = None,
        target: str | None = None,
    ) -> None:
        """Take what the record has: of a supplied key, or of a decryption."""
        super().__init__(kind)
        self.keyring = keyring
        self.version = version
        self.target = target


class OperationResult(Struct, frozen=True):
    """A result that may leave the key service once its record and its change are durable."""

    result: AnyResult
    version: KeyVersion | None
    change: KeyChange | KeyringChange | None = None
    target: str | None = None
    """Of a re-encryption: the key version that it encrypted to, as keyring/algorithm/version."""
    keyring: KeyringName | None = None
    """Of a supplied key that is the tenant's: where it is."""
    operation: Operation | None = None
    """What was done, where that is not what was asked for."""
    policy: str | None = None
    """What the record says in place of the policy that allowed the request."""

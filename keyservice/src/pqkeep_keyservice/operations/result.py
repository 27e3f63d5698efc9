"""What an operation returns."""

from msgspec import Struct

from pqkeep_keyservice.keys.changes import KeyChange, KeyringChange
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import AnyResult


class OperationResult(Struct, frozen=True):
    """A result that may leave the key service once its record and its change are durable."""

    result: AnyResult
    version: KeyVersion | None
    change: KeyChange | KeyringChange | None = None
    target: str | None = None
    """Of a re-encryption: the key version that it encrypted to, as keyring/algorithm/version."""

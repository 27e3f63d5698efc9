"""What an operation returns."""

from msgspec import Struct

from pqkeep_keyservice.keys.changes import KeyringChange
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import AnyResult


class OperationResult(Struct, frozen=True):
    """A result that may leave the key service once its record and its change are durable."""

    result: AnyResult
    version: KeyVersion | None
    change: KeyringChange | None = None

"""What an operation hands back to dispatch."""

from msgspec import Struct

from pqkeep_keyservice.storage.store import Change
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import AnyResult


class Done(Struct, frozen=True):
    """A result that may leave the key service once its record is durable."""

    result: AnyResult
    version: KeyVersion | None
    change: Change | None = None

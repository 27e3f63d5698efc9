"""Fields that name a shard."""

import re

from pqkeep_gateway.http.field import Field, text_field
from pqkeep_protocol.keys import DEFAULT_SHARD, SHARD_NAME

_is_shard_name = re.compile(SHARD_NAME).match


def shard_field(description: str) -> Field[str]:
    """Return a field of a shard's name."""
    return text_field(
        "shard",
        description,
        DEFAULT_SHARD,
        at_most=32,
        pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        is_valid=lambda text: _is_shard_name(text) is not None,
        must="must be 1 to 32 of a-z 0-9 and -, a letter or digit first and last",
    )

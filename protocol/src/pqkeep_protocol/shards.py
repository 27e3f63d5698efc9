"""Shards: each is a key service with its own database, keys and audit log, and has some tenants."""

from typing import Annotated, Final

from msgspec import Meta

SHARD_NAME = r"\A[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\Z"
"""The pattern of a shard's name: 1 to 32 characters."""

ShardName = Annotated[str, Meta(pattern=SHARD_NAME)]

DEFAULT_SHARD: Final = "default"
"""The shard that every installation has. It has the records of what concerns no tenant."""

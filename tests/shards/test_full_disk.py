"""A tenant's move while one of the two key services cannot write."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.shards.test_tenant_moves import moves, shard_of, tenant_of
from tests.shards.test_two_shards import is_readable, use

from pqkeep_server.shards import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shards.conftest import TwoShards


@contextmanager
def full_disk(two_shards: TwoShards, shard: str) -> Iterator[None]:
    """Limit a key service's file sizes, like a full disk."""
    pid = two_shards.services[shard].pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("full", [pytest.param("default", marks=pytest.mark.campaign), "b"])
def test_a_move_that_finds_a_full_disk(two_shards: TwoShards, full: str) -> None:
    """The command reports that it is unfinished. With free space, the tenant arrives in one shard."""
    if two_shards.is_on_server:
        pytest.skip("the server's disk is not the key service's")
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    with full_disk(two_shards, full), pytest.raises(ShardError) as said:
        moves(two_shards).move(tenant_of(tenant), "b")
    assert "\n" not in str(said.value)
    moves(two_shards).move(tenant_of(tenant), "b")
    assert is_readable(tenant, encrypted)
    assert shard_of(two_shards, tenant) == "b"
    assert [each.unfinished for each in moves(two_shards).list()] == [0, 0]
    with pytest.raises(ShardError, match="is already in the shard"):
        moves(two_shards).move(tenant_of(tenant), "b")

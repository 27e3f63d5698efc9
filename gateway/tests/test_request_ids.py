"""Identifiers for requests without one."""

from uuid import RFC_4122, UUID

from pqkeep_gateway.http.responses import new_request_id


def test_a_request_id_is_a_random_uuid() -> None:
    """Each identifier is a new UUID of version 4 in canonical form, with all bits random."""
    made = [new_request_id() for _ in range(2_000)]
    read = [UUID(item) for item in made]
    assert [str(item) for item in read] == made
    assert {(item.version, item.variant) for item in read} == {(4, RFC_4122)}
    assert len(set(read)) == len(read)
    ever_set = ever_clear = 0
    for item in read:
        ever_set |= item.int
        ever_clear |= ~item.int
    assert (ever_set & ever_clear & ((1 << 128) - 1)).bit_count() == 122

"""The identifiers of requests that bring none."""

from uuid import RFC_4122, UUID

from pqkeep_gateway.http.responses import new_request_id


def test_a_request_id_is_a_random_uuid() -> None:
    """Each is another UUID of version 4 in its canonical form, with all of its bits random."""
    made = [new_request_id() for _ in range(2_000)]
    read = [UUID(each) for each in made]
    assert [str(each) for each in read] == made
    assert {(each.version, each.variant) for each in read} == {(4, RFC_4122)}
    assert len(set(read)) == len(read)
    ever_set = ever_clear = 0
    for each in read:
        ever_set |= each.int
        ever_clear |= ~each.int
    assert (ever_set & ever_clear & ((1 << 128) - 1)).bit_count() == 122

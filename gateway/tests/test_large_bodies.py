"""Simultaneous large bodies do not block the event loop for long."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from gateway.tests.world import ATTRIBUTION
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.principals import AnonymousPrincipal
from pqkeep_gateway.api.batch import ItemCall
from pqkeep_gateway.api.errors import UNPROCESSABLE_FIELDS
from pqkeep_gateway.http.body import MAX_NESTED_ELEMENTS, JsonBody
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Question
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, invalid
from pqkeep_gateway.http.field import FieldError
from pqkeep_gateway.http.large_bodies import LARGE, LargeBodies, LargeBody
from pqkeep_protocol.algorithms import Operation

MANY = 16


async def _read(size: int, large_bodies: LargeBodies) -> Mapping[str, Any]:
    return await _parse(b'{"plaintext":"' + b"A" * (size - 16) + b'"}', large_bodies)


async def _parse(body: bytes, large_bodies: LargeBodies, *nested: str) -> Mapping[str, Any]:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()  # the client stays
        return messages.pop()

    large = LargeBody(large_bodies, lambda: None).sent_by("a tenant")
    try:
        rules = JsonBody(at_most=len(body), required=True, nested=frozenset(nested))
        return await rules.read(receive, {}, large)
    finally:
        large.end()


async def _order(size: int) -> str:
    """Return the order of events: B for a parsed body, t for a turn of another task."""
    order, large_bodies = "", LargeBodies()
    is_over = False

    async def read() -> None:
        nonlocal order
        await _read(size, large_bodies)
        order += "B"

    async def another() -> None:
        nonlocal order
        while not is_over:
            order += "t"
            await asyncio.sleep(0)

    others = asyncio.create_task(another())
    await asyncio.gather(*(read() for _ in range(MANY)))
    is_over = True
    await others
    return order


@pytest.mark.parametrize("size", [LARGE + 1, 4 * 1024 * 1024])
async def test_between_two_large_bodies_others_are_served(size: int) -> None:
    """Of 16 simultaneous bodies, one is parsed in each event-loop turn."""
    order = await _order(size)
    assert order.count("B") == MANY
    assert "BB" not in order


@pytest.mark.parametrize("nested", [b"[],", b"{},", b'{"":0},', b"[" * 14 + b"]" * 14 + b","])
async def test_arrays_and_objects_are_not_parsed(nested: bytes) -> None:
    """A value with thousands of arrays or objects is treated as an empty array, to save memory."""
    body = b'{"name":"text","field":[' + nested * (16_000 // len(nested)) + b"0]}"
    tracemalloc.start()
    assert await _parse(body, LargeBodies()) == {"name": "text", "field": []}
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * len(body)


async def test_members_that_may_be_nested_are_parsed_and_no_others() -> None:
    """Only fields of arrays or objects have elements; others are empty."""
    body = b'{"items":[{"to":{"algorithm":"X-Wing"}}],"other":[1,{"a":2}]}'
    expected = {"items": [{"to": {"algorithm": "X-Wing"}}], "other": []}
    assert await _parse(body, LargeBodies(), "items") == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[NaN]}',
        b'{"items":[{"a":"\\ud800"}]}',
    ],
)
async def test_what_is_no_json_at_any_depth_is_refused(body: bytes) -> None:
    """An invalid number or half a surrogate pair is refused at any depth."""
    with pytest.raises(ApiError, match="not a JSON object"):
        await _parse(body, LargeBodies(), "items")


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[{"a":1,"a":2}]}',
        b'{"items":[],"a":1,"a":2}',
        b'{"a":[],"a":[1]}',
        b'{"items":[{"to":{"a":1,"b":2,"a":3}}]}',
    ],
)
async def test_a_name_that_is_there_twice_is_refused_at_any_depth(body: bytes) -> None:
    """The error for a duplicate name in an object, also a nested one, names this field."""
    with pytest.raises(FieldError, match="a occurs twice") as refused:
        await _parse(body, LargeBodies(), "items", "a")
    assert refused.value.field == "a"


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2,"other":[]}',
        b'{"a":1,"other":{"b":[1]},"\\u0061":2}',
        b'{ "a" : [1] , "other" : [ 1, 2 ] , "a" : [] }',
    ],
)
async def test_a_nested_member_hides_no_name_that_is_there_twice(body: bytes) -> None:
    """A duplicate name is refused beside a nested member that no field reads."""
    with pytest.raises(FieldError, match="a occurs twice"):
        await _parse(body, LargeBodies(), "items", "a")


async def test_what_no_field_reads_is_not_parsed() -> None:
    """Nested members without a field become empty, with white space and escaped names, too."""
    expected = {"a": "x", "other": []}
    for body in (b'{"a":"x","other":[[1]]}', b'{ "a" : "x",\n"other" : [ [ 1 ] ] }'):
        assert await _parse(body, LargeBodies(), "items") == expected


@pytest.mark.parametrize("nest", [(b"[", b"", b"]"), (b'{"a":', b"1", b"}")])
async def test_the_deepest_nest_is_a_body_or_refused(nest: tuple[bytes, bytes, bytes]) -> None:
    """A deeply nested body is accepted or refused, depending on the version of Python."""
    opening, inside, closing = nest
    body = b'{"items":' + opening * 4000 + inside + closing * 4000 + b"}"
    try:
        assert (await _parse(body, LargeBodies(), "items")).keys() == {"items"}
    except ApiError as error:
        assert "not a JSON object" in str(error)  # noqa: PT017 - either is right


async def test_nested_members_have_a_bound() -> None:
    """A body with nested members may have a limited number of elements; one more is refused."""
    most = b'{"items":[' + b"0," * MAX_NESTED_ELEMENTS + b"0]}"
    assert len((await _parse(most, LargeBodies(), "items"))["items"]) == MAX_NESTED_ELEMENTS + 1
    with pytest.raises(ApiError, match="too many elements"):
        await _parse(most.replace(b"[", b"[0,"), LargeBodies(), "items")


@pytest.mark.parametrize("nest", [b"[" * 400 + b"]" * 400, b'{"a":' * 400 + b"1" + b"}" * 400])
async def test_the_depth_of_nested_members_counts(nest: bytes) -> None:
    """Many deep nests with few commas are refused before they are parsed."""
    body = b'{"items":[' + b",".join([nest] * 100) + b"]}"
    tracemalloc.start()
    with pytest.raises(ApiError, match="too many elements"):
        await _parse(body, LargeBodies(), "items")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * len(body)


async def test_small_bodies_do_not_wait() -> None:
    """Bodies up to 64 KiB are parsed at once."""
    assert "B" * MANY in await _order(LARGE)


async def test_who_gives_up_holds_nobody_up() -> None:
    """A request that ends while its body waits does not delay others."""
    large_bodies = LargeBodies()
    tasks = [asyncio.create_task(_read(LARGE + 1, large_bodies)) for _ in range(MANY)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, dict) for result in results] == [False, True] * (MANY // 2)


async def _answer(_: ApiCall) -> Data:
    raise AssertionError


def _refuse(_: ApiCall) -> Question:
    raise invalid("refused")


def test_nothing_is_left_of_a_refused_item() -> None:
    """The values of a refused item are freed with its batch, without the cycle collector."""
    endpoint = Endpoint(
        method="POST",
        path="/kem/encrypt",
        name="encrypt",
        recorded_as=Operation.ENCRYPT,
        handler=_answer,
        ask=_refuse,
        permission=Permission.VIEW_TENANT,
        example=None,
        field_codes=UNPROCESSABLE_FIELDS,
    )
    call = ApiCall(principal=AnonymousPrincipal(), attribution=ATTRIBUTION, values={})
    gc.disable()
    try:
        item = ItemCall(endpoint)
        item.begin(call, {}, {"name": "value"}, {"name"})
        assert isinstance(item.response, ApiError)
        del item
        assert not any(type(thing) is ItemCall for thing in gc.get_objects())
    finally:
        gc.enable()

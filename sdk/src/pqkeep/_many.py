"""Methods that combine many calls of another method into few requests.

Each item has the call and the result of a single call.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from pqkeep._call import Call
from pqkeep._data import Data
from pqkeep._operation import Operation, Resource
from pqkeep._response import warn_of_rule_in
from pqkeep._transport import Transport
from pqkeep.errors import OF_ITEMS, MalformedResponseError, PqkeepError

if TYPE_CHECKING:  # imports asyncio, which Client does not need
    from pqkeep._async_transport import AsyncTransport

P = ParamSpec("P")
R = TypeVar("R")

MAX_ITEMS = 128
MAX_BODY = 4 * 1024 * 1024
"""The most bytes of a request."""
_AROUND = 64
"""Bytes of a request without its items."""
_BETWEEN = b", "

Items = Iterable[Mapping[str, Any]]
"""The arguments of the calls, by name."""


_DOCSTRING = """Call the method without ``_many`` for many items, in few requests.

An item is a mapping of arguments by name. Further arguments apply to all items. Yields the results in
order. The result of a refused item is the exception of its single call. An error of a whole request
is raised.
"""


class Many(Generic[R]):
    """A method that makes one call for each item, and yields the results one by one."""

    def __init__(self, operation: Operation[P, R]) -> None:
        """Take the operation to repeat."""
        self._describe: Callable[..., Call[R]] = operation.describe
        self.__doc__ = _DOCSTRING

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the method's name."""
        self.__name__ = name

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self, resource: Resource[Transport], owner: type
    ) -> Callable[..., Iterator[R | PqkeepError]]: ...
    @overload
    def __get__(
        self, resource: "Resource[AsyncTransport]", owner: type
    ) -> Callable[..., AsyncIterator[R | PqkeepError]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        if resource is None:
            return self
        transport = resource._transport  # noqa: SLF001 - hidden from callers, not from here

        def method(items: Items, /, **common: Any) -> Any:
            return transport.many(
                batches(self._describe(resource, **common, **item) for item in items)
            )

        method.__name__, method.__doc__ = self.__name__, self.__doc__
        return method


def batches(calls: Iterable[Call[R]]) -> Iterator[Call[Sequence[R | PqkeepError]]]:
    """Combine calls of one operation into batches of at most 128 items and 4 MiB, in order."""
    waiting: list[tuple[Call[R], bytes]] = []
    size = 0
    for call in calls:
        item = json.dumps(_given(call)).encode()
        own = len(item) + len(_BETWEEN)
        if waiting and (len(waiting) == MAX_ITEMS or size + own > MAX_BODY - _AROUND):
            yield _batch(waiting)
            waiting, size = [], 0
        waiting.append((call, item))
        size += own
    if waiting:
        yield _batch(waiting)


def _batch(items: Sequence[tuple[Call[R], bytes]]) -> Call[Sequence[R | PqkeepError]]:
    calls = [call for call, _ in items]

    def read(data: Data) -> Sequence[R | PqkeepError]:
        results = data.objects("results")
        if len(results) != len(calls):
            raise MalformedResponseError(
                "the number of results differs from that of the items", field="results"
            )
        return [_result(call, result) for call, result in zip(calls, results, strict=True)]

    first = calls[0]
    content = b'{"items": [' + _BETWEEN.join(item for _, item in items) + b"]}"
    return Call(method=first.method, path=f"{first.path}/batch", read=read, content=content)


def _result(call: Call[R], result: Data) -> R | PqkeepError:
    if result.has("warning"):
        warn_of_rule_in(result.nested("warning"))
    if not result.has("error"):
        return call.result(result.nested("data"))
    error = result.nested("error")
    code = error.text("error_code")
    return OF_ITEMS.get(code, PqkeepError)(
        error.text("message"),
        error_code=code,
        field=error.text_or_none("field"),
        request_id=result.request_id,
    )


def _given(call: Call[Any]) -> dict[str, object]:
    """Return the fields of a body without those that have the value None."""
    return {name: value for name, value in (call.body or {}).items() if value is not None}

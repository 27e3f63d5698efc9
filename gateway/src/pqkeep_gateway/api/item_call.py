"""The call of one item of a batch: a handler that is run up to its question to the key service.

The handler is the single call's, unchanged. It gets a key service that hands each request to whoever
runs the handler, and waits; so many handlers' requests can be asked in one frame.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from msgspec import structs

from pqkeep_gateway.api.errors import answer_to
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, internal
from pqkeep_gateway.http.field import FieldError, Problem, sent_twice, text_field, unknown_field
from pqkeep_protocol.codec import RESULT_TYPE
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Attribution, R_co, Refused, Request, Result
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

REFERENCE = text_field(
    "reference",
    "Any text that tells this item from the others. It is given back with its result.",
    "invoice-17",
    at_most=128,
).optional()


_NO_FIELDS: Mapping[str, object] = MappingProxyType({})


class Question:
    """A request that a handler has for the key service. Whoever advances the handler answers it."""

    def __init__(self, request: Request[Any], attribution: Attribution) -> None:
        self.request = request
        self.attribution = attribution

    def __await__(self) -> Generator["Question", Any, Any]:
        return (yield self)


class Questions:
    """The key service as the handlers of a batch see it."""

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        """Ask whoever advances the handler."""
        answer: R_co = await Question(request, attribution)
        return answer


class ItemCall:
    """The call of one item, whose handler waits for the key service or has ended."""

    __slots__ = ("_endpoint", "_handler", "answer", "question", "reference", "values")

    def __init__(self, endpoint: Endpoint) -> None:
        """Take the endpoint of the single call."""
        self._endpoint = endpoint
        self._handler: Coroutine[Question, Any, Data] | None = None
        self.reference: str | None = None
        self.values = _NO_FIELDS
        """Its fields, and those that count for all items."""
        self.question: Question | None = None
        self.answer: Data | ApiError | None = None

    def begin(
        self, call: ApiCall, common: Mapping[str, object], item: object, known: AbstractSet[str]
    ) -> None:
        """Run the handler until it asks the key service, or ends.

        ``call`` is that of the whole batch, ``common`` the fields beside the items that are not
        null; ``known`` are the names of an item's fields.
        """
        try:
            self._read(common, item, known)
        except FieldError as error:
            self._fail(error)
            return
        of_item = structs.replace(call, values=self.values)
        self._handler = cast("Coroutine[Question, Any, Data]", self._endpoint.handler(of_item))
        self._advance(partial(self._handler.send, None))

    def _read(self, common: Mapping[str, object], item: object, known: AbstractSet[str]) -> None:
        """Take the item's reference and fields. Raises FieldError."""
        if not isinstance(item, dict):
            raise FieldError("items", Problem.MALFORMED, "an item must be an object")
        given = cast("dict[str, object]", item)
        if not given:
            self.values = common
            return
        self.reference = REFERENCE.read(given)
        if unknown := given.keys() - known:
            raise unknown_field(unknown, known)
        self.values = _merged(common, given)

    def go_on(self, result: Result) -> None:
        """Run the handler to its end, with what the key service has answered."""
        if self._handler is None or self.question is None:
            return
        if isinstance(result, Refused):
            self._advance(partial(self._handler.throw, KeyServiceError(result.kind)))
        elif isinstance(result, RESULT_TYPE[type(self.question.request)]):
            self._advance(partial(self._handler.send, result))
        else:
            self._advance(partial(self._handler.throw, KeyServiceError(ErrorKind.BAD_ANSWER)))

    def _fail(self, error: Exception) -> None:
        """End with an error."""
        if isinstance(error, ApiError):
            self.answer = error.without_frames()
            return
        self.answer = answer_to(error, self._endpoint, self.values)
        if self.answer is None:
            _LOG.error("an item of a batch failed", exc_info=error)
            self.answer = internal()

    def close(self) -> None:
        """End a handler that is still waiting, so that it wipes what it has to."""
        if self._handler is not None:
            self._handler.close()

    def _advance(self, step: Callable[[], Question]) -> None:
        try:
            self.question = step()
        except StopIteration as end:
            self.answer = end.value
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this item's alone
            self._fail(error)


def _merged(common: Mapping[str, object], item: Mapping[str, object]) -> Mapping[str, object]:
    """Return the fields of an item and those that count for all. Raises FieldError for one in both."""
    values = dict(common)
    for name, each in item.items():
        if each is None or name == REFERENCE.name:
            continue
        if name in values:
            raise sent_twice(name, ": in the item, and beside all items")
        values[name] = each
    return values

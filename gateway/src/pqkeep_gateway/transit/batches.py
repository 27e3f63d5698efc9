"""Requests with one item or with a batch of items, each with its own result or error."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar, cast

from pqkeep_gateway.http.endpoint import MAX_BODY, ApiCall, Document, Outcome, Warned
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import Field, FieldError, InvalidValueError
from pqkeep_gateway.transit.fields import integer
from pqkeep_gateway.transit.key_types import KeyType
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import MESSAGES, TransitError, noticed
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import MAX_KEY_VERSION
from pqkeep_protocol.rules import RuleNotice

T = TypeVar("T")
D = TypeVar("D", bound=Data)

PREFIX = "vault:v"
"""The beginning of a ciphertext, a signature or a MAC. The key version follows, a colon, base64."""
_PARTS = 3
_PARTIAL_STATUSES = frozenset(
    status for status in HTTPStatus if HTTPStatus.OK <= status < HTTPStatus.INTERNAL_SERVER_ERROR
) - {HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT, HTTPStatus.NOT_MODIFIED}
_MAX_DIGITS = len(str(MAX_KEY_VERSION))
_LINE_ENDS = str.maketrans("", "", "\r\n")
_bad_sign = re.compile(r"[^A-Za-z0-9+/]").search

REQUIRED = (
    "missing 'context' for key derivation; the key was created using a derived key, which means"
    " additional, per-request information must be included in order to perform operations with the"
    " key"
)
REFUSED = (
    "context is refused: this key is not derived, so the context would bind nothing; use"
    " associated_data, or a key that was created with derived"
)
NO_KEY = "encryption key not found"
Words = Mapping[ErrorKind, str]
"""Messages by the key service's reason."""
OF_ALL: Words = {
    **MESSAGES,
    ErrorKind.CONTEXT_REQUIRED: REQUIRED,
    ErrorKind.CONTEXT_REFUSED: REFUSED,
    ErrorKind.KEYRING_NOT_FOUND: NO_KEY,
}


def _items(value: object) -> Sequence[Mapping[str, object]]:
    if not isinstance(value, list):
        raise InvalidValueError("must be an array of objects")
    if not all(isinstance(item, dict) for item in cast("list[object]", value)):
        raise InvalidValueError("must be an array of objects")
    return cast("list[dict[str, object]]", value)


BATCH_INPUT: Field[Sequence[Mapping[str, object]] | None] = Field(
    name="batch_input",
    description="",
    schema={"type": "array", "maxLength": MAX_BODY},
    example=[],
    parse=_items,
).optional()
PARTIAL_FAILURE = integer("partial_failure_response_code")
BATCH: tuple[Field[Any], ...] = (BATCH_INPUT, PARTIAL_FAILURE)
REFERENCE = "reference"

Read = Callable[[Field[T]], T]


class Reader:
    """The fields of one item."""

    def __init__(self, values: Mapping[str, object]) -> None:
        """Take the values by field."""
        self._values = {name: value for name, value in values.items() if value is not None}

    def __getitem__(self, field: Field[T]) -> T:
        """Return a field's value. Raises FieldError."""
        return field.read(self._values)

    def binary(self, field: Field[str | None], before: str = "") -> str | None:
        """Return a field's base64, without line ends. ``before``: the start of the message.

        Raises FieldError and TransitError.
        """
        value = self[field]
        return None if value is None else checked_base64(value, before)


class Task(NamedTuple):
    """What is done with each item."""

    operation: str
    """The name of the API's endpoint for one item."""
    prepare: Callable[[Reader, KeyType], Mapping[str, object]]
    """Returns the fields of the API for an item. Raises FieldError and TransitError."""
    result: Callable[[Any], Mapping[str, object]]
    """Returns an item's result from the data of the API."""
    words: Words
    """Messages for refusals of the key service."""
    failed: Mapping[str, object] = {}
    """The members of a refused item, besides its error."""
    tells_failures: bool = False
    """Whether a refused item of a batch changes the status of the response."""


async def items_of(operations: Operations, call: ApiCall) -> Sequence[Reader]:
    """Return the items of a request's batch. Without a batch, the request is the only item.

    The rate limit counts each item once, before anything is done for it. Raises FieldError,
    TransitError for an empty batch, and the errors of ``Admission.count_items``.
    """
    batch = call[BATCH_INPUT]
    if batch is None:
        return (Reader(call.values),)
    if not batch:
        raise TransitError("missing batch input to process")
    await operations.admission.count_items(call.tenant, len(batch))
    return tuple(map(Reader, batch))


async def respond(
    operations: Operations, call: ApiCall, task: Task, key_type: KeyType, items: Sequence[Reader]
) -> Document | Warned:
    """Do a task with all items, and return the response. Raises ApiError."""
    outcomes: list[Outcome | None] = []
    asked: list[Mapping[str, object]] = []
    for item in items:
        try:
            asked.append(task.prepare(item, key_type))
        except TransitError as refusal:
            outcomes.append(refusal)
        except FieldError as refusal:
            outcomes.append(TransitError(refusal.message))
        else:
            outcomes.append(None)
    done = iter(await operations.run_items(task.operation, call, key_type, asked) if asked else ())
    done_items = [next(done) if outcome is None else outcome for outcome in outcomes]
    notices = [outcome.notice for outcome in done_items if isinstance(outcome, Warned)]
    results = [_unwrapped(outcome) for outcome in done_items]
    if call[BATCH_INPUT] is None:
        [only] = results
        if isinstance(only, ApiError):
            raise told(only, task.words)
        return noticed(call, task.result(only), notices)
    return _batch_response(call, task, results, notices)


def _unwrapped(outcome: Outcome) -> Data | ApiError:
    return cast("Data", outcome.response) if isinstance(outcome, Warned) else outcome


def _batch_response(
    call: ApiCall,
    task: Task,
    results: Sequence[Data | ApiError],
    notices: Sequence[RuleNotice],
) -> Document | Warned:
    references = [str(item.get(REFERENCE) or "") for item in call[BATCH_INPUT] or ()]
    shown = [
        {**task.failed, "error": _message(result, task.words), REFERENCE: reference}
        if isinstance(result, ApiError)
        else {**task.result(result), REFERENCE: reference}
        for result, reference in zip(results, references, strict=True)
    ]
    failures = sum(isinstance(result, ApiError) for result in results)
    status = int(HTTPStatus.OK)
    if task.tells_failures and failures:
        chosen = call[PARTIAL_FAILURE]
        status = HTTPStatus.BAD_REQUEST if failures == len(results) or not chosen else chosen
    return noticed(call, {"batch_results": shown}, notices, status=status)


def told(error: ApiError, words: Words) -> ApiError:
    """Return the error of an operation in the words of Vault, if it has some."""
    if isinstance(error, TransitError) or error.kind is None or error.kind not in words:
        return error
    return TransitError(words[error.kind], is_recorded=True)


def _message(error: ApiError, words: Words) -> str:
    shown = told(error, words)
    return "; ".join(shown.messages) if isinstance(shown, TransitError) else shown.message


def check_status(call: ApiCall) -> None:
    """Raise TransitError unless a result can have the given status for partial failures.

    Statuses of the server's own faults are left out: operators have alerts for them.
    """
    chosen = call[PARTIAL_FAILURE]
    if chosen and chosen not in _PARTIAL_STATUSES:
        raise TransitError(
            "partial_failure_response_code must be an HTTP status from 200 to 499 that has a body"
        )


def checked_base64(value: str, before: str = "") -> str:
    """Return base64 without line ends. Raises TransitError with the place of the first error."""
    text = value.translate(_LINE_ENDS)
    try:
        is_base64 = base64.b64encode(base64.b64decode(text, validate=True)).decode() == text
    except (binascii.Error, ValueError):
        is_base64 = False
    if not is_base64:
        bad = _bad_sign(text)
        place = bad.start() if bad else len(text)
        raise TransitError(f"{before}illegal base64 data at input byte {place // 4 * 4}")
    return text


def text_form(version: object, data: object) -> str:
    """Return a result as clients of Vault Transit store it."""
    if not isinstance(version, int) or not isinstance(data, str):
        raise TypeError("the result has no version")
    return f"{PREFIX}{version}:{data}"


def parts_of(text: str, what: str, *, verify: str = "") -> tuple[int, str]:
    """Return the key version and the base64 of a text. ``what``: the field's name, for messages.

    Raises TransitError.
    """
    if not text.startswith(PREFIX):
        raise TransitError(f"invalid {what}{verify}: no prefix")
    parts = text.split(":", _PARTS)
    if len(parts) != _PARTS:
        raise TransitError(f"invalid {what}: wrong number of fields")
    digits = parts[1].removeprefix("v")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if not is_number or digits.startswith("0") or int(digits) > MAX_KEY_VERSION:
        raise TransitError(f"invalid {what}: version number could not be decoded")
    try:
        checked_base64(parts[2])
    except TransitError:
        raise TransitError(f"invalid {what}: could not decode base64") from None
    return int(digits), parts[2].translate(_LINE_ENDS)

"""Batches: up to 128 calls of one operation in one request, with a result or error for each item.

The endpoint of the single call prepares each item's request and response. One frame carries all
items to the key service.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, UnsetType, defstruct, structs

from pqkeep_gateway.api import kem, key_operation, mac, re_encryption, signature
from pqkeep_gateway.api.errors import CHANGE_PLAN, answer_to, denied_by, error_for
from pqkeep_gateway.api.key_fields import KEYRING
from pqkeep_gateway.api.key_operation import (
    KeyAccess,
    KeyOperation,
    Steps,
    overwrite,
    require_campaign,
)
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.http.endpoint import (
    ApiCall,
    Endpoint,
    Outcome,
    Question,
    Response,
    Warned,
)
from pqkeep_gateway.http.envelope import Data, Fault, fault
from pqkeep_gateway.http.errors import ApiError, internal
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    object_schema,
    sent_twice,
    text_field,
    unknown_field,
)
from pqkeep_gateway.http.refusals import is_refusal, refusal_event
from pqkeep_gateway.http.text import Timestamp, base64_size, timestamp
from pqkeep_gateway.storage.campaigns import Campaign
from pqkeep_gateway.tenancy.quota import QuotaUsedUpError
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.codec import RESULT_TYPE
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import MAX_ITEMS, Batch, Item, ItemRequest, Refused, Result
from pqkeep_protocol.rules import RuleNotice, urgency
from pqkeep_protocol.startup.logs import logger

BATCHED = frozenset(
    {
        Operation.ENCRYPT,
        Operation.DECRYPT,
        Operation.ENCAPSULATE,
        Operation.DECAPSULATE,
        Operation.WRAP,
        Operation.UNWRAP,
        Operation.RE_ENCRYPT,
        Operation.SIGN,
        Operation.VERIFY,
        Operation.SIGN_HASH,
        Operation.VERIFY_HASH,
        Operation.SIGN_MU,
        Operation.VERIFY_MU,
        Operation.GENERATE_DATA_KEY,
        Operation.COMPUTE_MAC,
        Operation.VERIFY_MAC,
    }
)
"""The operations that a batch item can name: see ``messages.ItemRequest``."""
MAX_COMMON = 4096
"""Bytes of a field that may be outside the items: it is sent once and used for each item."""
ITEMS = "items"

New = Callable[..., Data]
"""A type created at run time, which type checkers do not know."""


_LOG = logger(__name__)
_NO_FIELDS: Mapping[str, object] = MappingProxyType({})
Ask = Callable[[ApiCall], Question | None]
Respond = Callable[[ApiCall, Question, object], Response]

REFERENCE = text_field(
    "reference",
    "Any text that identifies this item. Its result has the same text.",
    "invoice-17",
    at_most=128,
).optional()


class RuleWarning(Data, frozen=True, kw_only=True):
    """The rule of the tenant that will end an operation."""

    rule: Annotated[str, Meta(description="The rule's name.")]
    deprecation: Annotated[Timestamp, Meta(description="The time from which the rule warns.")]
    sunset: Annotated[
        Timestamp | UnsetType,
        Meta(description="The time from which the operation is denied to the caller."),
    ] = UNSET
    successor: Annotated[
        Algorithm | UnsetType, Meta(description="The algorithm to use instead.")
    ] = UNSET


class ItemCall:
    """The call of one item: its request to the key service, and its result or error."""

    __slots__ = ("_call", "_endpoint", "notice", "question", "reference", "response", "values")

    def __init__(self, endpoint: Endpoint) -> None:
        """Take the endpoint of the single call, which must have ``ask`` and ``answer``."""
        self._endpoint = endpoint
        self._call: ApiCall | None = None
        self.reference: str | None = None
        self.values = _NO_FIELDS
        """The item's fields, and the fields that apply to all items."""
        self.question: Question | None = None
        self.response: Data | ApiError | None = None
        self.notice: RuleNotice | None = None

    def begin(
        self, call: ApiCall, common: Mapping[str, object], item: object, known: AbstractSet[str]
    ) -> None:
        """Prepare the request to the key service, or the item's error.

        ``call`` is the whole batch's call, ``common`` the fields outside the items that are not
        null, and ``known`` the names of an item's fields.
        """
        try:
            self._read(common, item, known)
            self._call = structs.replace(call, values=self.values)
            self.question = cast("Ask", self._endpoint.ask)(self._call)
        except Exception as error:  # noqa: BLE001 - an error of this item only
            self._fail(error)

    def _read(self, common: Mapping[str, object], item: object, known: AbstractSet[str]) -> None:
        """Read the item's reference and fields. Raises FieldError."""
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

    def check(self, campaigns: Mapping[str, Campaign]) -> None:
        """Make an item with a wrong campaign fail. See ``key_operation.require_campaign``."""
        if self.question is None:
            return
        try:
            require_campaign(self.question.request, campaigns)
        except Exception as error:  # noqa: BLE001 - an error of this item only
            self.close()
            self.question = None
            self._fail(error)

    def end(self, result: Result) -> None:
        """Convert the key service's result to the item's result."""
        if self.question is None or self._call is None:
            return
        outcome: Result | KeyServiceError = result
        if isinstance(result, Refused):
            outcome = KeyServiceError(result.kind, result.notice)
        elif not isinstance(result, RESULT_TYPE[type(self.question.request)]):
            outcome = KeyServiceError(ErrorKind.BAD_RESPONSE)
        try:
            response = cast("Respond", self._endpoint.response)(self._call, self.question, outcome)
        except Exception as error:  # noqa: BLE001 - an error of this item only
            self._fail(error)
        else:
            if isinstance(response, Warned):
                self.notice = response.notice
                response = response.response
            self.response = cast("Data", response)

    def close(self) -> None:
        """Overwrite secrets in memory, even if there is no result."""
        if self.question is not None:
            overwrite(self.question.request)

    def _fail(self, error: Exception) -> None:
        """Store an error as the item's result."""
        if isinstance(error, ApiError):
            self.response = error.without_frames()
            return
        self.response = answer_to(error, self._endpoint, self.values)
        if self.response is None:
            _LOG.error("an item of a batch failed", exc_info=error)
            self.response = internal()


def endpoint(row: KeyOperation, access: KeyAccess, audit_delivery: AuditDelivery) -> Endpoint:
    """Return the batch endpoint of an operation."""
    single = replace(key_operation.endpoint(row, access), ask=Steps(row, access).ask_uncounted)
    items = _items_field(single)
    item_type, response_type = _types(row)
    known = dict.fromkeys([*(field.name for field in single.fields), REFERENCE.name]).keys()

    def begin(call: ApiCall, common: Mapping[str, object], item: object) -> ItemCall:
        begun = ItemCall(single)
        begun.begin(call, common, item, known)
        return begun

    async def run(call: ApiCall) -> Sequence[ItemCall]:
        common = {
            name: value
            for name, value in call.values.items()
            if name != ITEMS and value is not None
        }
        calls = [begin(call, common, item) for item in call[items]]
        try:
            requests = [done.question.request for done in calls if done.question is not None]
            campaigns = await access.campaigns_of(call.tenant.tenant, requests)
            for item_call in calls:
                item_call.check(campaigns)
            waiting = [item_call for item_call in calls if item_call.question is not None]
            await _record_refusals(audit_delivery, single, call, calls)
            if waiting:
                await access.quotas.spend_many(
                    call.tenant, row.operation, len(waiting), partial(_ask, access, call, waiting)
                )
        except QuotaUsedUpError:
            hint = f"it does not have {len(waiting)} operations left; {CHANGE_PLAN}"
            raise denied_by("monthly-allowance", _algorithm(waiting), hint) from None
        except KeyServiceError as refusal:
            raise error_for(row.operation, refusal) from None
        finally:
            for item_call in calls:
                item_call.close()
        return calls

    async def handler(call: ApiCall) -> Data | Warned:
        calls = await run(call)
        response = response_type(results=[_result(item_type, done) for done in calls])
        notices = [done.notice for done in calls if done.notice is not None]
        return Warned(response, min(notices, key=urgency)) if notices else response

    async def outcomes(call: ApiCall) -> Sequence[Outcome]:
        return [_outcome(done) for done in await run(call)]

    handler.__doc__ = _DESCRIPTION.format(name=row.name, most=MAX_ITEMS)
    return replace(
        single,
        path=f"{row.path}/batch",
        name=f"{row.name}_batch",
        handler=handler,
        example=response_type(results=[item_type(reference=REFERENCE.example, data=row.example)]),
        fields=(items, *map(_common, filter(_may_be_common, single.fields))),
        items=items,
        outcomes=outcomes,
        keyring_of=KEYRING.read,
    )


def endpoints(access: KeyAccess, audit_delivery: AuditDelivery) -> tuple[Endpoint, ...]:
    """Return the endpoints of all batches."""
    rows = (*kem.OPERATIONS, re_encryption.OPERATION, *signature.OPERATIONS, *mac.OPERATIONS)
    return tuple(
        endpoint(row, access, audit_delivery)
        for row in rows
        if row.operation in BATCHED and row.path not in kem.SHORT_PATHS
    )


_DESCRIPTION = """Do what `{name}` does, for up to {most} items at once.

The results have the order of the items. Each contains the item's `reference`, and `data` or `error`
as in the response of `{name}`, and `warning` if a rule will end the operation. A refused item does not affect the others. A field beside `items`
applies to all items, and must not be in an item too. Each item counts as a request against the rate
limit and the monthly quota. If they do not have room for all items, nothing is done."""


async def _ask(access: KeyAccess, call: ApiCall, waiting: Sequence[ItemCall]) -> tuple[None, int]:
    """Send all items in one request; return the number of successful items."""
    questions = [pending.question for pending in waiting if pending.question is not None]
    batch = Batch(
        tenant=call.tenant.tenant,
        items=tuple(
            Item(cast("ItemRequest", question.request), question.attribution.policy)
            for question in questions
        ),
    )
    placement = call.tenant.placement
    results = (await access.keys.execute(batch, call.attribution, placement)).results
    if len(results) != len(waiting):
        raise KeyServiceError(ErrorKind.BAD_RESPONSE)
    for pending, result in zip(waiting, results, strict=True):
        pending.end(result)
    return None, sum(isinstance(pending.response, Data) for pending in waiting)


async def _record_refusals(
    audit_delivery: AuditDelivery, single: Endpoint, call: ApiCall, calls: Sequence[ItemCall]
) -> None:
    """Record each item that the gateway refused, as for a single call."""
    refusals = [
        refusal_event(
            item_call.response, single, call.principal, item_call.values, call.attribution
        )
        for item_call in calls
        if isinstance(item_call.response, ApiError) and is_refusal(item_call.response)
    ]
    if refusals:
        await audit_delivery.record(*refusals, placement=call.principal.placement)


def _result(item_type: New, call: ItemCall) -> Data:
    reference = UNSET if call.reference is None else call.reference
    if isinstance(call.response, Data):
        warning = UNSET if call.notice is None else warning_of(call.notice)
        return item_type(reference=reference, data=call.response, warning=warning)
    return item_type(reference=reference, error=fault(call.response or internal()))


def _outcome(call: ItemCall) -> Outcome:
    response = call.response or internal()
    if call.notice is None or isinstance(response, ApiError):
        return response
    return Warned(response, call.notice)


def warning_of(notice: RuleNotice) -> RuleWarning:
    """Return the warning of an item."""
    return RuleWarning(
        rule=notice.rule,
        deprecation=timestamp(notice.deprecation),
        sunset=UNSET if notice.sunset is None else timestamp(notice.sunset),
        successor=notice.successor or UNSET,
    )


def _algorithm(calls: Sequence[ItemCall]) -> str | None:
    """Return the algorithm of these calls; None if they differ."""
    found = {
        getattr(item_call.question and item_call.question.request, "algorithm", None)
        for item_call in calls
    }
    return found.pop() if len(found) == 1 else None


def _items_field(single: Endpoint) -> Field[Sequence[object]]:
    message = f"must be an array of 1 to {MAX_ITEMS} objects"

    def parse(value: object) -> Sequence[object]:
        if not (isinstance(value, list) and 1 <= len(value) <= MAX_ITEMS):
            raise InvalidValueError(message)
        return cast("Sequence[object]", value)

    required = {field.name: field.example for field in single.fields if field.required}
    return Field(
        name=ITEMS,
        description=f"1 to {MAX_ITEMS} objects with the fields of {single.name}, in any order.",
        schema={
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_ITEMS,
            "items": object_schema((*single.fields, REFERENCE)),
        },
        example=[{REFERENCE.name: REFERENCE.example, **required}],
        parse=parse,
    )


def _may_be_common(field: Field[Any]) -> bool:
    return int(str(field.schema.get("maxLength", 0))) <= base64_size(MAX_COMMON)


def _common(field: Field[Any]) -> Field[Any]:
    """Return a field that may apply to all items."""
    schema = {name: value for name, value in field.schema.items() if name != "default"}
    described = f"{field.description} Applies to all items, which then must not have it."
    return replace(field, required=False, default=None, schema=schema, description=described)


def _types(row: KeyOperation) -> tuple[New, New]:
    """Return the types of one result and of the whole response."""
    name = "".join(map(str.capitalize, row.name.split("_")))
    item = defstruct(
        f"{name}Item",
        [
            (
                "reference",
                Annotated[str, Meta(description="The item's reference.")] | UnsetType,
                UNSET,
            ),
            ("data", type(row.example) | UnsetType, UNSET),
            ("error", Fault | UnsetType, UNSET),
            ("warning", RuleWarning | UnsetType, UNSET),
        ],
        bases=(Data,),
        namespace={"__doc__": f"The result of one item: the data of {row.name}, or an error."},
        frozen=True,
        kw_only=True,
    )
    response = defstruct(
        f"{name}Batch",
        [("results", list[item])],  # type: ignore[valid-type]  # created at run time
        bases=(Data,),
        namespace={"__doc__": "The results, in the order of the items."},
        frozen=True,
        kw_only=True,
    )
    return cast("New", item), cast("New", response)


def _merged(common: Mapping[str, object], item: Mapping[str, object]) -> Mapping[str, object]:
    """Return an item's fields with the common fields. Raises FieldError for a field in both."""
    values = dict(common)
    for name, value in item.items():
        if value is None or name == REFERENCE.name:
            continue
        if name in values:
            raise sent_twice(name, ": in the item and outside the items")
        values[name] = value
    return values

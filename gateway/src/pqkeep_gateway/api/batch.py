"""Batches: up to 128 calls of one operation in one request, each with its own result or error.

Each item goes through the whole endpoint of the single call, up to where that asks the key service.
There it waits, until one frame has asked for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, UnsetType, defstruct

from pqkeep_gateway.access.allowance import AllowanceUsedUpError, Uncounted
from pqkeep_gateway.api import kem, key_operation, re_encryption, signature
from pqkeep_gateway.api.errors import CHANGE_PLAN, denied_by, error_for
from pqkeep_gateway.api.item_call import REFERENCE, ItemCall, Questions
from pqkeep_gateway.api.key_fields import KEYRING
from pqkeep_gateway.api.key_operation import KeyAccess, KeyOperation
from pqkeep_gateway.audit_events import AuditDelivery
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data, Fault, fault
from pqkeep_gateway.http.errors import ApiError, internal
from pqkeep_gateway.http.field import Field, InvalidValueError, object_schema
from pqkeep_gateway.http.refusals import is_refusal, refusal_event
from pqkeep_gateway.http.text import base64_size
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import MAX_ITEMS, Batch, Item, ItemRequest

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
    }
)
"""The operations whose requests can be items of a batch: see ``messages.ItemRequest``."""
MAX_COMMON = 4096
"""Bytes of a field that may stand beside the items: it is sent once, and used for each."""
ITEMS = "items"

New = Callable[..., Data]
"""A type that is made here, of which checkers of types know nothing."""


def endpoint(row: KeyOperation, access: KeyAccess, audit_delivery: AuditDelivery) -> Endpoint:
    """Return the endpoint that does up to 128 times at once what a row does."""
    of_items = replace(access, keys=Questions(), allowances=Uncounted())
    single = key_operation.endpoint(row, of_items)
    items = _items_field(single)
    item_type, answer_type = _types(row)
    known = dict.fromkeys([*(each.name for each in single.fields), REFERENCE.name]).keys()

    def begin(call: ApiCall, common: Mapping[str, object], item: object) -> ItemCall:
        begun = ItemCall(single)
        begun.begin(call, common, item, known)
        return begun

    async def handler(call: ApiCall) -> Data:
        common = {
            name: each for name, each in call.values.items() if name != ITEMS and each is not None
        }
        calls = [begin(call, common, item) for item in call[items]]
        waiting = [each for each in calls if each.question is not None]
        try:
            await _record_refusals(audit_delivery, single, call, calls)
            if waiting:
                await access.allowances.spend_many(
                    call.tenant, row.operation, len(waiting), partial(_ask, access, call, waiting)
                )
        except AllowanceUsedUpError:
            hint = f"it does not have {len(waiting)} operations left; {CHANGE_PLAN}"
            raise denied_by("monthly-allowance", _algorithm(waiting), hint) from None
        except KeyServiceError as refusal:
            raise error_for(row.operation, refusal.kind) from None
        finally:
            for each in calls:
                each.close()
        return answer_type(results=[_result(item_type, each) for each in calls])

    handler.__doc__ = _DESCRIPTION.format(name=row.name, most=MAX_ITEMS)
    return replace(
        single,
        path=f"{row.path}/batch",
        name=f"{row.name}_batch",
        handler=handler,
        example=answer_type(results=[item_type(reference=REFERENCE.example, data=row.example)]),
        fields=(items, *map(_common, filter(_may_be_common, single.fields))),
        items=items,
        keyring_of=KEYRING.read,
    )


def endpoints(access: KeyAccess, audit_delivery: AuditDelivery) -> tuple[Endpoint, ...]:
    """Return the endpoints of all batches."""
    rows = (*kem.OPERATIONS, re_encryption.OPERATION, *signature.OPERATIONS)
    return tuple(
        endpoint(row, access, audit_delivery)
        for row in rows
        if row.operation in BATCHED and row.path not in kem.SHORT_PATHS
    )


_DESCRIPTION = """Do what `{name}` does, for up to {most} items at once.

The results are in the items' order; each has the item's `reference`, and `data` or `error`, as
`{name}` answers. An item that is refused leaves the others as they are. A field beside `items`
counts for all of them, and may not be in one of them too. Each item counts as a request, against
the rate limit and the month's allowance: if not all of them fit, nothing is done."""


async def _ask(access: KeyAccess, call: ApiCall, waiting: Sequence[ItemCall]) -> tuple[None, int]:
    """Have all questions answered at once; return how many items succeeded."""
    questions = [each.question for each in waiting if each.question is not None]
    batch = Batch(
        tenant=call.tenant.tenant,
        items=tuple(
            Item(cast("ItemRequest", each.request), each.attribution.policy) for each in questions
        ),
    )
    results = (await access.keys.execute(batch, call.attribution)).results
    if len(results) != len(waiting):
        raise KeyServiceError(ErrorKind.BAD_ANSWER)
    for each, result in zip(waiting, results, strict=True):
        each.go_on(result)
    return None, sum(isinstance(each.answer, Data) for each in waiting)


async def _record_refusals(
    audit_delivery: AuditDelivery, single: Endpoint, call: ApiCall, calls: Sequence[ItemCall]
) -> None:
    """Record each item that was refused here, as the request would be whose only one it was."""
    refusals = [
        refusal_event(each.answer, single, call.principal, each.values, call.attribution)
        for each in calls
        if isinstance(each.answer, ApiError) and is_refusal(each.answer)
    ]
    if refusals:
        await audit_delivery.record(*refusals)


def _result(item_type: New, call: ItemCall) -> Data:
    reference = UNSET if call.reference is None else call.reference
    if isinstance(call.answer, Data):
        return item_type(reference=reference, data=call.answer)
    return item_type(reference=reference, error=fault(call.answer or internal()))


def _algorithm(calls: Sequence[ItemCall]) -> str | None:
    """Return the algorithm of all these calls, if they have the same."""
    found = {getattr(each.question and each.question.request, "algorithm", None) for each in calls}
    return found.pop() if len(found) == 1 else None


def _items_field(single: Endpoint) -> Field[Sequence[object]]:
    message = f"must be an array of 1 to {MAX_ITEMS} objects"

    def parse(value: object) -> Sequence[object]:
        if not (isinstance(value, list) and 1 <= len(value) <= MAX_ITEMS):
            raise InvalidValueError(message)
        return cast("Sequence[object]", value)

    required = {each.name: each.example for each in single.fields if each.required}
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
    """Return a field as one that may count for all items."""
    schema = {name: each for name, each in field.schema.items() if name != "default"}
    described = f"{field.description} For all items, none of which has it then."
    return replace(field, required=False, default=None, schema=schema, description=described)


def _types(row: KeyOperation) -> tuple[New, New]:
    """Return the types of one result, and of the answer that has all of them."""
    name = "".join(map(str.capitalize, row.name.split("_")))
    item = defstruct(
        f"{name}Item",
        [
            ("reference", Annotated[str, Meta(description="The item's.")] | UnsetType, UNSET),
            ("data", type(row.example) | UnsetType, UNSET),
            ("error", Fault | UnsetType, UNSET),
        ],
        bases=(Data,),
        namespace={"__doc__": f"What became of one item: what {row.name} answers, or an error."},
        frozen=True,
        kw_only=True,
    )
    answer = defstruct(
        f"{name}Batch",
        [("results", list[item])],  # type: ignore[valid-type]  # it is made here
        bases=(Data,),
        namespace={"__doc__": "A result for each item, in their order."},
        frozen=True,
        kw_only=True,
    )
    return cast("New", item), cast("New", answer)

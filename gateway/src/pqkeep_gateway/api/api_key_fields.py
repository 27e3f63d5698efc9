"""The fields that limit an API key: a name, scopes, an expiry, addresses."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar, cast

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.api_key_limits import ApiKeyLimits, BeyondOwnLimitsError
from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.scopes import (
    ALL,
    GRANTED_WITHOUT_SCOPES,
    OPERATIONS,
    Group,
    Scope,
    Scopes,
)
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    boolean_field,
    hint,
    text_field,
    time_field,
)
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import DEFAULT_KEYRING, TenantId
from pqkeep_protocol.messages import ListKeyrings

T = TypeVar("T")

MAX_NAME = 64
MAX_SCOPES = 8
MAX_OPERATIONS = 32
MAX_KEYRINGS = 16
MAX_ADDRESSES = 32
MAX_NETWORK_TEXT = 64
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_KEYRING = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}\*|\*"
_is_name = re.compile(_NAME).fullmatch
_is_keyring = re.compile(_KEYRING).fullmatch
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, tzinfo=UTC)

_OPERATION_NAMES = (ALL, *(group.value for group in Group), *OPERATIONS)
_ALGORITHMS: Mapping[object, Algorithm] = {algorithm.value: algorithm for algorithm in Algorithm}


class ScopeData(Data, frozen=True, kw_only=True):
    """Permissions of an API key. An omitted list means all."""

    operations: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(description="Names of operations and groups; see docs/api.md."),
    ] = UNSET
    keyrings: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(description="Names of keyrings, or prefixes followed by `*`."),
    ] = UNSET
    algorithms: tuple[Algorithm, ...] | UnsetType = UNSET


def _list_of(
    values: object, parse: Callable[[object], T], at_most: int, message: str
) -> tuple[T, ...]:
    """Return the parsed members of a list with 1 to at_most members. Raises InvalidValueError."""
    if not isinstance(values, list) or not 0 < len(values) <= at_most:
        raise InvalidValueError(message)
    return tuple(parse(value) for value in cast("list[object]", values))


_EACH_SCOPE = (
    f"must be a list of 1 to {MAX_SCOPES} scopes: objects with no other fields than operations,"
    " keyrings and algorithms"
)
_EACH_OPERATION = f"must have lists of 1 to {MAX_OPERATIONS} names of operations or groups"
_EACH_KEYRING = (
    f"must have lists of 1 to {MAX_KEYRINGS} names of keyrings, or prefixes followed by *"
)
_EACH_ALGORITHM = "must have lists of algorithms: " + ", ".join(Algorithm)
_EACH_ADDRESS = (
    f"must be a list of 1 to {MAX_ADDRESSES} networks such as 192.0.2.0/24 or 2001:db8::/32"
)


def _operation(value: object) -> str:
    if not isinstance(value, str) or value not in _OPERATION_NAMES:
        raise InvalidValueError(_EACH_OPERATION + hint(value, _OPERATION_NAMES))
    return value


def _keyring(value: object) -> str:
    if not isinstance(value, str) or not _is_keyring(value):
        raise InvalidValueError(_EACH_KEYRING)
    return value


def _algorithm(value: object) -> Algorithm:
    found = _ALGORITHMS.get(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidValueError(_EACH_ALGORITHM)
    return found


def _scope(value: object) -> Scope:
    if not isinstance(value, dict):
        raise InvalidValueError(_EACH_SCOPE)
    stated = cast("dict[str, object]", value)
    if not stated.keys() <= {"operations", "keyrings", "algorithms"}:
        raise InvalidValueError(_EACH_SCOPE)

    def stated_list(
        name: str, parse: Callable[[object], T], at_most: int, message: str
    ) -> tuple[T, ...] | None:
        values = stated.get(name)
        return None if values is None else _list_of(values, parse, at_most, message)

    return Scope(
        operations=stated_list("operations", _operation, MAX_OPERATIONS, _EACH_OPERATION),
        keyrings=stated_list("keyrings", _keyring, MAX_KEYRINGS, _EACH_KEYRING),
        algorithms=stated_list("algorithms", _algorithm, len(Algorithm), _EACH_ALGORITHM),
    )


def _scopes(value: object) -> Scopes:
    return Scopes(_list_of(value, _scope, MAX_SCOPES, _EACH_SCOPE))


def _network(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_NETWORK_TEXT:
        raise InvalidValueError(_EACH_ADDRESS)
    return value


def _addresses(value: object) -> Networks:
    try:
        return Networks(_list_of(value, _network, MAX_ADDRESSES, _EACH_ADDRESS))
    except ValueError:
        raise InvalidValueError(_EACH_ADDRESS) from None


def _schema_of(items: Mapping[str, object], at_most: int) -> dict[str, object]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": at_most}


def _one_of(names: Iterable[str]) -> dict[str, object]:
    return {"type": "string", "enum": list(names)}


def _or_null(schema: Mapping[str, object]) -> dict[str, object]:
    return {"anyOf": [schema, {"type": "null"}]}


_SCOPE_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "operations": _or_null(_schema_of(_one_of(_OPERATION_NAMES), MAX_OPERATIONS)),
        "keyrings": _or_null(
            _schema_of({"type": "string", "pattern": f"^({_KEYRING})$"}, MAX_KEYRINGS)
        ),
        "algorithms": _or_null(_schema_of(_one_of(Algorithm), len(Algorithm))),
    },
    "additionalProperties": False,
}

NAME = text_field(
    "name",
    "Your name for the API key. The audit log shows it.",
    "payments-worker",
    at_most=MAX_NAME,
    pattern=f"^{_NAME}$",
    is_valid=lambda text: _is_name(text) is not None,
    must=f"must be 1 to {MAX_NAME} of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit",
).optional()
REQUIRED_SCOPES = Field(
    name="scopes",
    description="Permissions of the API key.",
    schema=_schema_of(_SCOPE_SCHEMA, MAX_SCOPES),
    example=[{"operations": ["use"], "keyrings": ["payments.*"]}],
    parse=_scopes,
)
SCOPES = REQUIRED_SCOPES.described(
    "Permissions of the API key. Left out: everything that an API key may do."
).optional()
_TIME = time_field(
    "expires_at",
    "The time from which the API key is refused. Left out: it does not expire.",
    "2026-04-30T12:00:00Z",
)


def _expiry(value: object) -> datetime:
    since_epoch = timedelta(microseconds=_TIME.parse(value))
    if since_epoch > _LAST - _EPOCH:
        raise InvalidValueError("must be before the year 10000")
    return _EPOCH + since_epoch


EXPIRES_AT = Field(
    name=_TIME.name,
    description=_TIME.description,
    schema=_TIME.schema,
    example=_TIME.example,
    parse=_expiry,
).optional()
ALLOWED_ADDRESSES = Field(
    name="allowed_addresses",
    description="The networks from which the API key is accepted. Left out: all networks.",
    schema=_schema_of({"type": "string", "maxLength": MAX_NETWORK_TEXT}, MAX_ADDRESSES),
    example=["192.0.2.0/24", "2001:db8::/32"],
    parse=_addresses,
).optional()

ALLOW_ABSENT_KEYRINGS = boolean_field(
    "allow_absent_keyrings",
    "Whether scopes may name keyrings that do not exist. A prefix with `*` may always match "
    "future keyrings.",
    example=True,
).or_default(default=False)

_LIMITS: tuple[Field[Any], ...] = (NAME, SCOPES, EXPIRES_AT, ALLOWED_ADDRESSES)
LIMIT_FIELDS: tuple[Field[Any], ...] = (*_LIMITS, ALLOW_ABSENT_KEYRINGS)
"""The fields that limit a new API key."""
KEPT_LIMIT_FIELDS: tuple[Field[Any], ...] = (
    *(
        limit.described(limit.description.partition(" Left out:")[0] + " Left out: as before.")
        for limit in _LIMITS
    ),
    ALLOW_ABSENT_KEYRINGS,
)
"""The fields that limit an API key after a rotation."""


def limits_in(call: ApiCall) -> ApiKeyLimits:
    """Return the limits in a request.

    Raises FieldError, and BeyondOwnLimitsError if an API key without scopes grants an operation
    that it does not have itself.
    """
    scopes, principal = call[SCOPES], call.principal
    is_unscoped = principal.api_key_version is not None and principal.scopes is None
    if scopes is not None and is_unscoped and not GRANTED_WITHOUT_SCOPES.cover(scopes):
        raise BeyondOwnLimitsError(SCOPES.name)
    return ApiKeyLimits(
        scopes=scopes, expires_at=call[EXPIRES_AT], addresses=call[ALLOWED_ADDRESSES]
    )


async def require_keyrings(call: ApiCall, tenant: TenantId, keys: TenantKeyService) -> None:
    """Refuse scopes with a keyring that does not exist, unless the request allows it.

    An API key does not learn about keyrings outside its own scopes. Raises FieldError,
    BeyondOwnLimitsError, KeyServiceError.
    """
    scopes, may_be_absent = call[SCOPES], call[ALLOW_ABSENT_KEYRINGS]
    if scopes is None or may_be_absent:
        return
    own = call.principal.limits
    own.check_covers(own.with_changes(limits_in(call)))
    patterns = {name for scope in scopes.stated for name in scope.keyrings or ()}
    absent = {name for name in patterns if not name.endswith(ALL)} - {DEFAULT_KEYRING}
    placement = call.principal.placement if call.principal.tenant == tenant else None
    if absent:
        request = ListKeyrings(tenant=tenant, names=tuple(sorted(absent)))
        while True:
            page = await keys.execute(request, call.attribution, placement)
            absent -= {keyring.name for keyring in page.keyrings}
            if not page.has_more:
                break
            request = structs.replace(request, after=page.keyrings[-1].name)
    if absent:
        message = (
            f"scopes name a keyring that does not exist ({min(absent)}): create the keyring"
            f" first, or allow keyrings that do not exist yet ({ALLOW_ABSENT_KEYRINGS.name})"
        )
        raise FieldError(SCOPES.name, Problem.MALFORMED, message)


def shown_scopes(scopes: Scopes | None) -> tuple[ScopeData, ...] | None:
    """Return scopes as stated."""
    if scopes is None:
        return None
    return tuple(
        ScopeData(
            operations=scope.operations or UNSET,
            keyrings=scope.keyrings or UNSET,
            algorithms=scope.algorithms or UNSET,
        )
        for scope in scopes.stated
    )


def shown_time(when: datetime | None) -> Timestamp | None:
    """Return a timestamp; None stays None."""
    return None if when is None else timestamp(when)


def shown_addresses(addresses: Networks | None) -> tuple[str, ...] | None:
    """Return the networks in CIDR notation; None stays None."""
    return None if addresses is None else addresses.texts

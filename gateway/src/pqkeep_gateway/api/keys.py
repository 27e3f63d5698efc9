"""/api/v1/kms/keys: the lifecycle of keys, and looking them up."""

from datetime import UTC, datetime
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.callers import PERMISSION_OF
from pqkeep_gateway.api.audit_data import Instant, instant
from pqkeep_gateway.api.errors import (
    KEY_FIELDS,
    archived_in_portal,
    codes_of_operation,
    error_for,
)
from pqkeep_gateway.api.key_fields import KEY_VERSION, STATUS, algorithm_field
from pqkeep_gateway.api.key_operation import KeyAccess, KeyCall, KeyOperation, endpoint
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import LIST_LIMIT, Field, InvalidValueError
from pqkeep_gateway.http.text import Base64, Timestamp, base64, timestamp
from pqkeep_gateway.tenancy.plans import Plans, bound
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import GetUsage
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyInfo, KeyStatus, KeyVersion
from pqkeep_protocol.messages import (
    MAX_KEYS_LISTED,
    ArchiveKey,
    GenerateKey,
    GetActiveKey,
    GetKey,
    KeyPosition,
    ListKeys,
    RetireKey,
    RotateKey,
)

KeyVersionOf = Annotated[int, Meta(ge=1, description="Counted from 1 for each algorithm.")]
PublicKey = Annotated[
    Base64, Meta(description="The public half, as the algorithm's standard encodes it.")
]


class Key(Data, frozen=True, kw_only=True):
    """One version of a key: everything that is ever shown of it."""

    key_version: KeyVersionOf
    algorithm: Algorithm
    status: KeyStatus
    public_key: PublicKey
    created_at: Timestamp


class Keys(Data, frozen=True, kw_only=True):
    """Versions of keys, ordered by algorithm, then version."""

    keys: tuple[Key, ...]
    total: Annotated[int, Meta(ge=0, description="How many match, on all pages.")]
    next: Annotated[
        str | UnsetType, Meta(description="Where there are more: what to send as after.")
    ] = UNSET


class KeyUsage(Data, frozen=True, kw_only=True):
    """How much one version of a key is in use."""

    key_version: KeyVersionOf
    algorithm: Algorithm
    uses: Annotated[int, Meta(ge=0, description="Operations that used it, and succeeded.")]
    last_used_at: Instant | None


class RotatedKey(Data, frozen=True, kw_only=True):
    """The new active key."""

    public_key: PublicKey
    key_version: KeyVersionOf
    algorithm: Algorithm
    old_key_version: Annotated[int, Meta(ge=1, description="The version that is retired now.")]


_ALGORITHMS = frozenset(each.value for each in Algorithm)
MAX_VERSION_DIGITS = len(str(MAX_KEY_VERSION))
EXAMPLE = Key(
    key_version=1,
    algorithm=Algorithm.ML_KEM_768,
    status=KeyStatus.ACTIVE,
    public_key=base64(b"\x1d\xa2\x7f" * 8),
    created_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
)


_ALGORITHM_FILTER = (
    algorithm_field(Operation.LIST_KEYS).described("Only this algorithm's keys.").optional()
)


def _parse_cursor(value: object) -> KeyPosition:
    algorithm, _, version = value.partition(":") if isinstance(value, str) else ("", "", "")
    is_version = version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS
    if algorithm not in _ALGORITHMS or not is_version or not 0 < int(version) <= MAX_KEY_VERSION:
        raise InvalidValueError("must be what next says")
    return KeyPosition(Algorithm(algorithm), KeyVersion(int(version)))


_AFTER: Field[KeyPosition | None] = Field(
    name="after",
    description="Only what comes after this key, as next of the page before says.",
    schema={"type": "string", "pattern": "^[A-Za-z0-9-]+:[0-9]+$"},
    example="Kyber768:1",
    parse=_parse_cursor,
    required=False,
)


def endpoints(access: KeyAccess, plans: Plans) -> tuple[Endpoint, ...]:
    """Return the endpoints of key management."""
    management = _KeyManagement(access, plans)
    rows = (
        KeyOperation(
            "POST",
            "/kms/keys/generate",
            Operation.GENERATE_KEY,
            management.generate,
            status=201,
            idempotent=True,
            name="generate_key",
            fields=(),
            example=EXAMPLE,
        ),
        KeyOperation(
            "POST",
            "/kms/keys/rotate",
            Operation.ROTATE_KEY,
            rotate,
            status=201,
            idempotent=True,
            needs_step_up=True,
            name="rotate_key",
            fields=(),
            example=RotatedKey(
                public_key=EXAMPLE.public_key,
                key_version=2,
                algorithm=EXAMPLE.algorithm,
                old_key_version=1,
            ),
        ),
        KeyOperation(
            "POST",
            "/kms/keys/retire",
            Operation.RETIRE_KEY,
            retire,
            name="retire_key",
            fields=(KEY_VERSION,),
            example=structs.replace(EXAMPLE, status=KeyStatus.RETIRED),
        ),
        KeyOperation(
            "POST",
            "/kms/keys/archive",
            Operation.ARCHIVE_KEY,
            archive,
            needs_step_up=True,
            denial=archived_in_portal,
            name="archive_key",
            fields=(KEY_VERSION,),
            example=structs.replace(EXAMPLE, status=KeyStatus.ARCHIVED),
        ),
        KeyOperation(
            "GET",
            "/kms/keys/active",
            Operation.GET_ACTIVE_KEY,
            get_active,
            name="get_active_key",
            fields=(),
            example=EXAMPLE,
        ),
        KeyOperation(
            "GET",
            "/kms/keys/{key_version}/usage",
            Operation.GET_KEY,
            usage,
            name="get_key_usage",
            fields=(KEY_VERSION,),
            example=KeyUsage(
                key_version=1,
                algorithm=EXAMPLE.algorithm,
                uses=1200,
                last_used_at=instant(1_769_860_800_000_000),
            ),
        ),
        KeyOperation(
            "GET",
            "/kms/keys/{key_version}",
            Operation.GET_KEY,
            get,
            name="get_key",
            fields=(KEY_VERSION,),
            example=EXAMPLE,
        ),
    )
    return (
        Endpoint(
            method="GET",
            path="/kms/keys",
            name="list_keys",
            handler=management.list_keys,
            permission=PERMISSION_OF[Operation.LIST_KEYS],
            example=Keys(keys=(EXAMPLE,), total=1),
            fields=(_ALGORITHM_FILTER, STATUS, LIST_LIMIT, _AFTER),
            field_codes=KEY_FIELDS[Operation.LIST_KEYS],
            codes=codes_of_operation(Operation.LIST_KEYS),
            recorded_as=Operation.LIST_KEYS,
        ),
        *(endpoint(row, access) for row in rows),
    )


class _KeyManagement:
    """The handlers that need more than a key call."""

    def __init__(self, access: KeyAccess, plans: Plans) -> None:
        self._access = access
        self._plans = plans

    async def generate(self, call: KeyCall) -> Key:
        """Generate an algorithm's first key, or the next one where none is active."""
        quota = bound(self._plans[call.principal.entitlements.effective_tier].pqc_keys)
        generated = await call.execute(
            GenerateKey(
                tenant=call.tenant,
                algorithm=call.algorithm,
                quota=quota,
                idempotency=call.idempotency,
            )
        )
        return _key(generated.key)

    async def list_keys(self, call: ApiCall) -> Keys:
        """List keys, ordered by algorithm, then version: all, or page by page."""
        limit = call[LIST_LIMIT]
        request = ListKeys(
            tenant=call.tenant.tenant,
            algorithm=call[_ALGORITHM_FILTER],
            status=call[STATUS],
            after=call[_AFTER],
        )
        attribution = self._access.attribute(call, request.operation, request.algorithm)
        listed: list[KeyInfo] = []
        try:
            while True:
                size = min(limit - len(listed), MAX_KEYS_LISTED)
                request = structs.replace(request, limit=size)
                page = await self._access.keys.execute(request, attribution)
                listed += page.keys
                if not page.has_more or len(listed) == limit:
                    break
                request = structs.replace(request, after=_position(listed[-1]))
        except KeyServiceError as refusal:
            raise error_for(request.operation, refusal.kind) from None
        return Keys(
            keys=tuple(_key(key) for key in listed),
            total=page.total,
            next=_cursor(listed[-1]) if page.has_more else UNSET,
        )


async def rotate(call: KeyCall) -> RotatedKey:
    """Put a new key in the active one's place."""
    rotated = await call.execute(
        RotateKey(tenant=call.tenant, algorithm=call.algorithm, idempotency=call.idempotency)
    )
    return RotatedKey(
        public_key=base64(rotated.key.public_key),
        key_version=rotated.key.version,
        algorithm=rotated.key.algorithm,
        old_key_version=rotated.old_version,
    )


async def retire(call: KeyCall) -> Key:
    """Allow no new use of a key."""
    version = call[KEY_VERSION]
    retired = await call.execute(
        RetireKey(tenant=call.tenant, algorithm=call.algorithm, version=version)
    )
    return _key(retired.key)


async def archive(call: KeyCall) -> Key:
    """Destroy the private half of a retired key, for ever. People only; programs may not."""
    version = call[KEY_VERSION]
    archived = await call.execute(
        ArchiveKey(tenant=call.tenant, algorithm=call.algorithm, version=version)
    )
    return _key(archived.key)


async def usage(call: KeyCall) -> KeyUsage:
    """Tell how often a version was used, and when last.

    Before you retire or archive it: what it protected can be read with no other.
    """
    version = call[KEY_VERSION]
    found = await call.execute(
        GetUsage(tenant=call.tenant, algorithm=call.algorithm, version=version)
    )
    return KeyUsage(
        key_version=version,
        algorithm=call.algorithm,
        uses=found.uses,
        last_used_at=None if found.last_used_us is None else instant(found.last_used_us),
    )


async def get(call: KeyCall) -> Key:
    """Return one version, whatever its status."""
    version = call[KEY_VERSION]
    found = await call.execute(
        GetKey(tenant=call.tenant, algorithm=call.algorithm, version=version)
    )
    return _key(found.key)


async def get_active(call: KeyCall) -> Key:
    """Return the active key."""
    found = await call.execute(GetActiveKey(tenant=call.tenant, algorithm=call.algorithm))
    return _key(found.key)


def _position(key: KeyInfo) -> KeyPosition:
    return KeyPosition(key.algorithm, key.version)


def _cursor(key: KeyInfo) -> str:
    return f"{key.algorithm.value}:{key.version}"


def _key(key: KeyInfo) -> Key:
    return Key(
        key_version=key.version,
        algorithm=key.algorithm,
        status=key.status,
        public_key=base64(key.public_key),
        created_at=timestamp(key.created_at),
    )

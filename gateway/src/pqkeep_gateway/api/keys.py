"""/api/v1/kms/keys: the lifecycle and look-up of keys."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.callers import PERMISSION_OF, Permission
from pqkeep_gateway.api.audit_data import Instant, instant
from pqkeep_gateway.api.errors import (
    KEY_FIELDS,
    archived_in_portal,
    codes_of_operation,
    error_for,
)
from pqkeep_gateway.api.key_fields import (
    KEY_VERSION,
    KEYRING,
    STATUS,
    UNTIL,
    KeyResponse,
    algorithm_field,
    alias_in,
    is_keyring_name,
    keyring_named,
    naming,
)
from pqkeep_gateway.api.key_operation import (
    KeyAccess,
    KeyCall,
    KeyOperation,
    endpoint,
    warned,
)
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Existing, Subject, Warned
from pqkeep_gateway.http.field import (
    LIST_LIMIT,
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    boolean_field,
    integer_field,
)
from pqkeep_gateway.http.text import Base64, Timestamp, base64, timestamp
from pqkeep_gateway.outgoing_mail import of_key
from pqkeep_gateway.tenancy.plans import Plans, bound
from pqkeep_protocol import messages
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.audit import GetUsage, InventoryKey, KeyVersionUsage, ListUsage
from pqkeep_protocol.audit import Usage as UsageOfKey
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MAX_ARCHIVE_DAYS,
    MAX_KEY_VERSION,
    MIN_ARCHIVE_DAYS,
    KeyInfo,
    KeyringName,
    KeyStatus,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.messages import (
    CancelArchive,
    DisableKey,
    EnableKey,
    GenerateKey,
    GetActiveKey,
    GetKey,
    KeyPosition,
    ListKeys,
    RetireKey,
    RotateKey,
    ScheduleArchive,
)

KeyVersionOf = Annotated[
    int, Meta(ge=1, description="Starts at 1 for each algorithm of a keyring.")
]
PublicKey = Annotated[
    Base64,
    Meta(
        description="The public key in the encoding of the algorithm's standard. A symmetric key "
        "has none."
    ),
]
Fingerprint = Annotated[
    str,
    Meta(
        description="For a symmetric key: its check value (32 bytes in hexadecimal). It identifies "
        "the key, and reveals nothing of it."
    ),
]


V = TypeVar("V", RetireKey, DisableKey, EnableKey, CancelArchive, GetKey, GetUsage)


_UNTIL = UNTIL.optional()


class Key(KeyResponse, frozen=True, kw_only=True):
    """One version of a key, with all its published fields."""

    key_version: KeyVersionOf
    algorithm: Algorithm
    status: KeyStatus
    public_key: PublicKey | UnsetType = UNSET
    fingerprint: Fingerprint | UnsetType = UNSET
    created_at: Timestamp
    archive_at: Annotated[
        Timestamp | UnsetType,
        Meta(
            description="If archiving is scheduled: the time when the private key is "
            "destroyed. Until then it cannot be used."
        ),
    ] = UNSET
    disabled_until: Annotated[
        Timestamp | UnsetType,
        Meta(description="If it is disabled until a time: the time when it is enabled again."),
    ] = UNSET
    imported: Annotated[
        Literal[True] | UnsetType,
        Meta(
            description=("Present if the private key was imported: another system may have a copy.")
        ),
    ] = UNSET
    legacy: Annotated[
        Literal[True] | UnsetType,
        Meta(description="Present if the key only reads: for re-encrypt, or for verify."),
    ] = UNSET


class Keys(KeyResponse, frozen=True, kw_only=True):
    """Key versions of a keyring, ordered by algorithm and version."""

    keys: tuple[Key, ...]
    total: Annotated[int, Meta(ge=0, description="The number of matches on all pages.")]
    next: Annotated[
        str | UnsetType, Meta(description="Present if there are more: send it as after.")
    ] = UNSET


class KeyUsage(KeyResponse, frozen=True, kw_only=True):
    """The usage of one key version."""

    key_version: KeyVersionOf
    algorithm: Algorithm
    uses: Annotated[int, Meta(ge=0, description="Successful operations with it.")]
    last_used_at: Instant | None


class KeyUsages(KeyResponse, frozen=True, kw_only=True):
    """The usage of each version that was ever used, ordered by algorithm and version."""

    usage: tuple[KeyUsage, ...]
    total: Annotated[int, Meta(ge=0, description="The number of matches on all pages.")]
    next: Annotated[
        str | UnsetType, Meta(description="Present if there are more: send it as after.")
    ] = UNSET


class RotatedKey(KeyResponse, frozen=True, kw_only=True):
    """The new active key."""

    public_key: PublicKey | UnsetType = UNSET
    fingerprint: Fingerprint | UnsetType = UNSET
    key_version: KeyVersionOf
    algorithm: Algorithm
    old_key_version: Annotated[int, Meta(ge=1, description="The version that was retired.")]


_ALGORITHMS = frozenset(algorithm.value for algorithm in Algorithm)
MAX_VERSION_DIGITS = len(str(MAX_KEY_VERSION))
EXAMPLE = Key(
    key_version=1,
    algorithm=Algorithm.ML_KEM_768,
    status=KeyStatus.ACTIVE,
    public_key=base64(b"\x1d\xa2\x7f" * 8),
    created_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
)
_USAGE = KeyUsage(
    key_version=1,
    algorithm=EXAMPLE.algorithm,
    uses=1200,
    last_used_at=instant(1_769_860_800_000_000),
)

_ALGORITHM_FILTER = (
    algorithm_field(Operation.LIST_KEYS).described("Only this algorithm's keys.").optional()
)


_IF_ABSENT = boolean_field(
    "if_absent", "Whether to return the active key if one exists.", example=True
).or_default(default=False)


_ALL_KEYRINGS = boolean_field(
    "all_keyrings", "Whether to list the keys of all keyrings, ordered by keyring.", example=True
).or_default(default=False)
_SCHEDULED = boolean_field(
    "scheduled", "Whether to list only keys that are scheduled for archiving.", example=True
).or_default(default=False)


_LEGACY = boolean_field("legacy", "Whether to list legacy keys too.", example=True).or_default(
    default=False
)


def _parse_cursor(value: object) -> KeyPosition:
    text = value if isinstance(value, str) else ""
    keyring, _, key = text.rpartition("/")
    algorithm, _, version = key.partition(":")
    if not is_keyring_name(keyring or DEFAULT_KEYRING):
        raise InvalidValueError("must be the value `next` of an earlier response")
    is_version = version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS
    if algorithm not in _ALGORITHMS or not is_version or not 0 < int(version) <= MAX_KEY_VERSION:
        raise InvalidValueError("must be the value `next` of an earlier response")
    return KeyPosition(Algorithm(algorithm), KeyVersion(int(version)), keyring or DEFAULT_KEYRING)


AFTER: Field[KeyPosition | None] = Field(
    name="after",
    description="Only keys after this one: the value `next` of the previous page.",
    schema={"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]*/)?[A-Za-z0-9-]+:[0-9]+$"},
    example="Kyber768:1",
    parse=_parse_cursor,
    required=False,
)


def endpoints(
    access: KeyAccess,
    plans: Plans,
    tell_owners: Callable[[TenantId, str], Awaitable[None]],
    archive_delay_days: int = MIN_ARCHIVE_DAYS,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of key management.

    ``tell_owners`` receives announcements for a tenant's owners. ``archive_delay_days``: the least
    days until a private key is destroyed.
    """
    management = _KeyManagement(access, plans, tell_owners, archive_delay_days)
    rows = (
        KeyOperation(
            "POST",
            "/kms/keys/generate",
            Operation.GENERATE_KEY,
            management.generate,
            generated,
            status=201,
            idempotent=True,
            may_exist=True,
            name="generate_key",
            fields=(_IF_ABSENT,),
            example=EXAMPLE,
        ),
        KeyOperation(
            "POST",
            "/kms/keys/rotate",
            Operation.ROTATE_KEY,
            handler=rotate,
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
            key_as_it_is,
            name="retire_key",
            fields=(KEY_VERSION,),
            example=structs.replace(EXAMPLE, status=KeyStatus.RETIRED),
        ),
        KeyOperation(
            "POST",
            "/kms/keys/disable",
            Operation.DISABLE_KEY,
            disable,
            key_as_it_is,
            name="disable_key",
            fields=(KEY_VERSION, _UNTIL),
            example=structs.replace(EXAMPLE, status=KeyStatus.DISABLED),
        ),
        KeyOperation(
            "POST",
            "/kms/keys/enable",
            Operation.ENABLE_KEY,
            enable,
            key_as_it_is,
            name="enable_key",
            fields=(KEY_VERSION,),
            example=EXAMPLE,
        ),
        KeyOperation(
            "POST",
            "/kms/keys/archive",
            Operation.ARCHIVE_KEY,
            handler=management.archive,
            needs_step_up=True,
            subject_of=management.subject_of_archive,
            denial=archived_in_portal,
            name="archive_key",
            fields=(KEY_VERSION, management.delay_days),
            example=structs.replace(
                EXAMPLE,
                status=KeyStatus.RETIRED,
                archive_at=timestamp(datetime(2026, 3, 31, 12, tzinfo=UTC)),
            ),
        ),
        KeyOperation(
            "POST",
            "/kms/keys/archive/cancel",
            Operation.CANCEL_ARCHIVE,
            cancel_archive,
            key_as_it_is,
            name="cancel_archive",
            fields=(KEY_VERSION,),
            example=structs.replace(EXAMPLE, status=KeyStatus.RETIRED),
        ),
        KeyOperation(
            "GET",
            "/kms/keys/active",
            Operation.GET_ACTIVE_KEY,
            get_active,
            key_as_it_is,
            name="get_active_key",
            fields=(),
            example=EXAMPLE,
        ),
        KeyOperation(
            "GET",
            "/kms/keys/{key_version}/usage",
            Operation.GET_KEY,
            usage,
            used,
            name="get_key_usage",
            fields=(KEY_VERSION,),
            example=_USAGE,
        ),
        KeyOperation(
            "GET",
            "/kms/keys/{key_version}",
            Operation.GET_KEY,
            get,
            key_as_it_is,
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
            fields=(
                *(_ALGORITHM_FILTER, STATUS, _SCHEDULED, LIST_LIMIT, AFTER, KEYRING),
                _ALL_KEYRINGS,
                _LEGACY,
            ),
            field_codes=KEY_FIELDS[Operation.LIST_KEYS],
            codes=codes_of_operation(Operation.LIST_KEYS),
            recorded_as=Operation.LIST_KEYS,
            keyring_of=_keyring_listed,
        ),
        Endpoint(
            method="GET",
            path="/kms/keys/usage",
            name="list_key_usage",
            handler=management.list_usage,
            permission=PERMISSION_OF[Operation.LIST_KEYS],
            example=KeyUsages(usage=(_USAGE,), total=1),
            fields=(_ALGORITHM_FILTER, LIST_LIMIT, AFTER, KEYRING, _LEGACY),
            field_codes=KEY_FIELDS[Operation.LIST_KEYS],
            codes=codes_of_operation(Operation.LIST_KEYS),
            recorded_as=Operation.LIST_KEYS,
            keyring_of=keyring_named,
        ),
        *(endpoint(row, access) for row in rows),
    )


class _KeyManagement:
    """Handlers that do more than one key call."""

    def __init__(
        self,
        access: KeyAccess,
        plans: Plans,
        tell_owners: Callable[[TenantId, str], Awaitable[None]],
        archive_delay_days: int,
    ) -> None:
        self._access = access
        self._plans = plans
        self._tell_owners = tell_owners
        self.delay_days = integer_field(
            "delay_days",
            "Days until the private key is destroyed.",
            max(archive_delay_days, MIN_ARCHIVE_DAYS),
            at_least=archive_delay_days,
            at_most=MAX_ARCHIVE_DAYS,
        ).or_default(archive_delay_days)

    def generate(self, call: KeyCall) -> GenerateKey:
        """Generate an algorithm's first key, or the next one if no key is active.

        With if_absent, an existing active key is returned with 200.
        """
        return GenerateKey(
            tenant=call.tenant,
            algorithm=call.algorithm,
            quota=bound(self._plans[call.principal.entitlements.effective_tier].pqc_keys),
            idempotency=call.idempotency,
            if_absent=call[_IF_ABSENT],
        )

    async def archive(self, call: KeyCall) -> Key:
        """Schedule the destruction of a retired private key. Only people may; programs may not.

        It happens after `delay_days`, or later if the key service has a longer minimum. Until then
        the key cannot be used, and archive/cancel restores it. The destruction is final.
        """
        tenant, algorithm, version = call.tenant, call.algorithm, call[KEY_VERSION]
        days = call[self.delay_days]
        found = await call.rehearse(GetKey(tenant=tenant, algorithm=algorithm, version=version))
        if found is not None and found.key.status is not KeyStatus.RETIRED:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        archived = await call.execute(
            ScheduleArchive(tenant=tenant, algorithm=algorithm, version=version, days=days)
        )
        if archived.key.archive_at is not None and not archived.existed:
            at = archived.key.archive_at
            await self._tell_owners(tenant, of_key(algorithm, version, call.keyring, at))
        return shown_key(archived.key)

    async def subject_of_archive(self, call: KeyCall) -> Subject:
        """Return the key version that an archiving destroys."""
        algorithm, version = call.algorithm, call[KEY_VERSION]
        days = call[self.delay_days]
        key = (
            await call.execute(GetKey(tenant=call.tenant, algorithm=algorithm, version=version))
        ).key
        return Subject(
            f"Destroy {algorithm} v{version} of the keyring {call.keyring} after {days} days",
            [call.keyring, algorithm, version, key.public_key.hex(), key.status, key.archive_at],
            Permission.ARCHIVE_KEYS,
        )

    async def list_keys(self, call: ApiCall) -> Keys:
        """List keys, ordered by algorithm and version: all, or page by page.

        With all_keyrings each key names its keyring, and the list is ordered by keyring first.
        """
        limit = call[LIST_LIMIT]
        keyring, of_all = call[KEYRING], call[_ALL_KEYRINGS]
        if of_all and keyring is not None:
            message = "keyring and all_keyrings cannot be sent together"
            raise FieldError(KEYRING.name, Problem.MALFORMED, message)
        request = ListKeys(
            tenant=call.tenant.tenant,
            keyring=keyring or DEFAULT_KEYRING,
            algorithm=call[_ALGORITHM_FILTER],
            status=call[STATUS],
            after=call[AFTER] if of_all else _in_keyring(call[AFTER], keyring),
            all_keyrings=of_all,
            scheduled=call[_SCHEDULED],
            legacy=call[_LEGACY],
        )
        attribution = self._access.attribute(
            call, request.operation, None if of_all else request.keyring, request.algorithm
        )
        listed: list[KeyInfo] = []
        placement = call.tenant.placement
        try:
            async with aclosing(
                self._access.pages(request, attribution, placement, limit)
            ) as pages:
                async for page in pages:
                    listed += page.keys
        except KeyServiceError as refusal:
            raise error_for(request.operation, refusal, call.values) from None
        alias = alias_in(call.values)
        found = Keys(
            keys=tuple(shown_key(key, alias) for key in listed),
            total=page.total,
            next=_cursor(listed[-1]) if page.has_more else UNSET,
        )
        return _of_all_keyrings(listed, found) if of_all else naming(found, call.values)

    async def list_usage(self, call: ApiCall) -> KeyUsages:
        """List the usage and last use of each version that was ever used."""
        keyring = call[KEYRING]
        request = ListUsage(
            tenant=call.tenant.tenant,
            keyring=keyring or DEFAULT_KEYRING,
            algorithm=call[_ALGORITHM_FILTER],
            after=call[AFTER],
            limit=call[LIST_LIMIT],
            legacy=call[_LEGACY],
        )
        attribution = self._access.attribute(
            call, Operation.LIST_KEYS, request.keyring, request.algorithm
        )
        try:
            page = await self._access.keys.execute(request, attribution, call.tenant.placement)
        except KeyServiceError as refusal:
            raise error_for(Operation.LIST_KEYS, refusal, call.values) from None
        alias = alias_in(call.values)
        found = KeyUsages(
            usage=tuple(
                KeyUsage(
                    key_version=usage.version,
                    algorithm=alias or usage.algorithm,
                    uses=usage.uses,
                    last_used_at=instant(usage.last_used_us),
                )
                for usage in page.usage
            ),
            total=page.total,
            next=_cursor(page.usage[-1]) if page.has_more else UNSET,
        )
        return naming(found, call.values)


async def rotate(call: KeyCall) -> KeyResponse | Warned:
    """Replace the active key with a new one."""
    await call.rehearse(GetActiveKey(tenant=call.tenant, algorithm=call.algorithm))
    rotated = await call.execute(
        RotateKey(tenant=call.tenant, algorithm=call.algorithm, idempotency=call.idempotency)
    )
    public_key, fingerprint = _public_part(rotated.key)
    response = RotatedKey(
        public_key=public_key,
        fingerprint=fingerprint,
        key_version=rotated.key.version,
        algorithm=rotated.key.algorithm,
        old_key_version=rotated.old_version,
    )
    return warned(response, rotated)


def _of_version(call: KeyCall, request: type[V]) -> V:
    return request(tenant=call.tenant, algorithm=call.algorithm, version=call[KEY_VERSION])


def retire(call: KeyCall) -> RetireKey:
    """Retire a key: it can still read and verify, but no longer encrypt or sign."""
    return _of_version(call, RetireKey)


def disable(call: KeyCall) -> DisableKey:
    """Disable a key: every use is refused until it is enabled again, or until a time.

    A key that was disabled without a time stays disabled. Without `until`, an earlier time is
    removed.
    """
    return structs.replace(_of_version(call, DisableKey), until=call[_UNTIL])


def enable(call: KeyCall) -> EnableKey:
    """Enable a disabled key, which becomes active or retired as before."""
    return _of_version(call, EnableKey)


def cancel_archive(call: KeyCall) -> CancelArchive:
    """Cancel the archiving of a key: it can be used as before."""
    return _of_version(call, CancelArchive)


def get(call: KeyCall) -> GetKey:
    """Return one version in any status."""
    return _of_version(call, GetKey)


def get_active(call: KeyCall) -> GetActiveKey:
    """Return the active key."""
    return GetActiveKey(tenant=call.tenant, algorithm=call.algorithm)


def generated(_: ApiCall, request: GenerateKey, result: messages.Key) -> Key | Existing:
    """Return the new key, or the existing one."""
    key = shown_key(result.key)
    return Existing(key) if result.existed else key


def key_as_it_is(_: ApiCall, request: object, result: messages.Key) -> Key:
    """Return the key of a result."""
    return shown_key(result.key)


def usage(call: KeyCall) -> GetUsage:
    """Return the usage and last use of a version.

    Check it before you retire or archive a version: no other version can read its ciphertexts.
    """
    return _of_version(call, GetUsage)


def used(_: ApiCall, request: GetUsage, result: UsageOfKey) -> KeyUsage:
    """Return the usage of a version."""
    return KeyUsage(
        key_version=request.version,
        algorithm=request.algorithm,
        uses=result.uses,
        last_used_at=None if result.last_used_us is None else instant(result.last_used_us),
    )


def _in_keyring(after: KeyPosition | None, keyring: KeyringName | None) -> KeyPosition | None:
    """Return a place in a keyring's list."""
    return None if after is None else structs.replace(after, keyring=keyring or DEFAULT_KEYRING)


def _cursor(key: KeyInfo | KeyVersionUsage | InventoryKey) -> str:
    return f"{key.algorithm.value}:{key.version}"


def cursor_in_all(key: KeyInfo | InventoryKey) -> str:
    """Return the position of a key in the list of all keyrings' keys."""
    return f"{key.keyring}/{_cursor(key)}"


def _of_all_keyrings(listed: Sequence[KeyInfo], found: Keys) -> Keys:
    """Return a page of the keys of all keyrings, with the keyring in each key and in the cursor."""
    keys = tuple(
        structs.replace(shown, keyring=key.keyring)
        for shown, key in zip(found.keys, listed, strict=True)
    )
    after = UNSET if found.next is UNSET else cursor_in_all(listed[-1])
    return structs.replace(found, keys=keys, next=after)


def _keyring_listed(values: Mapping[str, object]) -> KeyringName | None:
    """Return the keyring of the listed keys; None: all. Raises FieldError."""
    return None if _ALL_KEYRINGS.read(values) else keyring_named(values)


def _public_part(key: KeyInfo) -> tuple[Base64 | UnsetType, str | UnsetType]:
    """Return a key's public key, or a symmetric key's fingerprint."""
    if ALGORITHMS[key.algorithm].is_symmetric:
        return UNSET, key.public_key.hex()
    return base64(key.public_key), UNSET


def shown_key(key: KeyInfo, alias: Algorithm | None = None) -> Key:
    """Return a key in its API form."""
    public_key, fingerprint = _public_part(key)
    return Key(
        key_version=key.version,
        algorithm=alias or key.algorithm,
        status=key.status,
        public_key=public_key,
        fingerprint=fingerprint,
        created_at=timestamp(key.created_at),
        archive_at=UNSET if key.archive_at is None else timestamp(key.archive_at),
        disabled_until=UNSET if key.disabled_until is None else timestamp(key.disabled_until),
        imported=True if key.imported else UNSET,
        legacy=True if ALGORITHMS[key.algorithm].is_legacy else UNSET,
    )

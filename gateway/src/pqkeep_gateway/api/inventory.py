"""/api/v1/inventory: every key version of a tenant, with its uses up to a checkpoint of the log.

Reading it leaves no record.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Literal, cast

from msgspec import UNSET, Meta, UnsetType

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.scopes import UsableKey, scopes_in
from pqkeep_gateway.api.audit_data import Hash, Instant, instant
from pqkeep_gateway.api.errors import AUDIT_CODES, BAD_REQUEST_FIELDS, key_service_error
from pqkeep_gateway.api.external_keys import ExternalSources, sources_of
from pqkeep_gateway.api.key_fields import keyring_field, words_of
from pqkeep_gateway.api.keys import AFTER
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import not_found
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    boolean_field,
    choice_field,
    integer_field,
    several_field,
    text_field,
    time_field,
)
from pqkeep_gateway.http.text import Timestamp, base64, timestamp
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.external_keys import SqlExternalKeys
from pqkeep_gateway.storage.workloads import Role, SqlWorkloads
from pqkeep_protocol.algorithms import ALGORITHMS, ALIASES, Algorithm
from pqkeep_protocol.audit import (
    MAX_BRIEF_LISTED,
    MAX_INVENTORY_LISTED,
    MAX_INVENTORY_OFFSET,
    MAX_PRINCIPALS_LISTED,
    MAX_USES_LISTED,
    CountedLog,
    InventoryKey,
    InventorySort,
    ListInventory,
    ListUses,
    OperationUses,
    PrincipalUses,
    UsesPosition,
)
from pqkeep_protocol.documents import is_printable
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import CONFIDENTIAL_UNTIL, DATA_CLASS, OWNER
from pqkeep_protocol.keys import DEFAULT_KEYRING, MAX_KEY_VERSION, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.rules import ALL_KEYRINGS, Rule, RuleUse

NOT_SEEN = (
    "encryption outside the service with a public key of the tenant",
    "files that the client encrypts and decrypts with its own copy of a key",
    "copies of an imported key that exist elsewhere",
    "earlier backups of the database, which still hold destroyed keys",
    "whether a ciphertext still exists, and how many there are",
)
"""The uses and copies that the service cannot see."""
_ATTRIBUTION = Attribution("", "gateway", "")
_MAX_OPERATION, _MAX_PRINCIPAL = 32, 128

Uses = Annotated[int, Meta(ge=0, description="Successful operations.")]


class CountedLogData(Data, frozen=True, kw_only=True):
    """The checkpoint up to which the uses are counted."""

    log_id: str
    size: Annotated[int, Meta(ge=1, description="The records of the log that are counted.")]
    root: Hash
    at: Instant


class OperationUsesData(Data, frozen=True, kw_only=True):
    """The uses by one operation."""

    operation: Annotated[
        str, Meta(description="`re-encrypt` is a re-encryption from it, `re-encrypt-target` to it.")
    ]
    uses: Uses
    first_used_at: Instant
    last_used_at: Instant


class PrincipalUsesData(OperationUsesData, frozen=True, kw_only=True):
    """The uses by one principal and operation."""

    principal: Annotated[
        str, Meta(description="The principal, as in records; `other`: see `merged_principals`.")
    ]


class UnattributedUsesData(OperationUsesData, frozen=True, kw_only=True):
    """Uses of public keys in requests that are not the tenant's own."""

    algorithm: Algorithm


class RuleAssessment(Data, frozen=True, kw_only=True):
    """What a rule with a date says of a key version."""

    rule: str
    state: Annotated[
        Literal["announced", "warns", "denies"],
        Meta(description="Its state now. It only ever denies new data and new keys."),
    ]
    uses: tuple[RuleUse, ...]
    warn_from: Timestamp | None
    deny_from: Timestamp | None
    successor: Algorithm | None
    confidential_longer: Annotated[
        bool,
        Meta(description="Whether the data stay confidential after `deny_from`."),
    ]


class MayUseData(Data, frozen=True, kw_only=True):
    """How many may use a key: at least one operation, now."""

    api_keys: Annotated[
        int,
        Meta(
            ge=0, description="The number of valid API keys that `GET …/api-keys?may_use=` lists."
        ),
    ]
    workload_roles: Annotated[int, Meta(ge=0, description="Roles of workloads.")]


class InventoryKeyData(Data, frozen=True, kw_only=True):
    """A key version and its uses."""

    keyring: str
    algorithm: Algorithm
    standard: Annotated[str, Meta(description="The standard of the algorithm.")]
    key_version: Annotated[int, Meta(ge=1)]
    status: KeyStatus
    created_at: Timestamp
    age_days: Annotated[int, Meta(ge=0)]
    retired_at: Timestamp | UnsetType = UNSET
    retired_days: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    archive_at: Annotated[
        Timestamp | UnsetType,
        Meta(description="The time at which the private key will be destroyed."),
    ] = UNSET
    disabled_until: Annotated[
        Timestamp | UnsetType, Meta(description="The time at which it will be enabled again.")
    ] = UNSET
    rotation_at: Annotated[
        Timestamp | UnsetType, Meta(description="The time of its automatic rotation.")
    ] = UNSET
    imported: Annotated[bool, Meta(description="Imported, and not generated here.")]
    private_key: Annotated[
        Literal["present", "destroyed"],
        Meta(description="The private or symmetric key in the database."),
    ]
    fingerprint: Annotated[
        str,
        Meta(description="SHA-256 of the public key, or a symmetric key's fingerprint."),
    ]
    keyring_deleted: Annotated[
        Literal[True] | UnsetType, Meta(description="Present if its keyring is deleted.")
    ] = UNSET
    owner: Annotated[str | UnsetType, Meta(description="A label of the keyring.")] = UNSET
    data_class: Annotated[str | UnsetType, Meta(description="A label of the keyring.")] = UNSET
    confidential_until: Annotated[
        str | UnsetType,
        Meta(
            description="A label of the keyring: the day until which its data stay confidential.",
            extra_json_schema={"format": "date"},
        ),
    ] = UNSET
    uses: Uses
    first_used_at: Instant | None
    last_used_at: Instant | None
    operations: tuple[OperationUsesData, ...]
    principals: Annotated[
        tuple[PrincipalUsesData, ...],
        Meta(
            description="Sorted by principal, then by operation. The request's `principals` "
            "limits their number."
        ),
    ]
    may_use: Annotated[
        MayUseData | UnsetType | None,
        Meta(
            description="Who may use it, if the request has `access`. null: not counted, because "
            "API keys have too many different scopes."
        ),
    ] = UNSET
    more_principals: Annotated[
        bool, Meta(description="Whether there are more: see `GET /inventory/uses`.")
    ]
    rules: Annotated[
        tuple[RuleAssessment, ...] | None,
        Meta(
            description="The rules that concern it, by name. null: unknown, because the tenant's "
            "rules are damaged; an operator repairs them with `pqkeepd rules`."
        ),
    ]


class InventoryData(Data, frozen=True, kw_only=True):
    """A page of the inventory."""

    as_of: CountedLogData
    since: Annotated[
        Instant | UnsetType,
        Meta(description="The beginning of the first counted day, if `since` was sent."),
    ] = UNSET
    keys: tuple[InventoryKeyData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of key versions on all pages.")]
    next: Annotated[
        str | UnsetType,
        Meta(description="Present in the order by name if there are more: send it as after."),
    ] = UNSET
    unattributed: tuple[UnattributedUsesData, ...]
    external: Annotated[
        ExternalSources,
        Meta(description="Keys elsewhere, of every page: see `POST /inventory/external`."),
    ]
    merged_principals: Annotated[
        bool,
        Meta(
            description="Whether uses on this page have the principal `other`: of more than 10,000 "
            "principals in a month the first are counted by themselves."
        ),
    ]
    not_seen: Annotated[tuple[str, ...], Meta(description="What the service cannot see.")]


class UsesData(Data, frozen=True, kw_only=True):
    """A page of the uses of one key version."""

    as_of: CountedLogData
    since: Annotated[
        Instant | UnsetType,
        Meta(description="The beginning of the first counted day, if `since` was sent."),
    ] = UNSET
    uses: tuple[PrincipalUsesData, ...]
    next: Annotated[
        str | UnsetType, Meta(description="Present if there are more: send it as after.")
    ] = UNSET


def _parse_use(value: object) -> UsesPosition:
    operation, slash, principal = value.partition("/") if isinstance(value, str) else ("", "", "")
    is_place = slash and len(operation) <= _MAX_OPERATION and len(principal) <= _MAX_PRINCIPAL
    if not (is_place and is_printable(operation + principal)):
        raise InvalidValueError("must be the value `next` of an earlier response")
    return UsesPosition(principal, operation)


_TIME = "2026-01-31T12:00:00Z"


class Sort(StrEnum):
    """The orders of the inventory, with a leading ``-`` for the reverse one."""

    NAME = "name"
    NAME_REVERSED = "-name"
    ALGORITHM = "algorithm"
    ALGORITHM_REVERSED = "-algorithm"
    STATUS = "status"
    STATUS_REVERSED = "-status"
    CREATED = "created"
    CREATED_REVERSED = "-created"
    LAST_USED = "last-used"
    LAST_USED_REVERSED = "-last-used"
    USES = "uses"
    USES_REVERSED = "-uses"
    ROTATION = "rotation"
    ROTATION_REVERSED = "-rotation"
    DESTRUCTION = "destruction"
    DESTRUCTION_REVERSED = "-destruction"


SINCE = time_field(
    "since",
    "Only uses from this time on: from the beginning of its day (UTC), or after 400 days of its "
    "month. Left out: all uses.",
    "2026-01-31T12:00:00Z",
).optional()
KEYRING = keyring_field("keyring", "Only this keyring's keys.").optional()
NOT_KEYRING = keyring_field("not_keyring", "Only keys of other keyrings.").optional()
ALGORITHM = several_field(
    "algorithm", "Only keys of these algorithms", tuple(Algorithm), Algorithm.ML_KEM_768, ALIASES
)
STATUS = several_field(
    "status", "Only key versions with these statuses", tuple(KeyStatus), KeyStatus.ACTIVE
)
NAME = text_field(
    "name",
    "Only key versions with these words in their name, such as `payments/Kyber768 v2`. Words are "
    "separated by spaces. Case does not matter.",
    "payments v2",
    at_most=128,
).optional()
CREATED_BEFORE = time_field("created_before", "Created before this time.", _TIME).optional()
CREATED_SINCE = time_field("created_since", "Created at this time or later.", _TIME).optional()
USED_SINCE = time_field("used_since", "Used at this time or later.", _TIME).optional()
UNUSED_SINCE = time_field(
    "unused_since", "Without a use at this time or later, or at any time.", _TIME
).optional()
USED_BY = text_field(
    "used_by",
    "Used by this principal, as records name it. For an API key, its name may be left out, or is "
    "enough. Then `used_since` and `unused_since` are about this principal's uses.",
    "api-key:3",
    at_most=254,
).optional()
NOT_USED_BY = text_field(
    "not_used_by", "Never used by this principal.", "api-key:3", at_most=254
).optional()
ROTATION_BEFORE = time_field(
    "rotation_before", "Rotated automatically before this time.", _TIME
).optional()
DESTRUCTION_BEFORE = time_field(
    "destruction_before", "Scheduled for destruction before this time.", _TIME
).optional()
SCHEDULED = boolean_field(
    "scheduled", "Whether it is scheduled for destruction. Left out: both.", example=True
).optional()
IMPORTED = boolean_field(
    "imported", "Whether it was imported. Left out: both.", example=True
).optional()
KEYRING_DELETED = boolean_field(
    "keyring_deleted", "Whether its keyring is deleted. Left out: both.", example=False
).optional()
IS_LEGACY = boolean_field(
    "legacy", "Whether its algorithm is a legacy one. Left out: both.", example=False
).optional()
SORT = choice_field(
    "sort",
    "The order. `name` means keyring, algorithm and version. A leading `-` reverses it. Key "
    "versions without a value come last.",
    tuple(Sort),
    Sort.NAME,
).or_default(Sort.NAME)
OFFSET = integer_field(
    "offset",
    "The number of key versions before the page.",
    50,
    at_least=0,
    at_most=MAX_INVENTORY_OFFSET,
).or_default(0)
PRINCIPALS = integer_field(
    "principals",
    "The most entries of `principals` for each key version.",
    3,
    at_least=0,
    at_most=MAX_PRINCIPALS_LISTED,
).or_default(MAX_PRINCIPALS_LISTED)
ACCESS = boolean_field("access", "Whether to count who may use each key.", example=True).or_default(
    default=False
)
LIMIT = integer_field(
    "limit",
    f"The most key versions to return: at most {MAX_INVENTORY_LISTED}, or {MAX_BRIEF_LISTED} with "
    "`principals=0`.",
    20,
    at_least=1,
    at_most=MAX_BRIEF_LISTED,
).or_default(20)
USES_KEYRING = keyring_field(
    "keyring", f"The key version's keyring. Left out: `{DEFAULT_KEYRING}`."
).optional()
USES_ALGORITHM = choice_field("algorithm", "The algorithm.", tuple(Algorithm), Algorithm.ML_KEM_768)
USES_VERSION = cast(
    "Field[KeyVersion]",
    integer_field(
        "key_version",
        "The key version. Left out: unattributed uses.",
        1,
        at_least=1,
        at_most=MAX_KEY_VERSION,
    ),
).optional()
USES_AFTER: Field[UsesPosition | None] = Field(
    name="after",
    description="Only uses after this one: the value `next` of the previous page.",
    schema={"type": "string", "maxLength": _MAX_OPERATION + 1 + _MAX_PRINCIPAL},
    example="encrypt/api-key:3",
    parse=_parse_use,
    required=False,
)
USES_LIMIT = integer_field(
    "limit", "The most entries to return.", 100, at_least=1, at_most=MAX_USES_LISTED
).or_default(100)

_AS_OF = CountedLogData(
    log_id="0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11",
    size=64,
    root=base64(bytes(range(32))),
    at=instant(1_769_860_800_500_000),
)
_USE = PrincipalUsesData(
    principal="api-key:1",
    operation="encrypt",
    uses=1200,
    first_used_at=instant(1_769_860_800_000_000),
    last_used_at=instant(1_769_860_800_400_000),
)
_EXAMPLE = InventoryData(
    as_of=_AS_OF,
    keys=(
        InventoryKeyData(
            keyring="payments.cards",
            algorithm=Algorithm.ML_KEM_768,
            standard=ALGORITHMS[Algorithm.ML_KEM_768].standard,
            key_version=1,
            status=KeyStatus.ACTIVE,
            created_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
            age_days=0,
            imported=False,
            private_key="present",
            fingerprint=bytes(range(32)).hex(),
            owner="payments",
            confidential_until="2040-12-31",
            uses=1200,
            first_used_at=_USE.first_used_at,
            last_used_at=_USE.last_used_at,
            operations=(
                OperationUsesData(
                    operation=_USE.operation,
                    uses=_USE.uses,
                    first_used_at=_USE.first_used_at,
                    last_used_at=_USE.last_used_at,
                ),
            ),
            principals=(_USE,),
            may_use=MayUseData(api_keys=2, workload_roles=1),
            more_principals=False,
            rules=(),
        ),
    ),
    total=1,
    unattributed=(),
    external=ExternalSources(sources=(), total=0, moved=0),
    merged_principals=False,
    not_seen=NOT_SEEN,
)


MAX_COMPARED = 20_000
"""The comparisons of scopes with keys for one page. More would delay other requests."""


def endpoints(
    keys: TenantKeyService,
    elsewhere: SqlExternalKeys,
    api_keys: SqlApiKeys,
    workloads: SqlWorkloads,
    clock: Clock,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of the inventory."""

    async def list_inventory(call: ApiCall) -> InventoryData:
        """List every key version with its uses. A key version must match every filter.

        It includes archived versions and those of deleted keyrings. `as_of` is a signed checkpoint
        that covers exactly the counted records, so an export up to it proves the counts. A busy log
        grows between two pages, so each page has its own `as_of`.
        """
        tenant, sort = call.tenant, call[SORT]
        if call[AFTER] is not None and sort is not Sort.NAME:
            raise FieldError(AFTER.name, Problem.MALFORMED, "after works only in the order by name")
        if call[LIMIT] > MAX_INVENTORY_LISTED and call[PRINCIPALS]:
            message = f"limit must be at most {MAX_INVENTORY_LISTED}, or principals must be 0"
            raise FieldError(LIMIT.name, Problem.MALFORMED, message)
        request = ListInventory(
            tenant=tenant.tenant,
            since_us=call[SINCE],
            keyring=call[KEYRING],
            not_keyring=call[NOT_KEYRING],
            algorithms=call[ALGORITHM],
            statuses=call[STATUS],
            words=words_of(NAME, call[NAME]),
            created_before_us=call[CREATED_BEFORE],
            created_since_us=call[CREATED_SINCE],
            used_since_us=call[USED_SINCE],
            unused_since_us=call[UNUSED_SINCE],
            used_by=call[USED_BY],
            not_used_by=call[NOT_USED_BY],
            rotated_before_us=call[ROTATION_BEFORE],
            destroyed_before_us=call[DESTRUCTION_BEFORE],
            is_scheduled=call[SCHEDULED],
            is_imported=call[IMPORTED],
            is_keyring_deleted=call[KEYRING_DELETED],
            is_legacy=call[IS_LEGACY],
            sort=InventorySort(sort.removeprefix("-")),
            is_descending=sort.startswith("-"),
            after=call[AFTER],
            offset=call[OFFSET],
            principals=call[PRINCIPALS],
            limit=call[LIMIT],
        )
        now = datetime.fromtimestamp(clock(), UTC)
        try:
            found, external, scopes = await asyncio.gather(
                keys.execute(request, _ATTRIBUTION, tenant.placement),
                elsewhere.list(tenant.tenant),
                _scopes(api_keys, workloads, tenant.tenant, now, is_wanted=call[ACCESS]),
            )
        except KeyServiceError as refusal:
            raise _error(refusal) from None
        last = found.keys[-1] if found.has_more and sort is Sort.NAME else None
        users = None if scopes is None else _may_use(scopes, found.keys)
        return InventoryData(
            as_of=_counted(found.counted),
            since=UNSET if request.since_us is None else instant(found.since_us),
            keys=tuple(
                _key(
                    key,
                    found.rules,
                    now,
                    UNSET if users is None else users.get(UsableKey(key.keyring, key.algorithm)),
                )
                for key in found.keys
            ),
            total=found.total,
            next=UNSET if last is None else f"{last.keyring}/{last.algorithm.value}:{last.version}",
            unattributed=tuple(
                UnattributedUsesData(
                    algorithm=used.algorithm,
                    operation=used.operation,
                    uses=used.uses,
                    first_used_at=instant(used.first_used_us),
                    last_used_at=instant(used.last_used_us),
                )
                for used in found.unattributed
            ),
            external=sources_of(external),
            merged_principals=found.has_other_principals,
            not_seen=NOT_SEEN,
        )

    async def list_uses(call: ApiCall) -> UsesData:
        """List all uses of a key version, ordered by principal and operation.

        Without a version: the uses of the algorithm's public keys that are not the
        tenant's own.
        """
        tenant = call.tenant
        keyring, version = call[USES_KEYRING], call[USES_VERSION]
        if version is not None:
            keyring = keyring or DEFAULT_KEYRING
        elif keyring is not None:
            message = "must be sent with keyring"
            raise FieldError(USES_VERSION.name, Problem.MALFORMED, message)
        request = ListUses(
            tenant=tenant.tenant,
            keyring=keyring,
            algorithm=call[USES_ALGORITHM],
            version=version,
            since_us=call[SINCE],
            after=call[USES_AFTER],
            limit=call[USES_LIMIT],
        )
        try:
            found = await keys.execute(request, _ATTRIBUTION, tenant.placement)
        except KeyServiceError as refusal:
            raise _error(refusal) from None
        last = found.uses[-1] if found.has_more else None
        return UsesData(
            as_of=_counted(found.counted),
            since=UNSET if request.since_us is None else instant(found.since_us),
            uses=tuple(map(_by_principal, found.uses)),
            next=UNSET if last is None else f"{last.operation}/{last.principal}",
        )

    return (
        Endpoint(
            method="GET",
            path="/inventory",
            name="list_inventory",
            handler=list_inventory,
            permission=Permission.VIEW_INVENTORY,
            example=_EXAMPLE,
            fields=(
                *(SINCE, KEYRING, NOT_KEYRING, ALGORITHM, STATUS, NAME),
                *(CREATED_BEFORE, CREATED_SINCE, USED_SINCE, UNUSED_SINCE, USED_BY, NOT_USED_BY),
                *(ROTATION_BEFORE, DESTRUCTION_BEFORE, SCHEDULED, IMPORTED, KEYRING_DELETED),
                *(IS_LEGACY, SORT, OFFSET, AFTER, PRINCIPALS, ACCESS, LIMIT),
            ),
            field_codes=BAD_REQUEST_FIELDS,
            codes=AUDIT_CODES,
        ),
        Endpoint(
            method="GET",
            path="/inventory/uses",
            name="list_uses",
            handler=list_uses,
            permission=Permission.VIEW_INVENTORY,
            example=UsesData(as_of=_AS_OF, uses=(_USE,)),
            fields=(USES_KEYRING, USES_ALGORITHM, USES_VERSION, SINCE, USES_AFTER, USES_LIMIT),
            field_codes=BAD_REQUEST_FIELDS,
            codes=AUDIT_CODES,
        ),
    )


_Scopes = tuple[dict[str | None, int], list[Role]]
"""The scopes of API keys with their numbers, and the roles of workloads."""


async def _scopes(
    api_keys: SqlApiKeys,
    workloads: SqlWorkloads,
    tenant: TenantId,
    now: datetime,
    *,
    is_wanted: bool,
) -> _Scopes | None:
    if not is_wanted:
        return None
    counts, (_, roles) = await asyncio.gather(
        api_keys.count_scopes(tenant, now), workloads.list(tenant, now)
    )
    return counts, roles


def _may_use(scopes: _Scopes, keys: Sequence[InventoryKey]) -> dict[UsableKey, MayUseData]:
    """Return who may use the keys of a page; nothing if that takes more than MAX_COMPARED."""
    wanted = {UsableKey(key.keyring, key.algorithm) for key in keys}
    stored, roles = scopes
    if len(stored) * len(wanted) > MAX_COMPARED:
        return {}
    by_scopes = [(text and scopes_in(text), count) for text, count in stored.items()]
    return {
        key: MayUseData(
            api_keys=sum(count for scopes, count in by_scopes if key.is_open_to(scopes or None)),
            workload_roles=sum(key.is_open_to(role.scopes) for role in roles),
        )
        for key in wanted
    }


def _error(refusal: KeyServiceError) -> Exception:
    if refusal.kind is ErrorKind.RECORD_NOT_FOUND:
        return not_found("there is no checkpoint yet; try again in a second")
    return key_service_error(refusal.kind)


def _counted(counted: CountedLog) -> CountedLogData:
    return CountedLogData(
        log_id=str(counted.log_id),
        size=counted.size,
        root=base64(counted.root),
        at=instant(counted.at_us),
    )


def _by_operation(used: OperationUses) -> OperationUsesData:
    return OperationUsesData(
        operation=used.operation,
        uses=used.uses,
        first_used_at=instant(used.first_used_us),
        last_used_at=instant(used.last_used_us),
    )


def _by_principal(used: PrincipalUses) -> PrincipalUsesData:
    return PrincipalUsesData(
        principal=used.principal,
        operation=used.operation,
        uses=used.uses,
        first_used_at=instant(used.first_used_us),
        last_used_at=instant(used.last_used_us),
    )


def _key(
    key: InventoryKey,
    rules: tuple[Rule, ...] | None,
    now: datetime,
    may_use: MayUseData | UnsetType | None,
) -> InventoryKeyData:
    labels = key.labels
    return InventoryKeyData(
        keyring=key.keyring,
        algorithm=key.algorithm,
        standard=ALGORITHMS[key.algorithm].standard,
        key_version=key.version,
        status=key.status,
        created_at=timestamp(key.created_at),
        age_days=_days(key.created_at, now),
        retired_at=UNSET if key.retired_at is None else timestamp(key.retired_at),
        retired_days=UNSET if key.retired_at is None else _days(key.retired_at, now),
        archive_at=UNSET if key.archive_at is None else timestamp(key.archive_at),
        disabled_until=UNSET if key.disabled_until is None else timestamp(key.disabled_until),
        rotation_at=UNSET if key.rotation_at is None else timestamp(key.rotation_at),
        imported=key.imported,
        private_key="present" if key.has_private_key else "destroyed",
        fingerprint=key.fingerprint.hex(),
        keyring_deleted=True if key.is_keyring_deleted else UNSET,
        owner=labels.get(OWNER, UNSET),
        data_class=labels.get(DATA_CLASS, UNSET),
        confidential_until=labels.get(CONFIDENTIAL_UNTIL, UNSET),
        uses=sum(used.uses for used in key.operations),
        first_used_at=(
            instant(min(used.first_used_us for used in key.operations)) if key.operations else None
        ),
        last_used_at=(
            instant(max(used.last_used_us for used in key.operations)) if key.operations else None
        ),
        operations=tuple(map(_by_operation, key.operations)),
        principals=tuple(map(_by_principal, key.principals)),
        may_use=may_use,
        more_principals=key.has_more_principals,
        rules=(
            None
            if rules is None
            else tuple(assessed(rule, key, now) for rule in rules if concerns(rule, key))
        ),
    )


def _days(since: datetime, now: datetime) -> int:
    return max((now - since).days, 0)


def concerns(rule: Rule, key: InventoryKey) -> bool:
    """Return whether a rule ends uses of a key."""
    return key.algorithm in rule.algorithms and any(
        key.keyring.startswith(pattern.removesuffix(ALL_KEYRINGS))
        if pattern.endswith(ALL_KEYRINGS)
        else key.keyring == pattern
        for pattern in rule.keyrings
    )


def assessed(rule: Rule, key: InventoryKey, now: datetime) -> RuleAssessment:
    """Return the state of a rule for a key."""
    denies, warns = rule.deny_from, rule.warn_from
    until = confidential_until(key.labels)
    return RuleAssessment(
        rule=rule.name,
        state=(
            "denies"
            if denies is not None and denies <= now
            else "warns"
            if warns is not None and warns <= now
            else "announced"
        ),
        uses=rule.uses,
        warn_from=None if warns is None else timestamp(warns),
        deny_from=None if denies is None else timestamp(denies),
        successor=rule.successor,
        confidential_longer=denies is not None and until is not None and until > denies.date(),
    )


def confidential_until(labels: dict[str, str]) -> date | None:
    """Return the day until which a keyring's data stay confidential; None without such a label."""
    try:
        return date.fromisoformat(labels[CONFIDENTIAL_UNTIL])
    except (KeyError, ValueError):
        return None

"""/api/v1/kms/keyrings: named sets of keys, one for each algorithm, with their purposes."""

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, TypeVar, cast

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.callers import PERMISSION_OF, Permission, may
from pqkeep_gateway.api.audit_data import Instant, instant
from pqkeep_gateway.api.errors import KEY_FIELDS, codes_of_operation, error_for
from pqkeep_gateway.api.key_fields import keyring_field, words_of
from pqkeep_gateway.api.key_operation import KeyAccess
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Subject
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import forbidden
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
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.outgoing_mail import of_deleted_keyring, of_keyring
from pqkeep_gateway.rehearsal import is_rehearsal, rehearse_absence
from pqkeep_gateway.tenancy.approvals import POLICY as SECOND_PERSON
from pqkeep_gateway.tenancy.plans import Plans
from pqkeep_protocol.algorithms import ALGORITHMS, ALIASES, Algorithm, Kind, Operation
from pqkeep_protocol.documents import is_printable
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import (
    ALL_PURPOSES,
    CONFIDENTIAL_UNTIL,
    DATA_CLASS,
    DERIVED_PURPOSES,
    LABEL_NAME,
    MAX_DAYS,
    MAX_DESCRIPTION,
    MAX_FIRST_VERSION,
    MAX_LABEL_VALUE,
    MAX_LABELS,
    OWNER,
    TRANSIT_TYPE,
    KeyPurpose,
    KeyringInfo,
)
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MAX_ARCHIVE_DAYS,
    MAX_KEY_VERSION,
    MAX_KEYRING_NAME,
    MIN_ARCHIVE_DAYS,
    KeyringName,
    TenantId,
)
from pqkeep_protocol.messages import (
    KEYRING_PREFIX,
    MAX_KEYRINGS_LISTED,
    MAX_KEYRINGS_OFFSET,
    CreateKeyring,
    DeleteKeyring,
    GetKeyring,
    KeyRequest,
    KeyringSort,
    ListKeyrings,
    ListKeys,
    RestoreKeyring,
    UpdateKeyring,
)

MAX_ON_PAGE = 1_000
"""Keyrings in one response."""
TRANSIT_TYPES: Mapping[str, Algorithm] = {
    "aes256-gcm96": Algorithm.XAES_256_GCM,
    "chacha20-poly1305": Algorithm.XAES_256_GCM,
    "xchacha20-poly1305": Algorithm.XAES_256_GCM,
    "x-wing": Algorithm.X_WING,
    "ml-kem-768": Algorithm.ML_KEM_768,
    "ml-kem-1024": Algorithm.ML_KEM_1024,
    "hmac": Algorithm.HMAC_SHA_256,
    "hmac/64": Algorithm.HMAC_SHA_512,
    "ml-dsa/65": Algorithm.ML_DSA_65,
    "ml-dsa/87": Algorithm.ML_DSA_87,
    "mldsa-65": Algorithm.ML_DSA_65,
    "mldsa-87": Algorithm.ML_DSA_87,
    "slh-dsa/slh-dsa-sha2-128s": Algorithm.SLH_DSA_SHA2_128S,
    "slh-dsa/slh-dsa-sha2-128f": Algorithm.SLH_DSA_SHA2_128F,
    "slh-dsa/slh-dsa-sha2-192s": Algorithm.SLH_DSA_SHA2_192S,
    "slh-dsa/slh-dsa-sha2-256s": Algorithm.SLH_DSA_SHA2_256S,
    "hybrid/65": Algorithm.COMPOSITE_ML_DSA,
}
"""The algorithm of each key type of Vault Transit, which has its parameter set after a slash."""
_LABEL = "[a-z0-9][a-z0-9._-]{0,63}"
_is_prefix = re.compile(KEYRING_PREFIX).fullmatch
_is_label_name = re.compile(LABEL_NAME).fullmatch
_EACH_LABEL = (
    f"must be an object of at most {MAX_LABELS} labels: names of 1 to 64 characters of a-z 0-9 . _ -, the first a letter"
    f" or digit, and values of at most {MAX_LABEL_VALUE} printable characters"
)
_EACH_PURPOSE = "must be a list with at least one purpose: " + ", ".join(KeyPurpose)
_A_LABEL = "must be a label's name and value, separated by a colon"


def _encrypts(algorithm: Algorithm) -> bool:
    return ALGORITHMS[algorithm].kind in {Kind.KEM, Kind.CIPHER}


def _is_label_value(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LABEL_VALUE and is_printable(value)


def _label_changes(value: object) -> dict[str, str | None]:
    if not isinstance(value, dict) or len(cast("dict[str, object]", value)) > MAX_LABELS:
        raise InvalidValueError(_EACH_LABEL)
    changes = cast("dict[str, object]", value)
    set_ = _labels({name: text for name, text in changes.items() if text is not None})
    if not all(map(_is_label_name, changes)):
        raise InvalidValueError(_EACH_LABEL)
    return {name: set_.get(name) for name in changes}


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(cast("dict[str, object]", value)) > MAX_LABELS:
        raise InvalidValueError(_EACH_LABEL)
    labels = cast("dict[str, object]", value)
    if not all(_is_label_name(name) and _is_label_value(value) for name, value in labels.items()):
        raise InvalidValueError(_EACH_LABEL)
    until = labels.get(CONFIDENTIAL_UNTIL)
    if until is not None and not _is_day(until):
        raise InvalidValueError(f"{CONFIDENTIAL_UNTIL} must be a day like 2040-12-31")
    return cast("dict[str, str]", labels)


def _is_day(value: object) -> bool:
    """Return whether a value is a day in the form YYYY-MM-DD."""
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _purposes(value: object) -> tuple[KeyPurpose, ...]:
    named = cast("list[object]", value) if isinstance(value, list) else []
    if not named or any(purpose not in ALL_PURPOSES for purpose in named):
        raise InvalidValueError(_EACH_PURPOSE)
    return tuple(purpose for purpose in ALL_PURPOSES if purpose in named)


def _label(value: object) -> tuple[str, str]:
    name, colon, text = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (colon and _is_label_name(name) and _is_label_value(text)):
        raise InvalidValueError(_A_LABEL)
    return name, text


def _minimum(name: str, operations: str) -> Field[int]:
    description = f"The lowest key version that may {operations}. 0: every version."
    return integer_field(name, description, 2, at_least=0, at_most=MAX_KEY_VERSION)


def _days(name: str, description: str, example: int) -> Field[int]:
    return integer_field(name, description, example, at_least=0, at_most=MAX_DAYS)


_NO_KEYRING = "no such keyring"
NEW_NAME = keyring_field("name", "The keyring's name. It cannot be changed.")
NAME = keyring_field("name", "The keyring's name.", not_found=_NO_KEYRING)
DESCRIPTION = text_field(
    "description", "A description for people.", "Card numbers", at_most=MAX_DESCRIPTION, at_least=0
)
LABELS = Field(
    name="labels",
    description=f"Your own names and values, for searching. The inventory shows `{OWNER}`,"
    f" `{DATA_CLASS}` and `{CONFIDENTIAL_UNTIL}`, a day.",
    schema={
        "type": "object",
        "maxProperties": MAX_LABELS,
        "propertyNames": {"pattern": f"^{_LABEL}$"},
        "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_VALUE},
    },
    example={"team": "payments"},
    parse=_labels,
)
LABEL_CHANGES = Field(
    name="label_changes",
    description="Labels to set. null removes a label, and other labels stay.",
    schema={
        "type": "object",
        "maxProperties": MAX_LABELS,
        "propertyNames": {"pattern": f"^{_LABEL}$"},
        "additionalProperties": {"type": ["string", "null"], "maxLength": MAX_LABEL_VALUE},
    },
    example={"team": "payments", "env": None},
    parse=_label_changes,
)
PURPOSES = Field(
    name="purposes",
    description="The allowed purposes of its keys.",
    schema={
        "type": "array",
        "items": {"type": "string", "enum": list(ALL_PURPOSES)},
        "minItems": 1,
    },
    example=["encrypt", "decrypt"],
    parse=_purposes,
)
ROTATION_DAYS = _days(
    "rotation_days", "Days after which an active key is rotated automatically. 0: never.", 90
)
ARCHIVE_AFTER_DAYS = _days(
    "archive_after_days",
    "Days after which a retired key version is archived automatically. This destroys its "
    "private key. 0: never.",
    0,
)
MINIMUM_DECRYPTION_VERSION = _minimum(
    "minimum_decryption_version", "decrypt, unwrap, decapsulate and verify"
)
MINIMUM_ENCRYPTION_VERSION = _minimum(
    "minimum_encryption_version", "encrypt, wrap, encapsulate, sign and compute MACs"
)
FIRST_VERSION = integer_field(
    "first_version",
    "The lowest version number of its keys, for keys that follow those of another service. "
    "It cannot be changed.",
    1,
    at_least=1,
    at_most=MAX_FIRST_VERSION,
).or_default(1)
TRANSIT_TYPE_ = text_field(
    "transit_type",
    "The key type that clients of Vault Transit see. It cannot be changed.",
    "aes256-gcm96",
    at_most=65,
    pattern=f"^{TRANSIT_TYPE}$",
    is_valid=TRANSIT_TYPES.__contains__,
    must="must be one of the key types of Vault Transit: " + ", ".join(TRANSIT_TYPES),
).optional()
DERIVED = boolean_field(
    "derived",
    "Whether encryption and decryption need a `context`, from which a separate key is "
    "derived. It cannot be changed. The only purposes are then encrypt and decrypt.",
    example=False,
).or_default(default=False)
DELETION_ALLOWED = boolean_field(
    "deletion_allowed",
    "Whether API keys with a scope that names `delete-keyring` may delete it. Only they, owners and "
    "admins can allow it.",
    example=False,
)
RETIRED_PUBLIC_KEYS_ALLOWED = boolean_field(
    "retired_public_keys_allowed",
    "Whether requests that send the public key of a retired version may still encrypt and "
    "encapsulate to it.",
    example=False,
)
LABEL = Field(
    name="label",
    description="Only keyrings with this label: its name, a colon and its value.",
    schema={"type": "string", "pattern": f"^{_LABEL}:"},
    example="team:payments",
    parse=_label,
).optional()
PREFIX = text_field(
    "prefix",
    "Only keyrings with names that begin with this text.",
    "payments.",
    at_most=MAX_KEYRING_NAME,
    pattern="^[A-Za-z0-9_.-]*$",
    is_valid=lambda text: _is_prefix(text) is not None,
    must=f"must be at most {MAX_KEYRING_NAME} characters of A-Z a-z 0-9 _ . -",
).optional()
DELETED = boolean_field(
    "deleted",
    "Whether to list the deleted keyrings that can be restored, instead of the others.",
    example=False,
).or_default(default=False)
AFTER = keyring_field(
    "after", "Only keyrings after this one, in the order by name without other filters."
).optional()
_TIME = "2026-01-31T12:00:00Z"


class Sort(StrEnum):
    """The orders of keyrings, with a leading ``-`` for the reverse one."""

    NAME = "name"
    NAME_REVERSED = "-name"
    CREATED = "created"
    CREATED_REVERSED = "-created"
    LAST_USED = "last-used"
    LAST_USED_REVERSED = "-last-used"
    ROTATION = "rotation"
    ROTATION_REVERSED = "-rotation"


WORDS = text_field(
    "name",
    "Only keyrings with these words in their name. Words are separated by spaces. Case does not "
    "matter.",
    "payments",
    at_most=128,
).optional()
OF_ALGORITHM = several_field(
    "algorithm",
    "Only keyrings with keys of these algorithms",
    tuple(Algorithm),
    Algorithm.ML_KEM_768,
    ALIASES,
)
CREATED_BEFORE = time_field("created_before", "Created before this time.", _TIME).optional()
CREATED_SINCE = time_field("created_since", "Created at this time or later.", _TIME).optional()
USED_SINCE = time_field(
    "used_since", "With a key that was used at this time or later.", _TIME
).optional()
UNUSED_SINCE = time_field(
    "unused_since",
    "Only keyrings without a use of their keys at this time or later. Keyrings that were "
    "never used are included.",
    _TIME,
).optional()
ROTATED = boolean_field(
    "rotated", "Whether its keys are rotated automatically. Left out: both.", example=True
).optional()
SORT = choice_field(
    "sort",
    "The order. A leading `-` reverses it. Keyrings without a value come last.",
    tuple(Sort),
    Sort.NAME,
).or_default(Sort.NAME)
OFFSET = integer_field(
    "offset", "The number of keyrings before the page.", 50, at_least=0, at_most=MAX_KEYRINGS_OFFSET
).or_default(0)


R = TypeVar("R")
D = TypeVar("D", int, int | None)
B = TypeVar("B", bool, bool | None)

Days = Annotated[int, Meta(ge=1)] | None


MinimumVersion = Annotated[
    int, Meta(ge=0, description="Lower key versions are refused. 0: every version is allowed.")
]


class Keyring(Data, frozen=True, kw_only=True):
    """A keyring."""

    name: str
    description: str
    labels: Annotated[dict[str, str], Meta(description="Names and values of your own.")]
    purposes: Annotated[
        tuple[KeyPurpose, ...], Meta(description="The allowed purposes of its keys.")
    ]
    rotation_days: Annotated[
        Days, Meta(description="Days after which an active key is rotated automatically.")
    ]
    archive_after_days: Annotated[
        Days,
        Meta(description="Days after which a retired key version is archived automatically."),
    ]
    minimum_decryption_version: MinimumVersion
    minimum_encryption_version: MinimumVersion
    first_version: Annotated[
        int, Meta(ge=1, description="The lowest version number of the keyring's keys.")
    ]
    derived: Annotated[
        bool, Meta(description="Whether a context derives the keys that encrypt and decrypt.")
    ]
    deletion_allowed: Annotated[
        bool, Meta(description="Whether API keys with the scope may delete it.")
    ]
    retired_public_keys_allowed: Annotated[
        bool,
        Meta(
            description="Whether new data may use a retired version's public key, sent as "
            "`public_key`."
        ),
    ]
    created_at: Annotated[
        Timestamp | None, Meta(description=f"null for {DEFAULT_KEYRING}, which always exists.")
    ]
    transit_type: Annotated[
        str | UnsetType,
        Meta(description="Present if it has a key type for clients of Vault Transit."),
    ] = UNSET
    archive_at: Annotated[
        Timestamp | UnsetType,
        Meta(description="Present if the keyring is deleted: when its private keys are destroyed."),
    ] = UNSET
    last_used_at: Annotated[
        Instant | UnsetType | None,
        Meta(
            description="Present in lists: the last use of its keys, up to the newest checkpoint. "
            "null: never."
        ),
    ] = UNSET


class Keyrings(Data, frozen=True, kw_only=True):
    """A page of keyrings."""

    keyrings: tuple[Keyring, ...]
    total: Annotated[int, Meta(ge=0, description="The number of matches on all pages.")]
    next: Annotated[
        str | UnsetType,
        Meta(description="Present in the order by name if there are more: send it as after."),
    ] = UNSET


EXAMPLE = Keyring(
    name="payments.cards",
    description="Card numbers",
    labels={"team": "payments"},
    purposes=(KeyPurpose.ENCRYPT, KeyPurpose.DECRYPT),
    rotation_days=90,
    archive_after_days=None,
    minimum_decryption_version=2,
    minimum_encryption_version=0,
    first_version=1,
    derived=False,
    deletion_allowed=False,
    retired_public_keys_allowed=False,
    created_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
)
_DELETED = structs.replace(EXAMPLE, archive_at=timestamp(datetime(2026, 3, 31, 12, tzinfo=UTC)))
_SETTINGS = (
    DESCRIPTION.or_default(""),
    LABELS.or_default({}),
    PURPOSES.or_default(ALL_PURPOSES),
    ROTATION_DAYS.or_default(0),
    ARCHIVE_AFTER_DAYS.or_default(0),
    MINIMUM_DECRYPTION_VERSION.or_default(0),
    MINIMUM_ENCRYPTION_VERSION.or_default(0),
    DELETION_ALLOWED.or_default(default=False),
    RETIRED_PUBLIC_KEYS_ALLOWED.or_default(default=False),
)
_CHANGES = (
    DESCRIPTION.optional(),
    LABELS.described("Your own names and values. They replace all existing labels.").optional(),
    LABEL_CHANGES.optional(),
    PURPOSES.optional(),
    ROTATION_DAYS.optional(),
    ARCHIVE_AFTER_DAYS.optional(),
    MINIMUM_DECRYPTION_VERSION.optional(),
    MINIMUM_ENCRYPTION_VERSION.optional(),
    DELETION_ALLOWED.optional(),
    RETIRED_PUBLIC_KEYS_ALLOWED.optional(),
)
_LIMIT = integer_field(
    "limit",
    f"The most entries to return. Left out: {MAX_ON_PAGE:,}.",
    100,
    at_least=1,
    at_most=MAX_ON_PAGE,
).or_default(MAX_ON_PAGE)


_ARCHIVE_DAYS = ARCHIVE_AFTER_DAYS.optional()


def endpoints(
    access: KeyAccess,
    plans: Plans,
    tell_owners: Callable[[TenantId, str], Awaitable[None]],
    archive_delay_days: int = MIN_ARCHIVE_DAYS,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of keyrings.

    ``tell_owners`` receives announcements for a tenant's owners. ``archive_delay_days``: the least
    delay before private keys are destroyed. Without a delay in the request it is seven days, or
    this least delay if that is longer.
    """
    usual_days = max(archive_delay_days, MIN_ARCHIVE_DAYS)
    delay_days = integer_field(
        "delay_days",
        "Days until the private keys are destroyed.",
        usual_days,
        at_least=archive_delay_days,
        at_most=MAX_ARCHIVE_DAYS,
    ).or_default(usual_days)
    handlers = _Keyrings(access, plans, tell_owners, delay_days)
    return (
        Endpoint(
            method="POST",
            path="/kms/keyrings",
            name="create_keyring",
            handler=handlers.create,
            permission=PERMISSION_OF[Operation.CREATE_KEYRING],
            example=EXAMPLE,
            fields=(NEW_NAME, *_SETTINGS, FIRST_VERSION, TRANSIT_TYPE_, DERIVED),
            field_codes=KEY_FIELDS[Operation.CREATE_KEYRING],
            codes=codes_of_operation(Operation.CREATE_KEYRING),
            status=201,
            recorded_as=Operation.CREATE_KEYRING,
            keyring_of=NEW_NAME.read,
            step_up_for=ARCHIVE_AFTER_DAYS,
            subject_of=handlers.subject_of_create,
        ),
        Endpoint(
            method="GET",
            path="/kms/keyrings",
            name="list_keyrings",
            handler=handlers.list_,
            permission=PERMISSION_OF[Operation.LIST_KEYRINGS],
            example=Keyrings(
                keyrings=(structs.replace(EXAMPLE, last_used_at=instant(1_769_860_800_400_000)),),
                total=1,
            ),
            fields=(
                *(PREFIX, LABEL, DELETED, WORDS, OF_ALGORITHM, CREATED_BEFORE, CREATED_SINCE),
                *(USED_SINCE, UNUSED_SINCE, ROTATED, SORT, OFFSET, _LIMIT, AFTER),
            ),
            field_codes=KEY_FIELDS[Operation.LIST_KEYRINGS],
            codes=codes_of_operation(Operation.LIST_KEYRINGS),
            recorded_as=Operation.LIST_KEYRINGS,
        ),
        Endpoint(
            method="GET",
            path="/kms/keyrings/{name}",
            name="get_keyring",
            handler=handlers.get,
            permission=PERMISSION_OF[Operation.GET_KEYRING],
            example=EXAMPLE,
            fields=(NAME,),
            field_codes=KEY_FIELDS[Operation.GET_KEYRING],
            codes=codes_of_operation(Operation.GET_KEYRING),
            recorded_as=Operation.GET_KEYRING,
            keyring_of=NAME.read,
        ),
        Endpoint(
            method="PATCH",
            path="/kms/keyrings/{name}",
            name="update_keyring",
            handler=handlers.update,
            permission=PERMISSION_OF[Operation.UPDATE_KEYRING],
            example=EXAMPLE,
            fields=(NAME, *_CHANGES),
            field_codes=KEY_FIELDS[Operation.UPDATE_KEYRING],
            codes=codes_of_operation(Operation.UPDATE_KEYRING),
            recorded_as=Operation.UPDATE_KEYRING,
            keyring_of=NAME.read,
            needs_step_up=True,
            step_up_for=ARCHIVE_AFTER_DAYS,
            subject_of=handlers.subject_of_update,
        ),
        Endpoint(
            method="DELETE",
            path="/kms/keyrings/{name}",
            name="delete_keyring",
            handler=handlers.delete,
            permission=PERMISSION_OF[Operation.DELETE_KEYRING],
            example=_DELETED,
            fields=(NAME, delay_days),
            field_codes=KEY_FIELDS[Operation.DELETE_KEYRING],
            codes=codes_of_operation(Operation.DELETE_KEYRING),
            recorded_as=Operation.DELETE_KEYRING,
            keyring_of=NAME.read,
            needs_step_up=True,
            subject_of=handlers.subject_of_delete,
        ),
        Endpoint(
            method="POST",
            path="/kms/keyrings/{name}/restore",
            name="restore_keyring",
            handler=handlers.restore,
            permission=PERMISSION_OF[Operation.RESTORE_KEYRING],
            example=EXAMPLE,
            fields=(NAME,),
            field_codes=KEY_FIELDS[Operation.RESTORE_KEYRING],
            codes=codes_of_operation(Operation.RESTORE_KEYRING),
            recorded_as=Operation.RESTORE_KEYRING,
            keyring_of=NAME.read,
            body_optional=True,
        ),
    )


class _Keyrings:
    """The handlers."""

    def __init__(
        self,
        access: KeyAccess,
        plans: Plans,
        tell_owners: Callable[[TenantId, str], Awaitable[None]],
        delay_days: Field[int],
    ) -> None:
        self._access = access
        self._plans = plans
        self._delay_days = delay_days
        self._tell_owners = tell_owners

    async def create(self, call: ApiCall) -> Keyring:
        """Create an empty keyring.

        With archive_after_days, a signed-in person must send a step-up token.
        """
        description, labels, purposes, rotation_days, archive_after_days, *_ = _SETTINGS
        *_, decryption, encryption, deletion, retired = _SETTINGS
        transit_type = call[TRANSIT_TYPE_] or ""
        if call[DERIVED] and transit_type and not _encrypts(TRANSIT_TYPES[transit_type]):
            message = f"must be false: keys of transit_type {transit_type} do not encrypt"
            raise FieldError(DERIVED.name, Problem.MALFORMED, message)
        request = CreateKeyring(
            tenant=call.tenant.tenant,
            keyring=call[NEW_NAME],
            description=call[description],
            labels=call[labels],
            purposes=_purposes_of(call, purposes),
            rotation_days=call[rotation_days],
            archive_after_days=_archive_days(call, archive_after_days),
            minimum_decryption_version=call[decryption],
            minimum_encryption_version=call[encryption],
            deletion_allowed=self._deletion_allowed(call, deletion),
            retired_public_keys_allowed=call[retired],
            first_version=call[FIRST_VERSION],
            transit_type=transit_type,
            derived=call[DERIVED],
            quota=self._plans[call.tenant.entitlements.effective_tier].keyrings,
        )
        taken = GetKeyring(tenant=request.tenant, keyring=request.keyring)
        try:
            await rehearse_absence(
                lambda: self._ask(call, taken),
                ErrorKind.KEYRING_NOT_FOUND,
                ErrorKind.KEYRING_EXISTS,
            )
        except KeyServiceError as refusal:
            raise error_for(request.operation, refusal, call.values) from None
        made = (await self._execute(call, request)).keyring
        await self._tell(call, made, 0)
        return _keyring(made)

    async def list_(self, call: ApiCall) -> Keyrings:
        """List keyrings. A keyring must match every filter."""
        limit, sort = call[_LIMIT], call[SORT]
        request = ListKeyrings(
            tenant=call.tenant.tenant,
            label=call[LABEL],
            prefix=call[PREFIX] or "",
            deleted=call[DELETED],
            words=words_of(WORDS, call[WORDS]),
            algorithms=call[OF_ALGORITHM],
            created_before_us=call[CREATED_BEFORE],
            created_since_us=call[CREATED_SINCE],
            used_since_us=call[USED_SINCE],
            unused_since_us=call[UNUSED_SINCE],
            is_rotated=call[ROTATED],
            sort=KeyringSort(sort.removeprefix("-")),
            is_descending=sort.startswith("-"),
            offset=call[OFFSET],
            counts_uses=True,
        )
        if call[AFTER] is not None:
            if request.is_search:
                message = (
                    "after works only in the order by name, with no filter except prefix and label"
                )
                raise FieldError(AFTER.name, Problem.MALFORMED, message)
            request = structs.replace(request, after=call[AFTER])
        listed: list[Keyring] = []
        while True:
            size = min(limit - len(listed), MAX_KEYRINGS_LISTED)
            page = await self._execute(call, structs.replace(request, limit=size))
            uses = zip(page.keyrings, page.last_used_us, strict=True)
            listed += [_listed(keyring, used_us) for keyring, used_us in uses]
            if not page.has_more or len(listed) == limit:
                break
            if request.is_search:
                request = structs.replace(request, offset=request.offset + len(page.keyrings))
            else:
                request = structs.replace(request, after=listed[-1].name)
        has_next = page.has_more and not request.is_search
        return Keyrings(
            keyrings=tuple(listed),
            total=page.total,
            next=listed[-1].name if has_next else UNSET,
        )

    async def get(self, call: ApiCall) -> Keyring:
        """Return a keyring."""
        request = GetKeyring(tenant=call.tenant.tenant, keyring=call[NAME])
        return _keyring((await self._execute(call, request)).keyring)

    async def update(self, call: ApiCall) -> Keyring:
        """Change the fields that are sent; the others keep their values.

        A removed purpose ends immediately, even for existing ciphertexts.
        """
        description, labels, changes, purposes, rotation_days, archive_after_days, *_ = _CHANGES
        *_, decryption, encryption, deletion, retired = _CHANGES
        request = UpdateKeyring(
            tenant=call.tenant.tenant,
            keyring=call[NAME],
            description=call[description],
            labels=call[labels],
            label_changes=call[changes],
            purposes=call[purposes],
            rotation_days=call[rotation_days],
            archive_after_days=_archive_days(call, archive_after_days),
            minimum_decryption_version=call[decryption],
            minimum_encryption_version=call[encryption],
            deletion_allowed=self._deletion_allowed(call, deletion),
            retired_public_keys_allowed=call[retired],
        )
        days = 0
        if request.archive_after_days or is_rehearsal():
            asked = GetKeyring(tenant=request.tenant, keyring=request.keyring)
            days = (await self._execute(call, asked)).keyring.archive_after_days
        changed = (await self._execute(call, request)).keyring
        if request.archive_after_days:
            await self._tell(call, changed, days)
        return _keyring(changed)

    async def delete(self, call: ApiCall) -> Keyring:
        """Delete a keyring.

        An API key needs a scope that names `delete-keyring`, and the keyring `deletion_allowed`.
        Its keys are refused at once. Until `archive_at` the keyring can be restored. Then its
        private keys are destroyed for ever. A new keyring of this name continues the version
        numbers.
        """
        name, days = call[NAME], call[self._delay_days]
        self._access.attribute(call, Operation.DELETE_KEYRING, name, None)
        if name == DEFAULT_KEYRING:
            message = f"{DEFAULT_KEYRING} cannot be deleted: every tenant has it"
            raise FieldError(NAME.name, Problem.MALFORMED, message)
        tenant = call.tenant.tenant
        if is_rehearsal():
            await self._execute(call, GetKeyring(tenant=tenant, keyring=name))
        request = DeleteKeyring(
            tenant=tenant,
            keyring=name,
            days=days,
            only_if_allowed=call.principal.user is None,
        )
        deleted = (await self._execute(call, request)).keyring
        if deleted.archive_at is not None:
            await self._tell_owners(tenant, of_deleted_keyring(name, deleted.archive_at))
        return _keyring(deleted)

    async def restore(self, call: ApiCall) -> Keyring:
        """Restore a deleted keyring with its keys, until their destruction begins.

        An existing keyring does not change.
        """
        request = RestoreKeyring(tenant=call.tenant.tenant, keyring=call[NAME])
        return _keyring((await self._execute(call, request)).keyring)

    async def subject_of_create(self, call: ApiCall) -> Subject | None:
        """Return a new keyring that destroys retired keys; None for other keyrings."""
        days = call[_ARCHIVE_DAYS]
        if not days:
            return None
        name = call[NEW_NAME]
        summary = f"Create the keyring {name}: retired private keys are destroyed after {days} days"
        return Subject(summary, None, Permission.ARCHIVE_KEYS)

    async def subject_of_update(self, call: ApiCall) -> Subject | None:
        """Return a keyring that shall destroy retired keys, or earlier than now; None otherwise."""
        days = call[_ARCHIVE_DAYS]
        if not days:
            return None
        name = call[NAME]
        keyring, state = await self._state(call, name, Operation.UPDATE_KEYRING)
        if 0 < keyring.archive_after_days <= days:
            return None
        summary = f"Change the keyring {name}: retired private keys are destroyed after {days} days"
        return Subject(summary, state, Permission.ARCHIVE_KEYS)

    async def subject_of_delete(self, call: ApiCall) -> Subject:
        """Return the keyring to delete, with the number of its keys."""
        name, days = call[NAME], call[self._delay_days]
        _, state = await self._state(call, name, Operation.DELETE_KEYRING)
        summary = f"Delete the keyring {name}, and destroy its private keys after {days} days"
        return Subject(summary, state, Permission.DELETE_KEYRINGS)

    async def _state(
        self, call: ApiCall, name: KeyringName, operation: Operation
    ) -> tuple[KeyringInfo, object]:
        """Return a keyring, and its settings with the number of its keys. Raises ApiError."""
        self._access.attribute(call, operation, name, None)
        tenant, attribution = call.tenant, call.attribution.under(SECOND_PERSON)
        keys = self._access.keys
        look_up = GetKeyring(tenant=tenant.tenant, keyring=name)
        count = ListKeys(
            tenant=tenant.tenant, keyring=name, algorithm=None, status=None, limit=1, legacy=True
        )
        try:
            keyring = (await keys.execute(look_up, attribution, tenant.placement)).keyring
            total = (await keys.execute(count, attribution, tenant.placement)).total
        except KeyServiceError as refusal:
            raise error_for(operation, refusal, call.values) from None
        return keyring, [keyring, total]

    async def _tell(self, call: ApiCall, keyring: KeyringInfo, before: int) -> None:
        """Tell the owners about a new or changed automatic archiving."""
        days = keyring.archive_after_days
        if days and days != before:
            await self._tell_owners(call.tenant.tenant, of_keyring(keyring.name, days))

    def _deletion_allowed(self, call: ApiCall, field: Field[B]) -> B:
        """Return whether programs may delete the keyring.

        Only a caller with that permission can allow it.
        """
        is_allowed = call[field]
        if is_allowed:
            if not may(call.principal.caller, PERMISSION_OF[Operation.DELETE_KEYRING]):
                raise forbidden(f"{field.name}: only owners and admins may delete keyrings")
            self._access.attribute(call, Operation.DELETE_KEYRING, call[NAME], None)
        return is_allowed

    async def _ask(self, call: ApiCall, request: KeyRequest[R]) -> R:
        """Execute a request of the key service. Raises KeyServiceError."""
        keyring = None if isinstance(request, ListKeyrings) else request.keyring
        attribution = self._access.attribute(call, request.operation, keyring, None)
        return await self._access.keys.execute(request, attribution, call.tenant.placement)

    async def _execute(self, call: ApiCall, request: KeyRequest[R]) -> R:
        """Execute a request of the key service. Raises ApiError."""
        try:
            return await self._ask(call, request)
        except KeyServiceError as refusal:
            raise error_for(request.operation, refusal, call.values) from None


def _purposes_of(call: ApiCall, field: Field[tuple[KeyPurpose, ...]]) -> tuple[KeyPurpose, ...]:
    """Return the purposes of a new keyring. Derived keys only encrypt and decrypt."""
    if not call[DERIVED]:
        return call[field]
    if call.values.get(field.name) is None:
        return DERIVED_PURPOSES
    purposes = call[field]
    if not set(purposes) <= set(DERIVED_PURPOSES):
        message = f"purposes: a keyring with derived keys has {' and '.join(DERIVED_PURPOSES)} only"
        raise FieldError(field.name, Problem.MALFORMED, message)
    return purposes


def _archive_days(call: ApiCall, field: Field[D]) -> D:
    """Return the days until archiving. Only callers that may archive keys can change them."""
    days = call[field]
    if days and not may(call.principal.caller, Permission.ARCHIVE_KEYS):
        raise forbidden("archive_after_days: only owners and admins may archive keys")
    return days


def _listed(keyring: KeyringInfo, used_us: int) -> Keyring:
    """Return a keyring of a list, with its last use."""
    return structs.replace(_keyring(keyring), last_used_at=instant(used_us) if used_us else None)


def _keyring(keyring: KeyringInfo) -> Keyring:
    return Keyring(
        name=keyring.name,
        description=keyring.description,
        labels=keyring.labels,
        purposes=keyring.purposes,
        rotation_days=keyring.rotation_days or None,
        archive_after_days=keyring.archive_after_days or None,
        minimum_decryption_version=keyring.minimum_decryption_version,
        minimum_encryption_version=keyring.minimum_encryption_version,
        first_version=keyring.first_version,
        derived=keyring.derived,
        transit_type=keyring.transit_type or UNSET,
        deletion_allowed=keyring.deletion_allowed,
        retired_public_keys_allowed=keyring.retired_public_keys_allowed,
        created_at=None if keyring.created_at is None else timestamp(keyring.created_at),
        archive_at=UNSET if keyring.archive_at is None else timestamp(keyring.archive_at),
    )

"""/api/v1/rules: the algorithms that a tenant ends for new data and new keys, from a date on.

The key service stores and enforces the rules. It accepts stricter rules only: an operator weakens
one with ``pqkeepd rules``.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from msgspec import Meta

from pqkeep_gateway.access.callers import PERMISSION_OF, Permission
from pqkeep_gateway.api.audit_data import Instant, instant
from pqkeep_gateway.api.errors import KEY_FIELDS, codes_of_operation, error_for
from pqkeep_gateway.api.key_fields import recorded_name_field
from pqkeep_gateway.api.key_operation import KeyAccess
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Subject
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    choice_field,
)
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.outgoing_mail import shown_time
from pqkeep_gateway.rehearsal import is_rehearsal
from pqkeep_protocol.algorithms import ALIASES, Algorithm, Operation
from pqkeep_protocol.audit import MAX_PREVIEWED, PreviewedUse, PreviewRules
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import DeleteRule, KeyRequest, ListRules, PutRule, Rules
from pqkeep_protocol.rules import (
    ALL_KEYRINGS,
    MAX_API_KEY,
    MAX_RULE_EXCEPTIONS,
    MAX_RULE_KEYRINGS,
    RULE_KEYRING,
    WHOLE_USES,
    Rule,
    RuleException,
    RuleUse,
    ended_uses,
)

T = TypeVar("T")

_is_keyring = re.compile(RULE_KEYRING).fullmatch
_LAST = datetime(9999, 12, 31, tzinfo=UTC)
_NO_RULE = "no such rule"


class Profile(StrEnum):
    """Sets of rules by name."""

    CNSA_2_0 = "cnsa-2.0"
    EU_HYBRID = "eu-hybrid"


class Replacement(NamedTuple):
    """One rule of a profile."""

    kind: str
    """The end of the rule's name."""
    algorithms: tuple[Algorithm, ...]
    """The algorithms that the rule ends."""
    successor: Algorithm | None
    uses: tuple[RuleUse, ...] = WHOLE_USES
    """The uses that the rule ends. Uses that the request excludes are left out."""


_SLH_DSA = (
    Algorithm.SLH_DSA_SHA2_128S,
    Algorithm.SLH_DSA_SHA2_128F,
    Algorithm.SLH_DSA_SHA2_192S,
    Algorithm.SLH_DSA_SHA2_256S,
)
PROFILES: Mapping[Profile, tuple[str, tuple[Replacement, ...]]] = {
    Profile.CNSA_2_0: (
        "CNSA 2.0 of the NSA: ML-KEM-1024, ML-DSA-87, HMAC and digests with SHA-512, XAES-256-GCM.",
        (
            Replacement("kem", (Algorithm.ML_KEM_768, Algorithm.X_WING), Algorithm.ML_KEM_1024),
            Replacement(
                "signature",
                (Algorithm.ML_DSA_65, Algorithm.COMPOSITE_ML_DSA, *_SLH_DSA),
                Algorithm.ML_DSA_87,
            ),
            Replacement("hash", (Algorithm.ML_DSA_87,), None, (RuleUse.SIGN_SHA_256,)),
            Replacement("mac", (Algorithm.HMAC_SHA_256,), Algorithm.HMAC_SHA_512),
        ),
    ),
    Profile.EU_HYBRID: (
        "Hybrids, as European agencies recommend: X-Wing, and ML-DSA with ECDSA.",
        (
            Replacement("kem", (Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024), Algorithm.X_WING),
            Replacement(
                "signature",
                (Algorithm.ML_DSA_65, Algorithm.ML_DSA_87, *_SLH_DSA),
                Algorithm.COMPOSITE_ML_DSA,
            ),
        ),
    ),
}
"""The description and the rules of each profile."""


def _algorithm(value: object) -> Algorithm:
    try:
        return ALIASES.get(str(value)) or Algorithm(cast("str", value))
    except ValueError:
        names = ", ".join(Algorithm)
        raise InvalidValueError(f"must be a list of algorithms: {names}") from None


def _keyring(value: object) -> str:
    if not isinstance(value, str) or not _is_keyring(value):
        raise InvalidValueError(_EACH_KEYRING)
    return value


def _use(value: object) -> RuleUse:
    try:
        return RuleUse(cast("str", value))
    except ValueError:
        raise InvalidValueError(_EACH_USE) from None


def _instant(value: object) -> datetime:
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else None
        when = None if when is None or when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        when = None
    if when is None or when.microsecond or when > _LAST:
        raise InvalidValueError(_AN_INSTANT)
    return when


def _exception(value: object) -> RuleException:
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    api_key = fields.get("api_key")
    if fields.keys() != {"api_key", "until"} or type(api_key) is not int:
        raise InvalidValueError(_EACH_EXCEPTION)
    if not 1 <= api_key <= MAX_API_KEY:
        raise InvalidValueError(_EACH_EXCEPTION)
    try:
        return RuleException(api_key, _instant(fields["until"]))
    except InvalidValueError as invalid:
        raise InvalidValueError(f"has an until that {invalid.message}") from None


_AN_INSTANT = "must be a time like 2027-01-01T00:00:00Z, in whole seconds"
_EACH_KEYRING = (
    f"must be a list of 1 to {MAX_RULE_KEYRINGS} keyrings: names, prefixes of names followed by"
    f" {ALL_KEYRINGS}, or {ALL_KEYRINGS}"
)
_EACH_USE = (
    "must be a list of uses that make new data or new keys: "
    + ", ".join(RuleUse)
    + "; a rule never ends reading"
)
_EACH_EXCEPTION = (
    f"must be a list of at most {MAX_RULE_EXCEPTIONS} objects with api_key, the version of an API"
    " key, and until, a time"
)


def _list_field(
    name: str,
    description: str,
    example: Sequence[object],
    items: Mapping[str, object],
    parse: Callable[[object], T],
    *,
    at_most: int,
    at_least: int = 1,
) -> Field[tuple[T, ...]]:
    """Return a field of a list."""

    def parse_all(value: object) -> tuple[T, ...]:
        values = cast("list[object]", value) if isinstance(value, list) else []
        if not isinstance(value, list) or not at_least <= len(values) <= at_most:
            raise InvalidValueError(f"must be a list of {at_least} to {at_most} members")
        found = tuple(map(parse, values))
        if len(set(found)) < len(found):
            raise InvalidValueError("must not name anything twice")
        return found

    return Field(
        name=name,
        description=description,
        schema={"type": "array", "items": items, "minItems": at_least, "maxItems": at_most},
        example=list(example),
        parse=parse_all,
    )


def _in_query(field: Field[T]) -> Field[T]:
    """Return a list as one text in a query, with commas between its members."""
    return replace(
        field,
        description=f"{field.description} Commas separate several.",
        schema={"type": "string", "minLength": 1},
        example=",".join(cast("list[str]", field.example)),
        parse=lambda text: field.parse(text.split(",")),
    )


def _instant_field(name: str, description: str, example: str) -> Field[datetime]:
    schema = {"type": "string", "format": "date-time"}
    return Field(name=name, description=description, schema=schema, example=example, parse=_instant)


NAME = recorded_name_field("name", "The rule's name.", "cnsa-2.0.kem", not_found=_NO_RULE)
NEW_NAME = recorded_name_field("name", "The rule's name.", "cnsa-2.0.kem")
ALGORITHMS = _list_field(
    "algorithms",
    "The algorithms that the rule ends.",
    [Algorithm.ML_KEM_768],
    {"type": "string", "enum": [*Algorithm, *ALIASES]},
    _algorithm,
    at_most=len(Algorithm),
)
KEYRINGS = _list_field(
    "keyrings",
    f"Names of keyrings, and prefixes of names followed by `{ALL_KEYRINGS}`. Left out: all. Only"
    f" `{ALL_KEYRINGS}` covers supplied public keys of others.",
    ["payments.*"],
    {"type": "string", "maxLength": 128},
    _keyring,
    at_most=MAX_RULE_KEYRINGS,
).or_default((ALL_KEYRINGS,))
USES = _list_field(
    "uses",
    "What the rule ends. Left out: everything that makes new data or new keys. `sign` has every"
    " form of signing, `sign-hash-sha-256` only that of such a digest; `generate-key` has import"
    " and rotation.",
    [RuleUse.ENCRYPT, RuleUse.GENERATE_KEY],
    {"type": "string", "enum": list(RuleUse)},
    _use,
    at_most=len(RuleUse),
).or_default(WHOLE_USES)
SUCCESSOR = choice_field(
    "successor",
    "The algorithm to use instead, of the same kind. Scheduled rotations use it after `deny_from`.",
    tuple(Algorithm),
    Algorithm.ML_KEM_1024,
    ALIASES,
).optional()
WARN_FROM = _instant_field(
    "warn_from", "From when responses warn. Left out: never.", "2026-07-01T00:00:00Z"
).optional()
DENY_FROM = _instant_field(
    "deny_from", "From when requests are denied. Left out: never.", "2027-01-01T00:00:00Z"
).optional()
EXCEPTIONS = _list_field(
    "exceptions",
    "API keys for which the rule only warns until a time.",
    [{"api_key": 3, "until": "2027-04-01T00:00:00Z"}],
    {
        "type": "object",
        "properties": {
            "api_key": {"type": "integer", "minimum": 1, "maximum": MAX_API_KEY},
            "until": {"type": "string", "format": "date-time"},
        },
        "required": ["api_key", "until"],
        "additionalProperties": False,
    },
    _exception,
    at_most=MAX_RULE_EXCEPTIONS,
    at_least=0,
).or_default(())
PROFILE = choice_field(
    "profile",
    "The profile with the rules to put. Each rule's name is the profile's, a dot and `kem`,"
    " `signature`, `hash` or `mac`.",
    tuple(Profile),
    Profile.CNSA_2_0,
)
_OF_PROFILE = PROFILE.described("The profile to preview.").optional()
_OF_RULE = NEW_NAME.described("The existing rule to preview.").optional()
_OF_ALGORITHMS = _in_query(ALGORITHMS).optional()
_OF_KEYRINGS, _OF_USES = _in_query(KEYRINGS), _in_query(USES)
_COMMON = (KEYRINGS, USES, WARN_FROM, DENY_FROM, EXCEPTIONS)
_OF_ONE = (ALGORITHMS, SUCCESSOR, *_COMMON)
_PROFILE_TO_PUT = PROFILE.optional()
_UNLESS_PROFILE: tuple[Field[Any], ...] = (
    NEW_NAME.unless(PROFILE),
    ALGORITHMS.unless(PROFILE),
    SUCCESSOR.unless(PROFILE),
)


class ExceptionData(Data, frozen=True, kw_only=True):
    """An API key for which a rule only warns until a time."""

    api_key: Annotated[int, Meta(ge=1, description="The API key's version.")]
    until: Timestamp


class RuleData(Data, frozen=True, kw_only=True):
    """A rule."""

    name: str
    algorithms: Annotated[
        tuple[Algorithm, ...], Meta(description="The algorithms that the rule ends.")
    ]
    keyrings: Annotated[
        tuple[str, ...],
        Meta(description="The keyrings: names, and prefixes of names followed by `*`."),
    ]
    uses: Annotated[tuple[RuleUse, ...], Meta(description="The uses that the rule ends.")]
    successor: Annotated[
        Algorithm | None, Meta(description="The algorithm to use instead, if there is one.")
    ]
    warn_from: Annotated[
        Timestamp | None, Meta(description="The time from which responses warn; null: never.")
    ]
    deny_from: Annotated[
        Timestamp | None, Meta(description="The time from which requests are denied; null: never.")
    ]
    exceptions: tuple[ExceptionData, ...]


class RulesData(Data, frozen=True, kw_only=True):
    """All rules of the tenant, by name."""

    rules: tuple[RuleData, ...]
    revision: Annotated[
        int, Meta(ge=0, description="Counts the changes; `keyring_revision` of their records.")
    ]
    sha256: Annotated[
        str,
        Meta(
            description="SHA-256 of the rules; `public_key_sha256` of the newest change's record."
        ),
    ]


class ProfileRuleData(Data, frozen=True, kw_only=True):
    """A rule of a profile."""

    name: str
    algorithms: Annotated[
        tuple[Algorithm, ...], Meta(description="The algorithms that the rule ends.")
    ]
    uses: Annotated[tuple[RuleUse, ...], Meta(description="The uses that the rule ends.")]
    successor: Algorithm | None


class ProfileData(Data, frozen=True, kw_only=True):
    """A profile: rules without dates."""

    name: Profile
    description: str
    rules: tuple[ProfileRuleData, ...]


class ProfilesData(Data, frozen=True, kw_only=True):
    """All profiles."""

    profiles: tuple[ProfileData, ...]


class PreviewedUseData(Data, frozen=True, kw_only=True):
    """The uses by one principal that a rule would have refused."""

    rule: str
    principal: Annotated[str, Meta(description="The principal, as in the audit log.")]
    keyring: Annotated[
        str | None,
        Meta(description="The keyring; null: a supplied public key that is not the tenant's."),
    ]
    algorithm: Algorithm
    operation: Annotated[
        str,
        Meta(description="The operation, as in the audit log; `re-encrypt-target` for a target."),
    ]
    uses: Annotated[int, Meta(ge=1)]
    first_used_at: Instant
    last_used_at: Instant


class PreviewData(Data, frozen=True, kw_only=True):
    """What a rule would have refused."""

    since: Annotated[Instant, Meta(description="The beginning of the compared days.")]
    refused: tuple[PreviewedUseData, ...]
    incomplete: Annotated[
        bool, Meta(description=f"Whether there is more: at most {MAX_PREVIEWED:,} are shown.")
    ]


_PREVIEWED = "new"
"""The name of a rule that is only previewed."""
EXAMPLE = RuleData(
    name="cnsa-2.0.kem",
    algorithms=(Algorithm.ML_KEM_768, Algorithm.X_WING),
    keyrings=(ALL_KEYRINGS,),
    uses=WHOLE_USES,
    successor=Algorithm.ML_KEM_1024,
    warn_from=timestamp(datetime(2026, 7, 1, tzinfo=UTC)),
    deny_from=timestamp(datetime(2027, 1, 1, tzinfo=UTC)),
    exceptions=(ExceptionData(api_key=3, until=timestamp(datetime(2027, 4, 1, tzinfo=UTC))),),
)
_PREVIEW = PreviewData(
    since=instant(1_782_000_000_000_000),
    refused=(
        PreviewedUseData(
            rule="cnsa-2.0.kem",
            principal="api-key:3/billing",
            keyring="payments.cards",
            algorithm=Algorithm.ML_KEM_768,
            operation=Operation.ENCRYPT,
            uses=1201,
            first_used_at=instant(1_782_000_000_000_000),
            last_used_at=instant(1_782_086_400_000_000),
        ),
    ),
    incomplete=False,
)
_EXAMPLES = RulesData(rules=(EXAMPLE,), revision=3, sha256="5f" * 32)


def rules_of(
    profile: Profile,
    keyrings: tuple[str, ...],
    uses: tuple[RuleUse, ...],
    warn_from: datetime | None,
    deny_from: datetime | None,
    exceptions: tuple[RuleException, ...],
) -> tuple[Rule, ...]:
    """Return the rules of a profile that end one of ``uses``.

    Raises ValueError on contradictory dates.
    """
    asked = ended_uses(uses)
    _, replacements = PROFILES[profile]
    return tuple(
        Rule(
            f"{profile}.{replacement.kind}",
            replacement.algorithms,
            keyrings,
            uses if replacement.uses == WHOLE_USES else replacement.uses,
            replacement.successor,
            warn_from,
            deny_from,
            exceptions,
        )
        for replacement in replacements
        if asked.intersection(replacement.uses)
    )


def endpoints(access: KeyAccess) -> tuple[Endpoint, ...]:
    """Return the endpoints of rules."""
    handlers = _Rules(access)

    def endpoint(
        method: str,
        path: str,
        name: str,
        operation: Operation,
        handler: Callable[[ApiCall], Awaitable[Data]],
        example: Data,
        *fields: Field[Any],
    ) -> Endpoint:
        return Endpoint(
            method=method,
            path=path,
            name=name,
            handler=handler,
            permission=PERMISSION_OF[operation],
            example=example,
            fields=fields,
            field_codes=KEY_FIELDS[operation],
            codes=codes_of_operation(operation),
            recorded_as=operation,
            needs_step_up=operation is not Operation.LIST_RULES,
            subject_of=None if operation is Operation.LIST_RULES else handlers.subject_of,
        )

    reading, putting = Operation.LIST_RULES, Operation.PUT_RULE
    of_all, of_one = "/rules/algorithms", "/rules/algorithms/{name}"
    return (
        endpoint("GET", of_all, "list_rules", reading, handlers.list_, _EXAMPLES),
        endpoint("GET", of_one, "get_rule", reading, handlers.get, EXAMPLE, NAME),
        endpoint("PUT", of_one, "put_rule", putting, handlers.put, EXAMPLE, NEW_NAME, *_OF_ONE),
        endpoint(
            "PUT",
            of_all,
            "put_rules",
            putting,
            handlers.put_several,
            _EXAMPLES,
            *(_PROFILE_TO_PUT, *_UNLESS_PROFILE, *_COMMON),
        ),
        endpoint(
            "DELETE",
            of_one,
            "delete_rule",
            Operation.DELETE_RULE,
            handlers.delete,
            RulesData(rules=(), revision=4, sha256="4f" * 32),
            NAME,
        ),
        Endpoint(
            method="GET",
            path="/rules/preview",
            name="preview_rules",
            handler=handlers.preview,
            permission=Permission.VIEW_INVENTORY,
            example=_PREVIEW,
            fields=(_OF_PROFILE, _OF_RULE, _OF_ALGORITHMS, _OF_KEYRINGS, _OF_USES),
            one_required=True,
            field_codes=KEY_FIELDS[reading],
            codes=codes_of_operation(reading),
        ),
        endpoint(
            "GET",
            "/rules/profiles",
            "list_rule_profiles",
            reading,
            handlers.list_profiles,
            _PROFILES,
        ),
    )


class _Rules:
    """The handlers."""

    def __init__(self, access: KeyAccess) -> None:
        self._access = access

    async def list_(self, call: ApiCall) -> RulesData:
        """List all rules by name."""
        return _shown(await self._list(call))

    async def get(self, call: ApiCall) -> RuleData:
        """Return a rule."""
        return _rule_data(_found((await self._list(call)).rules, call[NAME]))

    async def put(self, call: ApiCall) -> RuleData:
        """Create a rule, or make it stricter.

        The key service enforces it at once. A change that would weaken a rule is 403: only an
        operator can do that, with `pqkeepd rules`.
        """
        rule = _rule(call[NEW_NAME], call)
        return _rule_data(_found((await self._put(call, rule.name, rule)).rules, rule.name))

    async def put_several(self, call: ApiCall) -> RulesData:
        """Create the rules of a profile, or the rule that `name` names, or make them stricter.

        The rules of a profile are one change: all are put, or none is.
        """
        profile = call[_PROFILE_TO_PUT]
        for field in _UNLESS_PROFILE:
            field.read(call.values)
        if profile is not None:
            put = await self._put(call, profile, *_rules_of_profile(profile, call))
        else:
            put = await self._put(call, call[NEW_NAME], _rule(call[NEW_NAME], call))
        return _shown(put)

    async def delete(self, call: ApiCall) -> RulesData:
        """Delete a rule without dates, or one that another rule covers. Return the remaining rules.

        Any other rule can be deleted only by an operator, with `pqkeepd rules`.
        """
        name = call[NAME]
        if is_rehearsal():
            _found((await self._list(call)).rules, name)
        return _shown(await self._execute(call, DeleteRule(tenant=call.tenant.tenant, name=name)))

    async def subject_of(self, call: ApiCall) -> Subject:
        """Return the rules before a change of one or several."""
        begin = call[DENY_FROM]
        when = "" if begin is None else shown_time(begin)
        profile = call.values.get(_PROFILE_TO_PUT.name)
        if profile is not None:
            summary = f"Put the rules of the profile {profile}"
            if when:
                summary = f"Put the rules of the profile {profile}, which deny from {when} on"
        elif call.values.keys() == {NAME.name}:
            name = call[NAME]
            summary = f"Delete the rule {name}"
        else:
            name, algorithms = call[NEW_NAME], call[ALGORITHMS]
            ended = ", ".join(algorithms)
            summary = f"Put the rule {name}, which ends {ended}"
            if when:
                summary = f"Put the rule {name}, which ends {ended} from {when} on"
        rules = await self._list(call)
        return Subject(
            summary, [rules.revision, rules.sha256.hex()], PERMISSION_OF[Operation.PUT_RULE]
        )

    async def list_profiles(self, call: ApiCall) -> ProfilesData:
        """List the profiles: sets of rules that can be put by name."""
        self._access.attribute(call, Operation.LIST_RULES, None, None)
        return _PROFILES

    async def preview(self, call: ApiCall) -> PreviewData:
        """Return what a rule would have refused in the last 30 days, most uses first.

        Send `name` for an existing rule, `profile` for its rules, or `algorithms` for a new rule.
        Several are compared together, and a use counts for the first. The dates of a rule do not
        count. Uses are counted by time, without the hash function of `sign-hash`, so a rule that
        ends one hash function shows all.
        """
        profile, name, algorithms = call[_OF_PROFILE], call[_OF_RULE], call[_OF_ALGORITHMS]
        keyrings, uses = call[_OF_KEYRINGS], call[_OF_USES]
        rules: list[Rule] = []
        if name is not None:
            rules.append(_found((await self._list(call)).rules, name))
        if profile is not None:
            rules += rules_of(profile, keyrings, uses, None, None, ())
        if algorithms is not None:
            rules.append(Rule(_PREVIEWED, algorithms, keyrings, uses))
        if not rules:
            message = "algorithms is required, or name, or profile"
            raise FieldError(ALGORITHMS.name, Problem.MISSING, message)
        request = PreviewRules(tenant=call.tenant.tenant, rules=tuple(rules))
        try:
            found = await self._access.keys.execute(
                request, call.attribution, call.tenant.placement
            )
        except KeyServiceError as refusal:
            raise error_for(Operation.LIST_RULES, refusal, call.values) from None
        return PreviewData(
            since=instant(found.since_us),
            refused=tuple(map(_previewed, found.uses)),
            incomplete=found.has_more,
        )

    async def _list(self, call: ApiCall) -> Rules:
        return await self._execute(call, ListRules(tenant=call.tenant.tenant))

    async def _put(self, call: ApiCall, name: str, *rules: Rule) -> Rules:
        """Put rules as one change, and return all rules of the tenant. Raises ApiError."""
        return await self._execute(call, PutRule(tenant=call.tenant.tenant, name=name, rules=rules))

    async def _execute(self, call: ApiCall, request: KeyRequest[Rules]) -> Rules:
        """Execute a request of the key service. Raises ApiError."""
        attribution = self._access.attribute(call, request.operation, None, None)
        try:
            return await self._access.keys.execute(request, attribution, call.tenant.placement)
        except KeyServiceError as refusal:
            raise error_for(request.operation, refusal, call.values) from None


def _previewed(use: PreviewedUse) -> PreviewedUseData:
    return PreviewedUseData(
        rule=use.rule,
        principal=use.principal,
        keyring=use.keyring,
        algorithm=use.algorithm,
        operation=use.operation,
        uses=use.uses,
        first_used_at=instant(use.first_used_us),
        last_used_at=instant(use.last_used_us),
    )


def _rule(name: str, call: ApiCall) -> Rule:
    """Return the rule of a call. Raises FieldError."""
    keyrings, uses, warn_from, deny_from, exceptions = _common(call)
    algorithms, successor = call[ALGORITHMS], call[SUCCESSOR]
    return _checked(
        lambda: Rule(name, algorithms, keyrings, uses, successor, warn_from, deny_from, exceptions)
    )


def _common(
    call: ApiCall,
) -> tuple[
    tuple[str, ...],
    tuple[RuleUse, ...],
    datetime | None,
    datetime | None,
    tuple[RuleException, ...],
]:
    """Return the fields that the rules of a profile share. Raises FieldError."""
    return call[KEYRINGS], call[USES], call[WARN_FROM], call[DENY_FROM], call[EXCEPTIONS]


def _rules_of_profile(profile: Profile, call: ApiCall) -> tuple[Rule, ...]:
    """Return the rules of a profile with the fields of a call. Raises FieldError."""
    common = _common(call)
    return _checked(lambda: rules_of(profile, *common))


def _checked(make: Callable[[], T]) -> T:
    """Return rules. A contradiction raises FieldError; its message begins with the field."""
    try:
        return make()
    except ValueError as error:
        message = str(error)
        raise FieldError(message.partition(" ")[0], Problem.MALFORMED, message) from None


def _found(rules: Iterable[Rule], name: str) -> Rule:
    """Return a rule by name. Raises ApiError."""
    for rule in rules:
        if rule.name == name:
            return rule
    raise error_for(Operation.LIST_RULES, KeyServiceError(ErrorKind.RULE_NOT_FOUND))


def _shown(rules: Rules) -> RulesData:
    return RulesData(
        rules=tuple(map(_rule_data, rules.rules)),
        revision=rules.revision,
        sha256=rules.sha256.hex(),
    )


def _rule_data(rule: Rule) -> RuleData:
    return RuleData(
        name=rule.name,
        algorithms=rule.algorithms,
        keyrings=rule.keyrings,
        uses=rule.uses,
        successor=rule.successor,
        warn_from=None if rule.warn_from is None else timestamp(rule.warn_from),
        deny_from=None if rule.deny_from is None else timestamp(rule.deny_from),
        exceptions=tuple(
            ExceptionData(api_key=exception.api_key, until=timestamp(exception.until))
            for exception in rule.exceptions
        ),
    )


_PROFILES = ProfilesData(
    profiles=tuple(
        ProfileData(
            name=profile,
            description=description,
            rules=tuple(
                ProfileRuleData(
                    name=f"{profile}.{replacement.kind}",
                    algorithms=replacement.algorithms,
                    uses=replacement.uses,
                    successor=replacement.successor,
                )
                for replacement in replacements
            ),
        )
        for profile, (description, replacements) in PROFILES.items()
    )
)

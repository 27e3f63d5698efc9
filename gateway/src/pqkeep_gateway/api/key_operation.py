"""Key operations as endpoints.

algorithm -> scopes -> policy -> quota -> other fields -> key service -> response
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from msgspec import UNSET, Struct, UnsetType, structs

from pqkeep_gateway.access.callers import PERMISSION_OF
from pqkeep_gateway.access.policy import Allowed, Policy
from pqkeep_gateway.access.principals import GRANTS, Grant, TenantPrincipal
from pqkeep_gateway.access.rate_limit import ConcurrencyLimit
from pqkeep_gateway.access.scopes import (
    NAMED_ONLY,
    ScopeDeniedError,
    algorithms_in_scope,
    check_named,
    check_scope,
    keyrings_in_scope,
    other_algorithms_in_scope,
)
from pqkeep_gateway.api.errors import (
    CHANGE_PLAN,
    KEY_FIELDS,
    codes_of_operation,
    denied_by,
    error_for,
)
from pqkeep_gateway.api.key_fields import (
    ACTIVE_KEY_VERSION,
    CAMPAIGN,
    KEM_CIPHERTEXT_SIZE,
    KEY_VERSION,
    KEYRING,
    KeyResponse,
    algorithm_field,
    keyring_named,
    naming,
)
from pqkeep_gateway.http.body import STRICT_JSON
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Existing, Question, Subject, Warned
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    decode_base64,
    kind_of,
    text_form_of,
)
from pqkeep_gateway.rehearsal import is_rehearsal
from pqkeep_gateway.shards import Placement, TenantKeyService
from pqkeep_gateway.storage.campaigns import (
    Campaign,
    CampaignClosedError,
    CampaignNotFoundError,
    CampaignState,
    NotInCampaignError,
    SqlCampaigns,
    Target,
)
from pqkeep_gateway.tenancy.approvals import POLICY as SECOND_PERSON
from pqkeep_gateway.tenancy.quota import Quotas, QuotaUsedUpError
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.der import form_of
from pqkeep_protocol.envelopes import Header
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import KeyringPatterns
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyringName, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    MAX_KEYS_LISTED,
    Attribution,
    Idempotency,
    KeyPosition,
    KeyResult,
    Keys,
    ListKeys,
    ListPublicKeys,
    RedactedRepr,
    ReEncrypt,
    Request,
    Wrap,
)
from pqkeep_protocol.public_keys import (
    DO_NOT_SEND,
    MAX_TEXT,
    NotAPublicKeyError,
    from_der,
    from_jwk,
    from_pem,
)

R = TypeVar("R")
T = TypeVar("T")

LONG_LISTS, LONG_LISTS_IN_ALL = 2, 6
"""The concurrent lists longer than one page, per tenant and in total. A list of 10,000 public keys
needs some 75 MB."""
CAMPAIGN_ERRORS = (CampaignNotFoundError, CampaignClosedError, NotInCampaignError)
MAX_NAME = 128
"""Characters of the policy names in a record."""


class KeyCall(RedactedRepr, Struct, frozen=True):
    """A permitted call, for one algorithm in one keyring of a tenant."""

    call: ApiCall
    principal: TenantPrincipal
    grant: Grant
    algorithm: Algorithm
    keyring: KeyringName
    attribution: Attribution
    keys: TenantKeyService

    @property
    def tenant(self) -> TenantId:
        """The tenant of the keys."""
        return self.principal.tenant

    @property
    def idempotency(self) -> Idempotency | None:
        """The digests of the Idempotency-Key, if the operation takes one."""
        return self.call.idempotency

    def within(self, operation: Operation, public_key: bytes | None) -> KeyringPatterns | None:
        """Return the keyrings from which a supplied key of the tenant may come; None: all."""
        if public_key is None:
            return None
        return keyrings_in_scope(self.principal.scopes, operation, self.algorithm)

    def other_algorithms(self, operation: Operation) -> tuple[Algorithm, ...] | None:
        """Return the other algorithms with which to try a ciphertext; None: all."""
        return other_algorithms_in_scope(
            self.principal.scopes, operation, self.keyring, self.algorithm
        )

    def __getitem__(self, field: Field[T]) -> T:
        """Return a field's value. Raises FieldError."""
        values = self.call.values
        if field.required or field.name in values:
            return field.read(values)
        return cast("T", field.default)

    async def execute(self, request: Request[R]) -> R:
        """Execute a request of the key service on the keyring. Raises KeyServiceError."""
        if self.keyring != DEFAULT_KEYRING:
            request = structs.replace(request, keyring=self.keyring)
        return await self.keys.execute(request, self.attribution, self.principal.placement)

    async def rehearse(self, look_up: Request[R]) -> R | None:
        """In a rehearsal, look up the key to change; otherwise do nothing.

        Raises KeyServiceError.
        """
        return await self.execute(look_up) if is_rehearsal() else None


@dataclass(frozen=True, slots=True)
class KeyOperation:
    """One row: an operation of the key service over HTTP."""

    method: str
    path: str
    operation: Operation
    ask: "Ask | None" = None
    """Returns the request to the key service. Its docstring is the text of the reference."""
    response: "ResponseTo | None" = None
    """Returns the response from the request and its result, or from one of ``outcomes``."""
    default: Algorithm | None = None
    """The algorithm if the call names none; None: the request must name one."""
    header: Field[Header] | None = None
    """The envelope field. When it is present, ``algorithm`` may be omitted."""
    status: int = 200
    may_exist: bool = False
    """Whether it can return an existing key, if the request allows that."""
    idempotent: bool = False
    of_key_pairs: bool = False
    """Whether it has no meaning for symmetric keys."""
    needs_step_up: bool = False
    subject_of: "Callable[[KeyCall], Awaitable[Subject]] | None" = None
    """Returns what a second person must approve; see ``Endpoint.subject_of``."""
    denial: Callable[[], ApiError] | None = None
    target: "Callable[[ApiCall, KeyringName, Algorithm], TargetUse] | None" = None
    """Returns the use of a second key, from the keyring and algorithm of the first."""
    outcomes: frozenset[ErrorKind] = frozenset()
    """Refusals of the key service that ``response`` receives instead of a result."""
    handler: Callable[[KeyCall], Awaitable[KeyResponse | Warned]] | None = None
    """Replaces ``ask`` and ``response`` if one request is not enough."""
    name: str = field(kw_only=True)
    example: KeyResponse = field(kw_only=True)
    fields: tuple[Field[Any], ...] = field(kw_only=True)
    """The fields besides ``algorithm`` and ``keyring``."""

    @property
    def algorithm(self) -> Field[Algorithm]:
        """The field ``algorithm``."""
        named = algorithm_field(self.operation, of_key_pairs=self.of_key_pairs)
        return named if self.default is None else named.or_default(self.default)


Ask = Callable[[KeyCall], Request[Any]]
ResponseTo = Callable[[ApiCall, Any, Any], KeyResponse | Existing]


class TargetUse(NamedTuple):
    """The use of a second key by an operation."""

    operation: Operation
    """The operation that the policies check."""
    keyring: KeyringName
    algorithm: Algorithm


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """The checks before the use of keys, and the key service."""

    policy: Policy
    quotas: Quotas
    keys: TenantKeyService
    campaigns: SqlCampaigns
    long_lists: ConcurrencyLimit = field(
        default_factory=partial(ConcurrencyLimit, LONG_LISTS, LONG_LISTS_IN_ALL), kw_only=True
    )

    async def pages(
        self,
        request: ListKeys | ListPublicKeys,
        attribution: Attribution,
        placement: Placement,
        at_most: int,
    ) -> AsyncGenerator[Keys, None]:
        """Yield pages with at most ``at_most`` keys. A caller that stops early must close it.

        Raises KeyServiceError, and OverloadedError if too many long lists are in progress.
        """
        page = await self._page(request, attribution, placement, at_most)
        yield page
        left = at_most - len(page.keys)
        if left and page.has_more:
            with self.long_lists.run(request.tenant):
                while left and page.has_more:
                    last = page.keys[-1]
                    after = KeyPosition(last.algorithm, last.version, last.keyring)
                    following = structs.replace(request, after=after)
                    page = await self._page(following, attribution, placement, left)
                    yield page
                    left -= len(page.keys)

    async def _page(
        self,
        request: ListKeys | ListPublicKeys,
        attribution: Attribution,
        placement: Placement,
        at_most: int,
    ) -> Keys:
        limited = structs.replace(request, limit=min(at_most, MAX_KEYS_LISTED))
        return await self.keys.execute(limited, attribution, placement)

    async def campaigns_of(
        self, tenant: TenantId, requests: Iterable[Request[Any]]
    ) -> Mapping[str, Campaign]:
        """Return the campaigns that requests name, by name. Missing campaigns are left out.

        Raises UnavailableError.
        """
        names = {name for request in requests if (name := _campaign_named(request)) is not None}
        return await self.campaigns.find(tenant, names) if names else {}

    def grant(
        self,
        principal: TenantPrincipal,
        operation: Operation,
        algorithm: Algorithm,
        keyring: KeyringName,
    ) -> Grant:
        """Check scopes and policy for a key, and cache the grant for the principal.

        Raises ScopeDeniedError, and ApiError if a policy denies it.
        """
        check_scope(principal.scopes, operation, keyring, algorithm)
        policy = self._policy(principal, operation, algorithm)
        grant = Grant(policy, self.quotas.counts(principal, operation))
        grants = principal.decided.grants
        if len(grants) >= GRANTS:
            grants.clear()
        grants[operation, algorithm, keyring] = grant
        return grant

    def attribute(
        self,
        call: ApiCall,
        operation: Operation,
        keyring: KeyringName | None,
        algorithm: Algorithm | None,
    ) -> Attribution:
        """Check scopes and policy; return the attribution with the policy's name.

        Raises ScopeDeniedError, and ApiError if a policy denies it.
        """
        check_scope(call.principal.scopes, operation, keyring, algorithm)
        if operation in NAMED_ONLY and call.principal.user is None:
            check_named(call.principal.scopes, operation, keyring)
        return call.attribution.under(self._policy(call.tenant, operation, algorithm))

    def attribute_some(
        self,
        call: ApiCall,
        operation: Operation,
        keyring: KeyringName,
        algorithms: Iterable[Algorithm],
    ) -> tuple[Attribution, tuple[Algorithm, ...]]:
        """Check several algorithms like ``attribute``; return the attribution and the allowed ones.

        Raises ScopeDeniedError if none is allowed, and ApiError if a policy denies it.
        """
        within = algorithms_in_scope(call.principal.scopes, operation, keyring, algorithms)
        return call.attribution.under(self._policy(call.tenant, operation, None)), within

    def attribute_target(
        self, call: ApiCall, operation: Operation, target: TargetUse, source: Attribution
    ) -> Attribution:
        """Check scopes and policy for the second key too; return the attribution of both.

        The scopes must allow the operation itself on both keys. Raises the errors of ``attribute``.
        They are recorded with the second key's keyring and algorithm, and without a version.
        """
        try:
            check_scope(call.principal.scopes, operation, target.keyring, target.algorithm)
            policy = self._policy(call.tenant, target.operation, target.algorithm)
        except ScopeDeniedError as error:
            raise ScopeDeniedError(error.algorithm, target.keyring, operation=operation) from None
        except ApiError as error:
            error.keyring = target.keyring
            raise
        both = f"{source.policy} and {policy}"
        return source.under(both if len(both) <= MAX_NAME else policy)

    def _policy(
        self, principal: TenantPrincipal, operation: Operation, algorithm: Algorithm | None
    ) -> str:
        decision = self.policy.decide(principal.entitlements, operation, algorithm)
        if isinstance(decision, Allowed):
            return decision.policy
        plans = ", ".join(self.policy.plans_that_allow(operation, algorithm)) or "none"
        raise denied_by(decision.policy, algorithm, f"plans that allow it: {plans}; {CHANGE_PLAN}")


class Steps:
    """The steps of an endpoint, in the order of the module's docstring."""

    def __init__(self, row: KeyOperation, access: KeyAccess) -> None:
        self._row = row
        self._access = access
        self._algorithm = row.algorithm

    def allow(self, call: ApiCall) -> KeyCall:
        """Return a call that scopes and policies allow.

        Raises FieldError, ScopeDeniedError, and ApiError if a policy denies it.
        """
        row, access, principal = self._row, self._access, call.tenant
        algorithm, keyring = _key_named(row, self._algorithm, call)
        grant = principal.decided.grants.get((row.operation, algorithm, keyring))
        if grant is None:
            grant = access.grant(principal, row.operation, algorithm, keyring)
        attribution = call.attribution.under(grant.policy)
        if row.target is not None:
            target = row.target(call, keyring, algorithm)
            attribution = access.attribute_target(call, row.operation, target, attribution)
        return KeyCall(call, principal, grant, algorithm, keyring, attribution, access.keys)

    def question(self, call: KeyCall) -> Question:
        """Read the remaining fields; return the request to the key service. Raises FieldError."""
        request = cast("Ask", self._row.ask)(call)
        if call.keyring != DEFAULT_KEYRING:
            request = structs.replace(request, keyring=call.keyring)
        return Question(request, call.attribution, call.principal.placement)

    def ask(self, call: ApiCall) -> Question | None:
        """Return the request of a call; None if something must be read or counted first."""
        allowed = self.allow(call)
        names_campaign = self._row.target is not None and call.values.get(CAMPAIGN.name) is not None
        is_first = allowed.grant.is_counted or names_campaign
        return None if is_first else self.question(allowed)

    def ask_uncounted(self, call: ApiCall) -> Question:
        """Return the request of a call; the caller counts its operation."""
        return self.question(self.allow(call))

    def respond(
        self, call: ApiCall, question: Question, outcome: object
    ) -> Data | Existing | Warned:
        """Return the response for the key service's outcome. Raises ApiError."""
        row, request = self._row, question.request
        overwrite(request)
        if isinstance(outcome, KeyServiceError):
            if outcome.kind not in row.outcomes:
                raise error_for(row.operation, outcome, call.values) from None
            outcome = outcome.kind
        response = cast("ResponseTo", row.response)(call, request, outcome)
        named = response if row.target is not None else _named(response, call.values)
        notice = getattr(outcome, "notice", None)
        return named if notice is None else Warned(named, notice)

    async def handle(self, call: ApiCall) -> Data | Existing | Warned:
        """Handle a call. A counted operation is counted before its request."""
        allowed = self.allow(call)
        if not allowed.grant.is_counted:
            return await self._work(allowed)
        try:
            return await self._access.quotas.spend(
                allowed.principal, self._row.operation, lambda: self._work(allowed)
            )
        except QuotaUsedUpError:
            raise denied_by(
                "monthly-allowance",
                allowed.algorithm,
                f"the monthly quota is used up; {CHANGE_PLAN}",
            ) from None

    async def subject(self, call: ApiCall) -> Subject | None:
        """Return what a second person must approve. Raises the errors of ``handle``."""
        if self._row.subject_of is None:
            return None
        allowed = self.allow(call)
        asking = structs.replace(allowed, attribution=allowed.attribution.under(SECOND_PERSON))
        try:
            return await self._row.subject_of(asking)
        except KeyServiceError as refusal:
            raise error_for(self._row.operation, refusal, call.values) from None

    async def _work(self, allowed: KeyCall) -> Data | Existing | Warned:
        row, values = self._row, allowed.call.values
        if row.handler is not None:
            try:
                response = await row.handler(allowed)
            except KeyServiceError as refusal:
                raise error_for(row.operation, refusal, values) from None
            if isinstance(response, Warned):
                named = _named(cast("KeyResponse", response.response), values)
                return replace(response, response=named)
            return _named(response, values)
        question = self.question(allowed)
        request = question.request
        require_campaign(request, await self._access.campaigns_of(request.tenant, [request]))
        outcome: object
        try:
            outcome = await self._access.keys.execute(*question)
        except KeyServiceError as refusal:
            # Without this frame, which holds the request.
            outcome = KeyServiceError(refusal.kind, refusal.notice)
        except BaseException:
            overwrite(question.request)
            raise
        return self.respond(allowed.call, question, outcome)


def _campaign_named(request: Request[Any]) -> str | None:
    return request.campaign if isinstance(request, ReEncrypt) else None


def require_campaign(request: Request[Any], campaigns: Mapping[str, Campaign]) -> None:
    """Check that a request belongs to the campaign that it names, and that the campaign is open.

    ``campaigns``: see ``KeyAccess.campaigns_of``. Raises CampaignNotFoundError,
    CampaignClosedError, NotInCampaignError.
    """
    if not isinstance(request, ReEncrypt) or request.campaign is None:
        return
    campaign = campaigns.get(request.campaign)
    if campaign is None:
        raise CampaignNotFoundError
    if campaign.state is CampaignState.CLOSED:
        raise CampaignClosedError
    if not (
        campaign.has_source(request.keyring, request.algorithm, request.version)
        and campaign.target == Target(request.target.keyring, request.target.algorithm)
    ):
        raise NotInCampaignError


def overwrite(request: object) -> None:
    """Overwrite the secret of a request that is no longer needed, if it is in a buffer."""
    if type(request) is Wrap and isinstance(request.symmetric_key, bytearray):
        request.symmetric_key[:] = bytes(len(request.symmetric_key))


def endpoint(row: KeyOperation, access: KeyAccess) -> Endpoint:
    """Return the endpoint of a row."""
    steps = Steps(row, access)

    async def handler(call: ApiCall) -> Data | Existing | Warned:
        return await steps.handle(call)

    handler.__doc__ = (row.handler or row.ask).__doc__
    is_pair = row.ask is not None
    return Endpoint(
        method=row.method,
        path=row.path,
        name=row.name,
        handler=handler,
        permission=PERMISSION_OF[row.operation],
        example=row.example,
        fields=(*row.fields, row.algorithm, KEYRING),
        field_codes=KEY_FIELDS[row.operation],
        codes=codes_of_operation(row.operation),
        errors=() if row.target is None else CAMPAIGN_ERRORS,
        status=row.status,
        may_exist=row.may_exist,
        recorded_as=row.operation,
        idempotent=row.idempotent,
        needs_step_up=row.needs_step_up,
        subject_of=None if row.subject_of is None else steps.subject,
        default_algorithm=row.default,
        algorithm_elsewhere="" if row.header is None else row.header.name,
        keyring_of=partial(_keyring_named, row.header),
        key_version_of=None if row.header is None else partial(_version_named, row.header),
        denial=row.denial,
        ask=steps.ask if is_pair else None,
        response=steps.respond if is_pair else None,
    )


def warned(response: KeyResponse, result: KeyResult) -> KeyResponse | Warned:
    """Return a handler's response, with a notice about its result if there is one."""
    return response if result.notice is None else Warned(response, result.notice)


def _named(response: KeyResponse | Existing, values: Mapping[str, object]) -> Data | Existing:
    if isinstance(response, Existing):
        return Existing(naming(cast("KeyResponse", response.data), values))
    return naming(response, values)


def _keyring_named(header: Field[Header] | None, values: Mapping[str, object]) -> KeyringName:
    """Return the keyring of the fields or of the envelope's header. Raises FieldError."""
    if header is None or values.get(header.name) is None:
        return keyring_named(values)
    return header.read(values).keyring


def _version_named(header: Field[Header], values: Mapping[str, object]) -> int | None:
    """Return the version of the envelope's header or of the field. Raises FieldError."""
    if values.get(header.name) is None:
        return cast("int | None", values.get("key_version"))
    return header.read(values).version


def _key_named(
    row: KeyOperation, algorithm_of: Field[Algorithm], call: ApiCall
) -> tuple[Algorithm, KeyringName]:
    """Return the key of the fields or of the envelope's header. Raises FieldError."""
    keyring = call[KEYRING]
    if row.header is None or call.values.get(row.header.name) is None:
        return call[algorithm_of], keyring or DEFAULT_KEYRING
    header = call[row.header]
    for name, said, is_s in (
        ("algorithm", call[algorithm_of], header.algorithm),
        ("keyring", keyring, header.keyring),
    ):
        if call.values.get(name) is not None and said != is_s:
            raise FieldError(
                name, Problem.MALFORMED, f"{name} differs from the {name} in {row.header.name}"
            )
    return header.algorithm, header.keyring


_PEM = "-----BEGIN"
_SSH = ("ssh-", "ecdsa-sha2-", "sk-")
_MUST = "must be a public key: base64 of its bytes or of its DER, PEM, a certificate, or a JWK"
_OTHER_SIZES: Mapping[int, str] = {
    800: "a public key of ML-KEM-512",
    1312: "a public key of ML-DSA-44",
    1632: "a private key of ML-KEM-512",
    2400: "a private key of ML-KEM-768",
    3168: "a private key of ML-KEM-1024",
    2560: "a private key of ML-DSA-44",
    4032: "a private key of ML-DSA-65",
    4896: "a private key of ML-DSA-87",
}
"""Sizes of keys that are not supported public keys (FIPS 203 and 204)."""


@dataclass(frozen=True, slots=True)
class SuppliedKey:
    """A public key. A document names its algorithm; base64 of the bare bytes does not."""

    algorithm: Algorithm | None
    data: bytes

    def bytes_for(self, algorithm: Algorithm) -> bytes:
        """Return the key in the encoding of the algorithm's standard. Raises FieldError."""
        if self.algorithm is not None and self.algorithm is not algorithm:
            message = f"public_key is a key of {self.algorithm}, not of {algorithm}"
            raise FieldError("algorithm", Problem.MALFORMED, message)
        if ALGORITHMS[algorithm].is_symmetric:
            message = (
                f"{algorithm} has no public keys; send one of {', '.join(KEM_CIPHERTEXT_SIZE)}"
            )
            raise FieldError("algorithm", Problem.MALFORMED, message)
        if ALGORITHMS[algorithm].is_legacy:
            message = f"{algorithm} verifies only with an imported key; send its key_version"
            raise FieldError("algorithm", Problem.MALFORMED, message)
        size, sent = ALGORITHMS[algorithm].public_key_size, len(self.data)
        if sent != size:
            message = f"public_key must have {size:,} bytes for {algorithm}; it has {sent:,}"
            raise FieldError("public_key", Problem.MALFORMED, message + _meaning_of(sent))
        return self.data


def _meaning_of(size: int) -> str:
    """Return a hint about a key of this size, or an empty text."""
    same = [algorithm for algorithm, spec in ALGORITHMS.items() if spec.public_key_size == size]
    if same:
        return f", as one of {' or '.join(same)}"
    other = _OTHER_SIZES.get(size, "")
    warning = f": {DO_NOT_SEND}" if other.startswith("a private") else ""
    return other and f", as {other}{warning}"


def _parse(value: object) -> SuppliedKey:
    try:
        if isinstance(value, dict):
            return SuppliedKey(*from_jwk(cast("dict[str, object]", value)))
        if isinstance(value, str):
            return _in_text(value)
    except NotAPublicKeyError as error:
        raise InvalidValueError(f"{_MUST}; it is {error}") from None
    raise InvalidValueError(f"{_MUST}, not {kind_of(value)}")


def _in_text(value: str) -> SuppliedKey:
    """Return the key in a text. Raises NotAPublicKeyError and InvalidValueError."""
    if len(value) > MAX_TEXT:
        raise NotAPublicKeyError(f"longer than {MAX_TEXT:,} characters")
    text = value.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip()
    if not text:
        raise NotAPublicKeyError("empty")
    if _PEM in text:
        return SuppliedKey(*from_pem(text))
    if text.startswith("{"):
        return SuppliedKey(*from_jwk(_object_in(text)))
    if text.startswith(_SSH):
        raise NotAPublicKeyError("a public key of OpenSSH")
    data = decode_base64(value)
    is_bare = any(len(data) == spec.public_key_size for spec in ALGORITHMS.values())
    form = text_form_of(text)
    if form and not is_bare:
        raise InvalidValueError(f"{_MUST}; {form}")
    if is_bare or not form_of(memoryview(data)):
        return SuppliedKey(None, data)
    return SuppliedKey(*from_der(data))


def _object_in(text: str) -> Mapping[str, object]:
    try:
        value = STRICT_JSON.decode(text)
    except FieldError as twice:
        raise NotAPublicKeyError(f"JSON in which {twice.message}") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise NotAPublicKeyError("no JSON")
    return cast("Mapping[str, object]", value)


PUBLIC_KEY: Field[SuppliedKey | None] = Field(
    name="public_key",
    description="A public key to use instead of one of your own: base64 of its bytes or of its"
    " DER (SubjectPublicKeyInfo), PEM, a certificate (only its key is used; "
    "nothing is verified), or a JWK as an object or text. The response has no "
    "`key_version`. One of your own keys must be usable by its version too.",
    schema={"type": ["string", "object"], "maxLength": MAX_TEXT},
    example="MIIHsjALBglghkgBZQMEAxIDggehAA==",
    parse=_parse,
    required=False,
)

KEY_VERSION_OR_KEY = KEY_VERSION.unless(PUBLIC_KEY)
ACTIVE_KEY_VERSION_OR_KEY = ACTIVE_KEY_VERSION.unless(PUBLIC_KEY)


def key_of(call: KeyCall) -> bytes | None:
    """Return the public key in a call; None without a keyring. Raises FieldError."""
    supplied = call[PUBLIC_KEY]
    return None if supplied is None else supplied.bytes_for(call.algorithm)


def version_of(version: KeyVersion | None) -> KeyVersion | UnsetType:
    """Return the used version in a response's form."""
    return UNSET if version is None else version

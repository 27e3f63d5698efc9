"""Workload identity: issuers of tokens, roles, and the exchange of a token for an API key.

The exchange has the names of RFC 8693. Its response is an API key, so it is sent as X-API-Key.
"""

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal, cast
from uuid import UUID

import msgspec
from msgspec import Meta

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.api.api_key_fields import (
    ALLOW_ABSENT_KEYRINGS,
    REQUIRED_SCOPES,
    ScopeData,
    require_keyrings,
    shown_scopes,
)
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS, KEY_SERVICE_OUTAGE
from pqkeep_gateway.api.key_fields import recorded_name_field
from pqkeep_gateway.api.tenants import TENANT, visible_tenant
from pqkeep_gateway.delivery.issuer_keys import check_issuer
from pqkeep_gateway.delivery.public_addresses import PublicAddresses
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Existing
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    choice_field,
    integer_field,
    text_field,
)
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.signed_tokens import (
    MAX_TOKEN,
    PREFIX,
    Condition,
    InvalidKeySetError,
    InvalidTokenError,
    RefusedTokenError,
    keys_in,
)
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.storage.workloads import (
    Issuer,
    IssuerNotFoundError,
    Role,
    RoleNotFoundError,
    TooManyExchangesError,
    TooManyIssuersError,
    TooManyRolesError,
)
from pqkeep_gateway.tenancy.workloads import (
    MAX_LIFETIME,
    MIN_LIFETIME,
    UntrustedTokenError,
    Workloads,
)
from pqkeep_gateway.webhooks import InvalidUrlError
from pqkeep_protocol.algorithms import GivenKeyAlgorithm
from pqkeep_protocol.keys import TenantId

MAX_URL = 512
MAX_JWKS = 12 * 1024
"""Characters of a set of keys in a request."""
MAX_CLAIMS = 16
MAX_CLAIM = 128
MAX_VALUES = 16
MAX_VALUE = 512
_DEFAULT_LIFETIME = timedelta(minutes=15)
Count = Annotated[int, Meta(ge=0)]


class GrantType(StrEnum):
    """The only grant type."""

    TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a name


class TokenType(StrEnum):
    """The types of tokens that can be exchanged: all are signed JWTs."""

    JWT = "urn:ietf:params:oauth:token-type:jwt"
    ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - a name
    ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name


class WorkloadRoleData(Data, frozen=True, kw_only=True):
    """A role: the permissions of workloads with fitting tokens."""

    name: str
    issuer: Annotated[str, Meta(description="The name of the issuer.")]
    claims: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="Conditions that a token must meet: claims with their accepted values."),
    ]
    scopes: tuple[ScopeData, ...]
    lifetime_seconds: Annotated[int, Meta(description="The longest life of a key.")]
    valid_keys: Annotated[Count, Meta(description="The number of valid keys of the role.")]
    changed_at: Timestamp
    changed_by: Annotated[str, Meta(description="The principal.")]


class WorkloadIssuerData(Data, frozen=True, kw_only=True):
    """An issuer of workloads' tokens."""

    name: str
    issuer: Annotated[str, Meta(description="The claim iss.")]
    audience: Annotated[str, Meta(description="The value that the claim aud must contain.")]
    algorithms: tuple[GivenKeyAlgorithm, ...]
    jwks: Annotated[
        str | None, Meta(description="A JWK Set as JSON text; null: it is fetched by discovery.")
    ]
    changed_at: Timestamp
    changed_by: Annotated[str, Meta(description="The principal.")]


class WorkloadsData(Data, frozen=True, kw_only=True):
    """Issuers and roles, by name."""

    issuers: tuple[WorkloadIssuerData, ...]
    roles: tuple[WorkloadRoleData, ...]


class RemovedWorkload(Data, frozen=True, kw_only=True):
    """An issuer or a role was removed, and its keys have ended."""

    removed: bool


class ExchangedToken(Data, frozen=True, kw_only=True):
    """A short-lived API key, in the names of RFC 8693."""

    access_token: Annotated[str, Meta(description="The API key. Send it as X-API-Key.")]
    issued_token_type: Literal["urn:ietf:params:oauth:token-type:access_token"]
    token_type: Annotated[
        Literal["N_A"], Meta(description="It is not sent as a bearer token (section 2.2.1).")
    ]
    expires_in: Annotated[int, Meta(ge=1, description="The lifetime in seconds.")]
    expires_at: Timestamp
    scopes: tuple[ScopeData, ...]


def _name(name: str, description: str, example: str, not_found: str = "") -> Field[str]:
    return recorded_name_field(name, description, example, not_found=not_found)


_ISSUER = _name("issuer", "The issuer's name.", "github")
_ISSUER_TO_REMOVE = _name("issuer", "The issuer's name.", "github", "no such issuer")
_ROLE = _name("role", "The role's name.", "deploy")
_ROLE_TO_REMOVE = _name("role", "The role's name.", "deploy", "no such role")
_URL = text_field(
    "url",
    "The claim iss of the tokens: an https:// URL. Without jwks, the keys are fetched from its "
    "discovery document.",
    "https://token.actions.githubusercontent.com",
    at_most=MAX_URL,
)
_AUDIENCE = text_field(
    "audience",
    "A value that the claim aud must contain. Use one that only this installation has.",
    "https://pqkeep.example.com",
    at_most=MAX_URL,
)
_EACH_CLAIM = (
    f"must be an object with 1 to {MAX_CLAIMS} claims: each a text, or a list of 1 to {MAX_VALUES}"
    " texts, which can end with *"
)
_EACH_ALGORITHM = "must be a list of algorithms: " + ", ".join(GivenKeyAlgorithm)


def _algorithms(value: object) -> tuple[GivenKeyAlgorithm, ...]:
    names = cast("list[object]", value) if isinstance(value, list) else []
    if not names or any(name not in tuple(GivenKeyAlgorithm) for name in names):
        raise InvalidValueError(_EACH_ALGORITHM)
    return tuple(dict.fromkeys(GivenKeyAlgorithm(cast("str", name)) for name in names))


def _jwks(value: object) -> str:
    text = msgspec.json.encode(value).decode() if isinstance(value, dict) else value
    if not isinstance(text, str) or len(text) > MAX_JWKS:
        raise InvalidValueError(f"must be a JWK Set of at most {MAX_JWKS:,} characters")
    try:
        keys = keys_in(text)
    except InvalidKeySetError as error:
        raise InvalidValueError(str(error)) from None
    if not keys:
        raise InvalidValueError("must have a public key of an algorithm that can verify tokens")
    return text


def _conditions(value: object) -> tuple[Condition, ...]:
    claims = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if not 0 < len(claims) <= MAX_CLAIMS or not all(0 < len(name) <= MAX_CLAIM for name in claims):
        raise InvalidValueError(_EACH_CLAIM)
    return tuple(Condition(name, _values(stated)) for name, stated in sorted(claims.items()))


def _values(value: object) -> tuple[str, ...]:
    stated = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = tuple(text for text in stated if isinstance(text, str) and 0 < len(text) <= MAX_VALUE)
    if not 0 < len(stated) <= MAX_VALUES or len(texts) != len(stated):
        raise InvalidValueError(_EACH_CLAIM)
    if PREFIX in texts:
        raise InvalidValueError("must limit each claim: * alone accepts every value")
    return texts


_ALGORITHMS = Field(
    name="algorithms",
    description="The algorithms of the issuer's signatures. Any other is refused.",
    schema={
        "type": "array",
        "items": {"type": "string", "enum": list(GivenKeyAlgorithm)},
        "minItems": 1,
    },
    example=["RS256"],
    parse=_algorithms,
)
_JWKS = Field(
    name="jwks",
    description="The issuer's public keys as a JWK Set, an object or JSON text. Left out: they are "
    "fetched. Use it where this service cannot reach the issuer, and send it again before the "
    "issuer changes its keys.",
    schema={"type": ["object", "string"]},
    example={
        "keys": [
            {
                "kty": "OKP",
                "crv": "Ed25519",
                "kid": "2026-01",
                "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
            }
        ]
    },
    parse=_jwks,
).optional()
_CLAIMS = Field(
    name="claims",
    description="Conditions on the token's claims, which must all hold. A claim's name, or a JSON "
    "Pointer to a nested claim; its value, or several of which one must fit. A value that ends with "
    "`*` accepts every text with this beginning.",
    schema={
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_CLAIMS,
        "additionalProperties": {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_VALUE},
                {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1, "maxLength": MAX_VALUE},
                    "minItems": 1,
                    "maxItems": MAX_VALUES,
                },
            ]
        },
    },
    example={"repository": "acme/shop", "ref": "refs/heads/main"},
    parse=_conditions,
)
_LIFETIME = integer_field(
    "lifetime_seconds",
    "The longest life of an API key. It ends with its token if that is earlier, but lives at "
    "least a minute.",
    900,
    at_least=int(MIN_LIFETIME.total_seconds()),
    at_most=int(MAX_LIFETIME.total_seconds()),
).or_default(int(_DEFAULT_LIFETIME.total_seconds()))
_ISSUER_OF_ROLE = _name("issuer", "The name of the issuer that signs the tokens.", "github")
_GRANT_TYPE = choice_field(
    "grant_type", "The grant type of RFC 8693.", tuple(GrantType), GrantType.TOKEN_EXCHANGE
)
_TOKEN_TYPE = choice_field(
    "subject_token_type", "The type of the token.", tuple(TokenType), TokenType.JWT
).or_default(TokenType.JWT)
_TOKEN = text_field(
    "subject_token",
    "The workload's token: a signed JWT.",
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2V4YW1wbGUuY29tIn0.c2lnbmF0dXJl",
    at_most=MAX_TOKEN,
    is_valid=str.isascii,
)
_FULL_ROLE = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})", re.ASCII
)


def _full_role(value: object) -> tuple[TenantId, str]:
    matched = _FULL_ROLE.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        raise InvalidValueError("must be the tenant's id, a slash, and the role's name")
    return TenantId(UUID(matched[1])), matched[2]


_REQUESTED_ROLE = Field(
    name="role",
    description="The tenant's id, a slash, and the role's name.",
    schema={"type": "string", "pattern": f"^{_FULL_ROLE.pattern}$"},
    example=f"{TENANT.example}/deploy",
    parse=_full_role,
)
_AT = timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC))
_BY = "user:6f5a1c9e-0d3b-4a53-9a55-2c1f9b1d7e10"
_SCOPES = (ScopeData(operations=("encrypt-only",), keyrings=("payments.*",)),)
_ISSUER_EXAMPLE = WorkloadIssuerData(
    name="github",
    issuer=str(_URL.example),
    audience=str(_AUDIENCE.example),
    algorithms=(GivenKeyAlgorithm.RS256,),
    jwks=None,
    changed_at=_AT,
    changed_by=_BY,
)
_ROLE_EXAMPLE = WorkloadRoleData(
    name="deploy",
    issuer="github",
    claims={"repository": ("acme/shop",), "ref": ("refs/heads/main",)},
    scopes=_SCOPES,
    lifetime_seconds=900,
    valid_keys=0,
    changed_at=_AT,
    changed_by=_BY,
)


def endpoints(
    tenants: SqlTenants,
    workloads: Workloads,
    keys: TenantKeyService,
    addresses: PublicAddresses,
    clock: Clock,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of workload identity."""
    handlers = _Workloads(tenants, workloads, keys, addresses, clock)
    return (
        Endpoint(
            method="POST",
            path="/auth/token",
            name="exchange_token",
            handler=handlers.exchange,
            permission=Permission.PUBLIC,
            fields=(_GRANT_TYPE, _TOKEN, _TOKEN_TYPE, _REQUESTED_ROLE),
            field_codes=BAD_REQUEST_FIELDS,
            example=ExchangedToken(
                access_token="pqt_" + "0" * 43 + "3aXb2c",
                issued_token_type=TokenType.ACCESS_TOKEN.value,
                token_type="N_A",  # noqa: S106 - a name
                expires_in=900,
                expires_at=_AT,
                scopes=_SCOPES,
            ),
            codes=KEY_SERVICE_OUTAGE,
            errors=(
                InvalidTokenError,
                UntrustedTokenError,
                RefusedTokenError,
                TooManyExchangesError,
                TooManyAttemptsError,
            ),
        ),
        Endpoint(
            method="GET",
            path="/tenants/{tenant_id}/workloads",
            name="list_workloads",
            handler=handlers.list_,
            permission=Permission.VIEW_TENANT,
            fields=(TENANT,),
            field_codes=BAD_REQUEST_FIELDS,
            example=WorkloadsData(issuers=(_ISSUER_EXAMPLE,), roles=(_ROLE_EXAMPLE,)),
            errors=(TenantNotFoundError,),
        ),
        Endpoint(
            method="PUT",
            path="/tenants/{tenant_id}/workloads/issuers/{issuer}",
            name="put_workload_issuer",
            handler=handlers.put_issuer,
            permission=Permission.MANAGE_WORKLOADS,
            needs_step_up=True,
            fields=(TENANT, _ISSUER, _URL, _AUDIENCE, _ALGORITHMS, _JWKS),
            field_codes=BAD_REQUEST_FIELDS,
            example=_ISSUER_EXAMPLE,
            status=201,
            may_exist=True,
            errors=(TenantNotFoundError, TooManyIssuersError),
        ),
        Endpoint(
            method="DELETE",
            path="/tenants/{tenant_id}/workloads/issuers/{issuer}",
            name="remove_workload_issuer",
            handler=handlers.remove_issuer,
            permission=Permission.MANAGE_WORKLOADS,
            needs_step_up=True,
            fields=(TENANT, _ISSUER_TO_REMOVE),
            field_codes=BAD_REQUEST_FIELDS,
            example=RemovedWorkload(removed=True),
            errors=(TenantNotFoundError, IssuerNotFoundError),
        ),
        Endpoint(
            method="PUT",
            path="/tenants/{tenant_id}/workloads/roles/{role}",
            name="put_workload_role",
            handler=handlers.put_role,
            permission=Permission.MANAGE_WORKLOADS,
            needs_step_up=True,
            fields=(
                TENANT,
                _ROLE,
                _ISSUER_OF_ROLE,
                _CLAIMS,
                REQUIRED_SCOPES,
                ALLOW_ABSENT_KEYRINGS,
                _LIFETIME,
            ),
            field_codes=BAD_REQUEST_FIELDS,
            example=_ROLE_EXAMPLE,
            status=201,
            may_exist=True,
            codes=KEY_SERVICE_OUTAGE,
            errors=(TenantNotFoundError, IssuerNotFoundError, TooManyRolesError),
        ),
        Endpoint(
            method="DELETE",
            path="/tenants/{tenant_id}/workloads/roles/{role}",
            name="remove_workload_role",
            handler=handlers.remove_role,
            permission=Permission.MANAGE_WORKLOADS,
            needs_step_up=True,
            fields=(TENANT, _ROLE_TO_REMOVE),
            field_codes=BAD_REQUEST_FIELDS,
            example=RemovedWorkload(removed=True),
            errors=(TenantNotFoundError, RoleNotFoundError),
        ),
    )


class _Workloads:
    """The handlers."""

    def __init__(
        self,
        tenants: SqlTenants,
        workloads: Workloads,
        keys: TenantKeyService,
        addresses: PublicAddresses,
        clock: Clock,
    ) -> None:
        self._tenants = tenants
        self._workloads = workloads
        self._keys = keys
        self._addresses = addresses
        self._clock = clock

    async def exchange(self, call: ApiCall) -> ExchangedToken:
        """Exchange a workload's token for a short-lived API key.

        The key has the scopes of the role, and ends with its lifetime, the token, or the role. A
        token can be exchanged 100 times in its life, and each time is recorded.
        """
        _ = call[_GRANT_TYPE], call[_TOKEN_TYPE]
        tenant, role = call[_REQUESTED_ROLE]
        made = await self._workloads.exchange(tenant, role, call[_TOKEN], call.attribution)
        return ExchangedToken(
            access_token=made.plaintext,
            issued_token_type=TokenType.ACCESS_TOKEN.value,
            token_type="N_A",  # noqa: S106 - a name
            expires_in=int(made.lifetime.total_seconds()),
            expires_at=timestamp(made.expires_at),
            scopes=shown_scopes(made.role.scopes) or (),
        )

    async def list_(self, call: ApiCall) -> WorkloadsData:
        """List the issuers and roles of workloads."""
        tenant = await visible_tenant(call, self._tenants)
        issuers, roles = await self._workloads.list(tenant.id)
        return WorkloadsData(issuers=tuple(map(_issuer, issuers)), roles=tuple(map(_role, roles)))

    async def put_issuer(self, call: ApiCall) -> WorkloadIssuerData | Existing:
        """Add an issuer of workloads' tokens, or replace the one with its name.

        The API keys of its workloads end, and the workloads must exchange their tokens again.
        """
        tenant = await visible_tenant(call, self._tenants)
        url, jwks = call[_URL], call[_JWKS]
        try:
            check_issuer(self._addresses, url, is_fetched=jwks is None)
        except InvalidUrlError as error:
            raise FieldError(_URL.name, Problem.MALFORMED, f"{_URL.name} {error}") from None
        issuer = Issuer(
            tenant=tenant.id,
            name=call[_ISSUER],
            issuer=url,
            audience=call[_AUDIENCE],
            algorithms=call[_ALGORITHMS],
            keys=jwks,
            changed_at=date_of(self._clock()),
            changed_by=str(call.principal),
        )
        is_new = await self._workloads.put_issuer(issuer, call.attribution)
        return _issuer(issuer) if is_new else Existing(_issuer(issuer))

    async def remove_issuer(self, call: ApiCall) -> RemovedWorkload:
        """Remove an issuer with its roles. The keys of its workloads end."""
        tenant = await visible_tenant(call, self._tenants)
        await self._workloads.remove_issuer(tenant.id, call[_ISSUER_TO_REMOVE], call.attribution)
        return RemovedWorkload(removed=True)

    async def put_role(self, call: ApiCall) -> WorkloadRoleData | Existing:
        """Add a role for workloads, or replace the one with its name.

        The API keys of its workloads end, and the workloads must exchange their tokens again.
        """
        tenant = await visible_tenant(call, self._tenants)
        await require_keyrings(call, tenant.id, self._keys)
        role = Role(
            tenant=tenant.id,
            issuer=call[_ISSUER_OF_ROLE],
            name=call[_ROLE],
            conditions=call[_CLAIMS],
            scopes=call[REQUIRED_SCOPES],
            lifetime=timedelta(seconds=call[_LIFETIME]),
            changed_at=date_of(self._clock()),
            changed_by=str(call.principal),
        )
        is_new = await self._workloads.put_role(role, call.attribution)
        return _role(role) if is_new else Existing(_role(role))

    async def remove_role(self, call: ApiCall) -> RemovedWorkload:
        """Remove a role. The keys of its workloads end."""
        tenant = await visible_tenant(call, self._tenants)
        await self._workloads.remove_role(tenant.id, call[_ROLE_TO_REMOVE], call.attribution)
        return RemovedWorkload(removed=True)


def _issuer(issuer: Issuer) -> WorkloadIssuerData:
    return WorkloadIssuerData(
        name=issuer.name,
        issuer=issuer.issuer,
        audience=issuer.audience,
        algorithms=issuer.algorithms,
        jwks=issuer.keys,
        changed_at=timestamp(issuer.changed_at),
        changed_by=issuer.changed_by,
    )


def _role(role: Role) -> WorkloadRoleData:
    return WorkloadRoleData(
        name=role.name,
        issuer=role.issuer,
        claims={condition.claim: condition.values for condition in role.conditions},
        scopes=shown_scopes(role.scopes) or (),
        lifetime_seconds=int(role.lifetime.total_seconds()),
        valid_keys=role.live,
        changed_at=timestamp(role.changed_at),
        changed_by=role.changed_by,
    )

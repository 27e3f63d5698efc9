"""Workload identity: a workload shows a token of its platform and gets a short-lived API key.

A tenant names the issuers that it trusts, and roles: conditions on the claims of a token, and the
scopes of the key. The gateway reads the token, and the key service verifies its signature.

Before the signature is verified, every refusal is the same. So a stranger learns nothing about a
tenant's issuers and roles. After that, the holder of a valid token learns which claim does not fit.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TypeVar

from msgspec import structs

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.access.rate_limit import MINUTE, Limit, TooManyAttemptsError
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.signed_tokens import (
    PublicKey,
    RefusedTokenError,
    SignedToken,
    candidates,
    check_claims,
    keys_in,
    read_token,
)
from pqkeep_gateway.storage.workloads import (
    Exchange,
    Issuer,
    Role,
    RoleNotFoundError,
    SqlWorkloads,
    TooManyExchangesError,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import WORKLOAD, AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, VerifySignature

T = TypeVar("T")

FAILURES = Limit(60, MINUTE)
"""Refused exchanges from one address, on each gateway."""
MIN_LIFETIME = timedelta(minutes=1)
MAX_LIFETIME = timedelta(hours=1)
MAX_SUBJECT = 120
"""Characters of a subject in a record."""


FindKeys = Callable[[TenantId, str, SignedToken], Awaitable[tuple[PublicKey, ...]]]
"""Returns the fetched keys of a tenant's issuer that may have signed a token. Raises UnavailableError."""


class UntrustedTokenError(Exception):
    """The role does not exist, or its issuer did not sign the token."""


@dataclass(frozen=True, slots=True)
class WorkloadKey:
    """A new short-lived API key."""

    plaintext: str = field(repr=False)
    expires_at: datetime
    lifetime: timedelta
    role: Role


class Workloads:
    """Issuers and roles of tenants, and the exchange of tokens."""

    def __init__(
        self,
        store: SqlWorkloads,
        find_keys: FindKeys,
        keys: TenantKeyService,
        pepper: Pepper,
        lookups: CredentialLookups,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Call ``announce_change`` after each change that ends keys."""
        self._store = store
        self._find_keys = find_keys
        self._keys = keys
        self._pepper = pepper
        self._lookups = lookups
        self._announce_change = announce_change
        self._audit_delivery = audit_delivery
        self._clock = clock
        self._budget = SourceBudget(FAILURES, clock)

    async def list(self, tenant: TenantId) -> tuple[list[Issuer], list[Role]]:
        """Return a tenant's issuers and roles by name, the roles with their number of keys."""
        return await self._store.list(tenant, date_of(self._clock()))

    async def put_issuer(self, issuer: Issuer, attribution: Attribution) -> bool:
        """Store or replace an issuer, and end its workloads' keys; return whether it is new.

        Raises TooManyIssuersError.
        """
        put = _event(attribution, issuer.tenant, AuditEvent.PUT_WORKLOAD_ISSUER, issuer.name)
        return await self._change(self._store.put_issuer(issuer, put))

    async def remove_issuer(self, tenant: TenantId, name: str, attribution: Attribution) -> None:
        """Remove an issuer with its roles, and end its workloads' keys. Raises IssuerNotFoundError."""
        removed = _event(attribution, tenant, AuditEvent.REMOVE_WORKLOAD_ISSUER, name)
        await self._change(self._store.remove_issuer(tenant, name, removed))

    async def put_role(self, role: Role, attribution: Attribution) -> bool:
        """Store or replace a role, and end its workloads' keys; return whether it is new.

        Raises IssuerNotFoundError, TooManyRolesError.
        """
        put = _event(attribution, role.tenant, AuditEvent.PUT_WORKLOAD_ROLE, role.name)
        return await self._change(self._store.put_role(role, put))

    async def remove_role(self, tenant: TenantId, name: str, attribution: Attribution) -> None:
        """Remove a role, and end its workloads' keys. Raises RoleNotFoundError."""
        removed = _event(attribution, tenant, AuditEvent.REMOVE_WORKLOAD_ROLE, name)
        await self._change(self._store.remove_role(tenant, name, removed))

    async def exchange(
        self, tenant: TenantId, role: str, text: str, attribution: Attribution
    ) -> WorkloadKey:
        """Return a new API key for a workload's token.

        Raises InvalidTokenError, UntrustedTokenError, RefusedTokenError, TooManyExchangesError,
        TooManyAttemptsError, UnavailableError, KeyServiceError.
        """
        address = attribution.source_address
        wait = self._budget.spend(address)
        if wait is not None:
            raise TooManyAttemptsError(FAILURES, wait)
        token = read_token(text)
        try:
            issuer, found = await self._store.find_role(tenant, role)
        except RoleNotFoundError:
            raise UntrustedTokenError from None
        await self._verify(token, issuer, attribution)
        made = await self._issue(token, issuer, found, attribution)
        self._budget.release(address)
        return made

    async def _issue(
        self, token: SignedToken, issuer: Issuer, role: Role, attribution: Attribution
    ) -> WorkloadKey:
        who = attribution.by(f"{WORKLOAD}{role.name}")
        now = date_of(self._clock())
        try:
            check_claims(token, issuer.audience, role.conditions, now.timestamp())
            plaintext = new_credential(CredentialKind.WORKLOAD)
            token_ends = date_of(token.registered.exp)
            lifetime = max(min(role.lifetime, token_ends - now), MIN_LIFETIME)
            digest = self._pepper.digest(plaintext)
            exchange = Exchange(digest, token.digest, now + lifetime, token_ends)
            exchanged = _event(who, role.tenant, AuditEvent.EXCHANGE_TOKEN, issuer.name, token)
            await self._store.add_key(issuer, role, exchange, now, exchanged)
        except RoleNotFoundError:
            raise UntrustedTokenError from None
        except (RefusedTokenError, TooManyExchangesError):
            refused = _event(who, role.tenant, AuditEvent.EXCHANGE_TOKEN, issuer.name, token)
            await self._audit_delivery.record(structs.replace(refused, outcome="ERR_FORBIDDEN_001"))
            raise
        await self._audit_delivery.deliver()
        self._lookups.accept(digest)
        return WorkloadKey(plaintext, exchange.expires_at, lifetime, role)

    async def _verify(self, token: SignedToken, issuer: Issuer, attribution: Attribution) -> None:
        """Check that the issuer signed the token. Raises UntrustedTokenError."""
        if token.registered.iss != issuer.issuer or token.algorithm not in issuer.algorithms:
            raise UntrustedTokenError
        for key in await self._candidates(token, issuer):
            request = VerifySignature(
                tenant=issuer.tenant,
                algorithm=key.algorithm,
                public_key=key.spki,
                message=token.message,
                signature=token.signature,
            )
            try:
                await self._keys.execute(request, attribution)
            except KeyServiceError as refusal:
                if refusal.kind not in {
                    ErrorKind.VERIFICATION_FAILED,
                    ErrorKind.INVALID_PUBLIC_KEY,
                }:
                    raise
            else:
                return
        raise UntrustedTokenError

    async def _candidates(self, token: SignedToken, issuer: Issuer) -> tuple[PublicKey, ...]:
        if issuer.keys is None:
            return await self._find_keys(issuer.tenant, issuer.issuer, token)
        return candidates(keys_in(issuer.keys), token)

    async def _change(self, change: Awaitable[T]) -> T:
        try:
            return await change
        finally:
            await self._announce_change()
            await self._audit_delivery.deliver()


def _event(
    attribution: Attribution,
    tenant: TenantId,
    operation: AuditEvent,
    name: str,
    token: SignedToken | None = None,
) -> Event:
    """Return an event about an issuer or a role; of an exchange, with the token's subject."""
    made = event(attribution, tenant, operation)
    subject = "" if token is None else f"/{_recorded(token.registered.sub)}"
    return structs.replace(made, target=f"{name}{subject}")


def _recorded(subject: str) -> str:
    """Return a token's subject, or its SHA-256 if a record cannot contain it."""
    if len(subject) <= MAX_SUBJECT and subject.isascii() and subject.isprintable():
        return subject
    return f"sha256-{sha256(subject.encode('utf-8', 'surrogatepass')).hexdigest()}"

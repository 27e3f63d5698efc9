"""Named operators: each has their own credential, and their name in the audit log."""

import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from pqkeep_gateway.access.admission import Authenticator, UnknownCredentialError
from pqkeep_gateway.access.callers import OperatorRole
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import (
    CredentialKind,
    Pepper,
    Purpose,
    kind_of,
    new_credential,
)
from pqkeep_gateway.access.principals import OperatorError, OperatorPerson, OperatorPrincipal
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.identities import Provider
from pqkeep_gateway.storage.operators import (
    SESSION_IDLE,
    Operator,
    OperatorSession,
    SqlOperators,
    SqlOperatorSessions,
    UsedState,
)
from pqkeep_gateway.storage.sessions import SessionNotFoundError
from pqkeep_gateway.storage.step_up_tokens import Grant
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

T = TypeVar("T")

MAX_OPERATORS = 32
_ATTRIBUTION = Attribution("", "pqkeepd", "")
_is_name = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}").fullmatch


class Operators:
    """Adds, rotates and removes operators, even while gateways run."""

    def __init__(self, store: SqlOperators, pepper: Pepper) -> None:
        self._store = store
        self._pepper = pepper

    async def list(self) -> tuple[Operator, ...]:
        """Return all operators by name."""
        return await self._store.list()

    async def add(self, name: str, role: OperatorRole = OperatorRole.ADMIN) -> str:
        """Add an operator; return the credential, which is not stored. Raises OperatorError."""
        if not _is_name(name):
            raise OperatorError(
                "the name must be 1 to 32 characters of a-z, 0-9, '.', '_' and '-', the first "
                "a letter or digit"
            )
        credential, now = new_credential(CredentialKind.OPERATOR), datetime.now(UTC)
        if not await self._store.add(
            Operator(name, now, now, role=role),
            self._pepper.digest(credential),
            MAX_OPERATORS,
            _event(AuditEvent.ADD_OPERATOR, name),
        ):
            if any(operator.name == name for operator in await self._store.list()):
                raise OperatorError(
                    f"an operator named {name} already exists: pqkeepd operator rotate {name}"
                    " replaces the credential"
                )
            raise OperatorError(
                f"there are {MAX_OPERATORS} operators, which is the limit: remove one first"
            )
        return credential

    async def rotate(self, name: str) -> str:
        """Replace an operator's credential with a new one. Raises OperatorError."""
        credential = new_credential(CredentialKind.OPERATOR)
        digest = self._pepper.digest(credential)
        rotated = _event(AuditEvent.ROTATE_OPERATOR, name)
        if not await self._store.rotate(name, digest, datetime.now(UTC), rotated):
            raise OperatorError(_NOBODY)
        return credential

    async def remove(self, name: str) -> None:
        """Revoke an operator's credential. Raises OperatorError."""
        if not await self._store.remove(name, _event(AuditEvent.REMOVE_OPERATOR, name)):
            raise OperatorError(_NOBODY)

    async def sessions(self) -> Sequence[OperatorSession]:
        """Return the sessions that have not expired, the newest first."""
        return await self._store.list_sessions(datetime.now(UTC))

    async def end_sessions(self) -> int:
        """End the sessions of all operators; return their number."""
        return await self._store.end_sessions(
            event(_ATTRIBUTION, INSTALLATION, AuditEvent.END_OPERATOR_SESSIONS)
        )


_NOBODY = "no operator has this name: pqkeepd operator list shows their names"


def _event(operation: AuditEvent, name: str) -> Event:
    return event(_ATTRIBUTION, INSTALLATION, operation, policy=f"operator-{name}")


SEEN_EVERY = timedelta(minutes=1)
"""The precision of a session's stored last use."""
REAUTHENTICATION_LIFETIME = timedelta(minutes=5)
"""The time for changes after a person has signed in again at the provider."""


class NotAgainError(Exception):
    """A change in a person's session needs a new reauthentication at the provider."""


class OperatorSessions:
    """Begins, finds and ends sessions of operators."""

    def __init__(
        self,
        store: SqlOperatorSessions,
        authenticator: Authenticator,
        lookups: CredentialLookups,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        operator: bytes | None,
        clock: Clock,
        providers: Iterable[Provider] = (),
    ) -> None:
        """Take the credential digest (32 bytes) of the operator without a name, if any.

        ``providers``: the operators' providers of single sign-on.
        """
        self._store = store
        self._authenticator = authenticator
        self._lookups = lookups
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._operator = operator
        self._clock = clock
        self._providers = {
            provider.name: provider_digest(pepper, provider) for provider in providers
        }

    async def begin(
        self, credential: str, attribution: Attribution
    ) -> tuple[OperatorPrincipal, str]:
        """Begin a session; return its principal and its token.

        Raises UnknownCredentialError, TooManyUnknownCredentialsError.
        """
        if kind_of(credential) is not CredentialKind.OPERATOR:
            raise UnknownCredentialError
        principal = await self._authenticator.authenticate(credential, attribution.source_address)
        if not isinstance(principal, OperatorPrincipal):
            raise UnknownCredentialError
        digest = self._pepper.digest(credential)
        signed_in = _session_event(attribution, principal, AuditEvent.OPERATOR_SIGN_IN)
        return principal, await self._begin(digest, None, attribution, signed_in)

    async def begin_of_person(
        self,
        principal: OperatorPrincipal,
        provider: Provider,
        state: UsedState,
        attribution: Attribution,
    ) -> str:
        """Begin a session of a person who has signed in at a provider; return its token.

        Raises RefusedError.
        """
        person = principal.person
        named = f" {person.email}" if person is not None and person.email else ""
        signed_in = _session_event(
            attribution,
            principal,
            AuditEvent.OPERATOR_SIGN_IN,
            f"provider-{provider.name}{named}"[:MAX_POLICY],
        )
        digest = provider_digest(self._pepper, provider)
        return await self._begin(digest, principal, attribution, signed_in, state)

    async def _begin(
        self,
        credential: bytes,
        principal: OperatorPrincipal | None,
        attribution: Attribution,
        signed_in: Event,
        state: UsedState | None = None,
    ) -> str:
        now = date_of(self._clock())
        token = new_credential(CredentialKind.OPERATOR_SESSION)
        digest = self._pepper.digest(token)
        session = OperatorSession(credential, now, now, attribution.source_address, principal)
        await self._store.add(digest, session, signed_in, state)
        self._lookups.accept(digest)
        await self._audit_delivery.deliver()
        return token

    async def find(self, token: str, source_address: str) -> OperatorPrincipal | None:
        """Return the operator of a session token, or None.

        Raises TooManyUnknownCredentialsError, UnavailableError.
        """
        if kind_of(token) is not CredentialKind.OPERATOR_SESSION:
            return None
        return await self._lookups.find(self._pepper.digest(token), source_address, self._look_up)

    async def end(self, token: str, attribution: Attribution) -> None:
        """End the session of a token, if it exists.

        Raises TooManyUnknownCredentialsError.
        """
        principal = await self.find(token, attribution.source_address)
        if principal is None:
            return
        ended = _session_event(attribution, principal, AuditEvent.OPERATOR_SIGN_OUT)
        await self._store.remove(self._pepper.digest(token), ended)
        await self._audit_delivery.deliver()

    async def list(self) -> Sequence[tuple[UUID, OperatorSession]]:
        """Return all valid sessions with their identifiers, the newest first."""
        now = date_of(self._clock())
        return tuple(
            (self.identifier(session.digest), session)
            for session in await self._store.list(now)
            if self._is_valid(session, now)
        )

    async def end_listed(self, identifier: UUID, attribution: Attribution) -> None:
        """End a session by its identifier. Raises SessionNotFoundError."""
        for listed, session in await self.list():
            if listed == identifier:
                policy = f"session of {session.operator or OperatorPrincipal()}"[:MAX_POLICY]
                operation = AuditEvent.END_OPERATOR_SESSION
                ended = event(attribution, INSTALLATION, operation, policy=policy)
                if await self._store.remove(session.digest, ended):
                    await self._audit_delivery.deliver()
                    return
        raise SessionNotFoundError

    def identifier(self, digest: bytes) -> UUID:
        """Return the public name of the session with a digest."""
        derived = self._pepper.derive(Purpose.SESSION_TOKEN, b"operator-session", digest)
        return UUID(bytes=derived[:16], version=4)

    async def end_of_person(self, person: OperatorPerson) -> None:
        """End all sessions of a person without a role."""
        await self._store.remove_person(person)

    async def reauthenticate(
        self, session: bytes, principal: OperatorPrincipal, state: UsedState, audit_event: Event
    ) -> str | None:
        """Let a person make changes in a session; return the token for the cookie.

        Returns None if it is not a session of the person with this role. Raises RefusedError.
        """
        token, now = new_credential(CredentialKind.REAUTHENTICATION), date_of(self._clock())
        until = now + REAUTHENTICATION_LIFETIME
        grant = Grant(self._reauthentication(session, token, until, is_fresh=True), until)
        saved = (session, principal, grant, state)
        if not await self._store.save_reauthentication(*saved, now, audit_event):
            return None
        await self._audit_delivery.deliver()
        return token

    async def spend(
        self,
        principal: OperatorPrincipal,
        reauthentication: str,
        action: Callable[[], Awaitable[T]],
        had_no_effect: Callable[[Exception], bool],
        *,
        is_covered: bool,
    ) -> T:
        """Make a change in a person's session, after a reauthentication at the provider.

        The first change after it may be any. Until its end, the following ones must be covered.
        Raises NotAgainError before any effect.
        """
        session = principal.session
        if kind_of(reauthentication) is not CredentialKind.REAUTHENTICATION:
            raise NotAgainError
        granted = await self._store.find_reauthentication(session)
        if granted is None or granted.until <= date_of(self._clock()):
            raise NotAgainError
        fresh, spent = (
            self._reauthentication(session, reauthentication, granted.until, is_fresh=is_fresh)
            for is_fresh in (True, False)
        )
        if not await self._store.replace_reauthentication(session, fresh, spent):
            if not (is_covered and hmac.compare_digest(granted.digest, spent)):
                raise NotAgainError
            return await action()
        try:
            return await action()
        except Exception as error:
            if had_no_effect(error):
                await self._store.replace_reauthentication(session, spent, fresh)
            raise

    def _reauthentication(
        self, session: bytes, token: str, until: datetime, *, is_fresh: bool
    ) -> bytes:
        """Return the stored digest (32 bytes) of a reauthentication, before or after its first use."""
        use = b"fresh" if is_fresh else b"spent"
        end = until.isoformat().encode()
        return self._pepper.derive(
            Purpose.REAUTHENTICATION, b"operator", use, session, end, token.encode()
        )

    async def _look_up(self, digest: bytes) -> OperatorPrincipal | None:
        session = await self._store.find(digest)
        now = date_of(self._clock())
        if session is None or not self._is_valid(session, now):
            return None
        if now - session.last_seen_at >= SEEN_EVERY:
            await self._store.see(digest, now)
        return session.operator or OperatorPrincipal(is_read_only=True, session=digest)

    def _is_valid(self, session: OperatorSession, now: datetime) -> bool:
        if (
            now - session.created_at >= session.lifetime
            or now - session.last_seen_at >= SESSION_IDLE
        ):
            return False
        if session.operator is None:
            began = self._operator
        elif session.operator.person is None:
            return True
        else:
            began = self._providers.get(session.operator.person.provider)
        return began is not None and hmac.compare_digest(session.operator_digest, began)


MAX_POLICY = 128
"""Characters of a policy in the audit log."""


def provider_digest(pepper: Pepper, provider: Provider) -> bytes:
    """Return 32 bytes that change with a provider's settings about operators."""
    roles = sorted(f"{role}={group}" for group, role in provider.operator_roles.items())
    domains = sorted(f"@{domain}" for domain in provider.email_domains)
    names = (provider.name, provider.issuer, provider.client_id, provider.groups_claim)
    return pepper.derive(
        Purpose.SINGLE_SIGN_ON,
        b"operators",
        *(name.encode() for name in (*names, *roles, *domains)),
    )


def _session_event(
    attribution: Attribution,
    principal: OperatorPrincipal,
    operation: AuditEvent,
    policy: str = "",
) -> Event:
    return event(attribution.by(str(principal)), INSTALLATION, operation, policy=policy)

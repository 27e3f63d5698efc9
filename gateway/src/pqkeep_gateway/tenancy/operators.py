"""Named operators: each has their own credential, and their name in the audit log."""

import hmac
import re
from datetime import UTC, datetime, timedelta

from pqkeep_gateway.access.admission import Authenticator, UnknownCredentialError
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of, new_credential
from pqkeep_gateway.access.principals import OperatorError, OperatorPrincipal
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.operators import (
    SESSION_IDLE,
    SESSION_LIFETIME,
    Operator,
    OperatorSession,
    SqlOperators,
    SqlOperatorSessions,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

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

    async def add(self, name: str) -> str:
        """Add an operator; return the credential, which is not stored. Raises OperatorError."""
        if not _is_name(name):
            raise OperatorError(
                "the name must be 1 to 32 characters of a-z, 0-9, '.', '_' and '-', the first "
                "a letter or digit"
            )
        credential = new_credential(CredentialKind.OPERATOR)
        if not await self._store.add(
            name,
            self._pepper.digest(credential),
            datetime.now(UTC),
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


_NOBODY = "no operator has this name: pqkeepd operator list shows their names"


def _event(operation: AuditEvent, name: str) -> Event:
    return event(_ATTRIBUTION, INSTALLATION, operation, policy=f"operator-{name}")


SEEN_EVERY = timedelta(minutes=1)
"""The precision of a session's stored last use."""


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
    ) -> None:
        """Take the credential digest (32 bytes) of the operator without a name, if any."""
        self._store = store
        self._authenticator = authenticator
        self._lookups = lookups
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._operator = operator
        self._clock = clock

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
        now = date_of(self._clock())
        token = new_credential(CredentialKind.OPERATOR_SESSION)
        digest = self._pepper.digest(token)
        session = OperatorSession(
            self._pepper.digest(credential), now, now, attribution.source_address
        )
        await self._store.add(
            digest, session, _session_event(attribution, principal, AuditEvent.OPERATOR_SIGN_IN)
        )
        self._lookups.accept(digest)
        await self._audit_delivery.deliver()
        return principal, token

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

    async def _look_up(self, digest: bytes) -> OperatorPrincipal | None:
        session = await self._store.find(digest)
        now = date_of(self._clock())
        if session is None or not self._is_valid(session, now):
            return None
        if now - session.last_seen_at >= SEEN_EVERY:
            await self._store.see(digest, now)
        return OperatorPrincipal(session.name, is_read_only=True)

    def _is_valid(self, session: OperatorSession, now: datetime) -> bool:
        if (
            now - session.created_at >= SESSION_LIFETIME
            or now - session.last_seen_at >= SESSION_IDLE
        ):
            return False
        if session.name is not None:
            return True
        return self._operator is not None and hmac.compare_digest(
            session.operator_digest, self._operator
        )


def _session_event(
    attribution: Attribution, principal: OperatorPrincipal, operation: AuditEvent
) -> Event:
    return event(attribution.by(str(principal)), INSTALLATION, operation)

"""Sessions of operators in a browser, which need not keep the operator's credential.

A session is for reading: whatever changes something needs the credential itself. It ends with the
credential that began it, of which it has the digest: nobody has to remember to end it.
"""

import hmac
from datetime import datetime, timedelta

from pqkeep_gateway.access.admission import Authenticator, UnknownCredentialError
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of, new_credential
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.operator_sessions import (
    IDLE,
    LIFETIME,
    OperatorSession,
    SqlOperatorSessions,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

SEEN_EVERY = timedelta(minutes=1)
"""How exactly it is stored when a session was used last."""


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
        """Take the digest of the credential of the operator without a name (32 bytes), if any."""
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
        """Begin a session; return whose it is, and its token.

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
            digest, session, _event(attribution, principal, AuditEvent.OPERATOR_SIGN_IN)
        )
        self._lookups.accept(digest)
        await self._audit_delivery.deliver()
        return principal, token

    async def find(self, token: str, source_address: str) -> OperatorPrincipal | None:
        """Return whose session a token opens.

        Raises TooManyUnknownCredentialsError, UnavailableError.
        """
        if kind_of(token) is not CredentialKind.OPERATOR_SESSION:
            return None
        return await self._lookups.find(self._pepper.digest(token), source_address, self._look_up)

    async def end(self, token: str, attribution: Attribution) -> None:
        """End the session that a token opens, if there is one.

        Raises TooManyUnknownCredentialsError.
        """
        principal = await self.find(token, attribution.source_address)
        if principal is None:
            return
        ended = _event(attribution, principal, AuditEvent.OPERATOR_SIGN_OUT)
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
        if now - session.created_at >= LIFETIME or now - session.last_seen_at >= IDLE:
            return False
        if session.name is not None:
            return True
        return self._operator is not None and hmac.compare_digest(
            session.operator_digest, self._operator
        )


def _event(attribution: Attribution, principal: OperatorPrincipal, operation: AuditEvent) -> Event:
    return event(attribution.by(str(principal)), INSTALLATION, operation)

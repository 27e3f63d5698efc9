"""Codes by e-mail: the second factor of whoever has no authenticator app, and owes a code.

A code belongs to one challenge, which only somebody who knew the password has, and ends with it. It
is kept as a digest under the pepper, good once, and gone after five tries. Whoever has an app needs
the app: no letter stands in for it.
"""

from datetime import datetime, timedelta
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, code_of, mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.second_factors import Factor, SecondFactors, WrongCodeError
from pqkeep_gateway.people.sessions import NoSessionError, Sessions, Tokens
from pqkeep_gateway.people.users import Account, UserStore
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

LIFE = timedelta(minutes=10)
MAX_TRIES = 5


class InvalidChallengeError(Exception):
    """There is no such challenge, or it is over."""


class AuthenticatorRequiredError(Exception):
    """Whoever was challenged has an authenticator app, and needs it."""


class EmailCodeStore(UserStore, Protocol):
    """Where codes are kept, each with its challenge. All raise UnavailableError."""

    async def challenged(self, digest: bytes, now: datetime) -> UserId | None:
        """Return who was challenged."""
        ...

    async def add_code(
        self, challenge: bytes, code: bytes, mail: OutgoingMail, sent: Event
    ) -> bool:
        """Keep a code instead of an earlier one, if its challenge is open, and the letter.

        The challenge ends when the letter does.
        """
        ...

    async def use_code(self, challenge: bytes, code: bytes, now: datetime, at_most: int) -> bool:
        """Count a try, and use challenge and code up if it is the right one and not one too many."""
        ...

    async def choose_codes(
        self, user: UserId, mail: OutgoingMail, chosen: Event, *, wanted: bool
    ) -> None:
        """Keep whether somebody wants codes, with the letter."""
        ...


class EmailCodes:
    """Sends codes and checks them."""

    def __init__(
        self,
        store: EmailCodeStore,
        factors: SecondFactors,
        sessions: Sessions,
        attempts: AttemptLimits,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Ask the second factors who has which."""
        self._store = store
        self._factors = factors
        self._sessions = sessions
        self._attempts = attempts
        self._pepper = pepper
        self._courier = audit_delivery
        self._clock = clock

    async def send(self, token: str, attribution: Attribution) -> None:
        """Have a code sent to somebody who was challenged.

        Raises InvalidChallengeError, AuthenticatorRequiredError, TooManyAttemptsError.
        """
        challenge, account = await self._challenged(token)
        if self._factors.of(account) is not Factor.EMAIL:
            raise AuthenticatorRequiredError
        user = account.user
        await self._attempts.count_code(user.email)
        written = mail(MailKind.CODE, user.email, date_of(self._clock()), LIFE)
        digest = self._digest(challenge, code_of(written, self._pepper))
        sent = event(attribution.by(str(user)), user.tenant, AuditEvent.SEND_EMAIL_CODE)
        if not await self._store.add_code(challenge, digest, written, sent):
            raise InvalidChallengeError
        await self._courier.deliver()

    async def answer(self, token: str, code: str, attribution: Attribution) -> Tokens:
        """Begin a session of somebody who was challenged, by the code that they were sent.

        Raises InvalidChallengeError, WrongCodeError, TooManyAttemptsError.
        """
        challenge, account = await self._challenged(token)
        user = account.user
        await self._attempts.count(user.email, attribution.source_address)
        is_right = self._factors.of(account) is Factor.EMAIL and await self._store.use_code(
            challenge, self._digest(challenge, code), date_of(self._clock()), MAX_TRIES
        )
        if not is_right:
            await self._factors.tell_of_failure(account, attribution)
            raise WrongCodeError
        try:
            return await self._sessions.begin(account, attribution, by_code=True)
        except NoSessionError:
            raise InvalidChallengeError from None

    async def choose(
        self, whose: SessionPrincipal, attribution: Attribution, *, wanted: bool
    ) -> None:
        """Ask for a code at every sign-in, or no longer. With an app it changes nothing."""
        account = await self._store.get(whose.user)
        kind = MailKind.SECOND_FACTOR_ADDED if wanted else MailKind.SECOND_FACTOR_REMOVED
        written = mail(kind, account.user.email, date_of(self._clock()))
        chosen = event(
            attribution,
            whose.tenant,
            AuditEvent.ENABLE_EMAIL_CODES if wanted else AuditEvent.DISABLE_EMAIL_CODES,
        )
        await self._store.choose_codes(whose.user, written, chosen, wanted=wanted)
        await self._courier.deliver()

    async def _challenged(self, token: str) -> tuple[bytes, Account]:
        challenge = self._pepper.digest(token)
        user = await self._store.challenged(challenge, date_of(self._clock()))
        if user is None:
            raise InvalidChallengeError
        return challenge, await self._store.get(user)

    def _digest(self, challenge: bytes, code: str) -> bytes:
        text = code.replace(" ", "").encode("utf-8", "surrogatepass")
        return self._pepper.derive("pqkeep/v1/email-code", challenge, text)

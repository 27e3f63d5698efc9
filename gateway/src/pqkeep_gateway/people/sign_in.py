"""Sign-in with a password and, if required, a second factor."""

from dataclasses import replace

from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.challenges import Challenges, InvalidChallengeError
from pqkeep_gateway.people.passkeys import (
    Assertion,
    InvalidPasskeyError,
    PasskeyProblem,
    Passkeys,
)
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.second_factors import NotEnrolledError, SecondFactors
from pqkeep_gateway.people.sessions import Sessions, Tokens
from pqkeep_gateway.storage.users import Account, AccountChangedError, SqlUsers
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution


class WrongPasswordError(Exception):
    """The e-mail address or the password is wrong."""


class SignIn:
    """Begins sessions after a correct password and code."""

    def __init__(
        self,
        users: SqlUsers,
        sessions: Sessions,
        passwords: Passwords,
        attempts: AttemptLimits,
        factors: SecondFactors,
        challenges: Challenges,
        passkeys: Passkeys,
        audit_delivery: AuditDelivery,
    ) -> None:
        self._users = users
        self._sessions = sessions
        self._passwords = passwords
        self._attempts = attempts
        self._factors = factors
        self._challenges = challenges
        self._passkeys = passkeys
        self._audit_delivery = audit_delivery

    async def with_password(
        self, email: str, password: str, attribution: Attribution, user_agent: bytes = b""
    ) -> Tokens:
        """Begin a session, unless a code is required too.

        Raises WrongPasswordError, SecondFactorRequiredError, TooManyAttemptsError. An unknown
        address takes as long as a wrong password.
        """
        async with self._attempts.password(email, attribution.source_address) as is_known:
            account = await self._users.find_by_email(email)
            is_correct = await self._passwords.verify(
                account, password, attribution.source_address, is_stranger=not is_known
            )
            if account is None or not is_correct:
                await self._record_failure(account, attribution)
                raise WrongPasswordError
        account = await self._with_current_hash(account, password, attribution.source_address)
        factor = self._challenges.required_factor(account)
        try:
            if factor is None:
                return await self._sessions.begin(account, attribution, user_agent=user_agent)
            required = await self._challenges.issue(account, factor, attribution.source_address)
        except AccountChangedError:
            raise WrongPasswordError from None
        raise required

    async def with_passkey(
        self, browser: str, assertion: Assertion, attribution: Attribution, user_agent: bytes = b""
    ) -> Tokens:
        """Begin a session with a passkey, which counts as both factors.

        Raises InvalidPasskeyError, TooManyAttemptsError, TooManyUnknownCredentialsError.
        """
        account = await self._passkeys.identify(browser, assertion, attribution)
        try:
            return await self._sessions.begin(
                account,
                attribution,
                used_second_factor=True,
                signed_in=(AuditEvent.SIGN_IN_WITH_PASSKEY, ""),
                user_agent=user_agent,
            )
        except AccountChangedError:
            raise InvalidPasskeyError(PasskeyProblem.PERSON) from None

    async def answer_challenge(
        self, token: str, code: str, attribution: Attribution, user_agent: bytes = b""
    ) -> Tokens:
        """Begin a session with an authenticator's code or a recovery code.

        Raises InvalidChallengeError, TooManyUnknownCredentialsError, WrongCodeError,
        TooManyAttemptsError.
        """
        challenge, account = await self._challenges.find(token, attribution.source_address)
        try:
            async with self._attempts.code(account.user.email, attribution.source_address):
                await self._factors.check(account, code, attribution)
            await self._challenges.remove(challenge)
            return await self._sessions.begin(
                account, attribution, used_second_factor=True, user_agent=user_agent
            )
        except (NotEnrolledError, AccountChangedError):
            raise InvalidChallengeError from None

    async def _with_current_hash(
        self, account: Account, password: str, source_address: str
    ) -> Account:
        """Rehash a correct password if the hash has outdated costs.

        Raises WrongPasswordError if the password was changed meanwhile.
        """
        if not self._passwords.is_outdated(account.password_hash):
            return account
        rehashed = await self._passwords.rehash(account.user.id, password, source_address)
        if await self._users.save_rehashed_password(account, rehashed):
            return replace(account, password_hash=rehashed)
        current = await self._users.get(account.user.id)
        if not await self._passwords.verify(current, password, source_address):
            raise WrongPasswordError
        return current

    async def _record_failure(self, account: Account | None, attribution: Attribution) -> None:
        tenant = INSTALLATION if account is None else account.user.tenant
        who = attribution if account is None else attribution.by(str(account.user))
        failed = event(who, tenant, AuditEvent.SIGN_IN_FAILED, outcome="ERR_AUTH_001")
        await self._audit_delivery.record(failed)

"""How people come in: by a password and a code, by an invitation, and by a new password."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol
from uuid import uuid4

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, mail, token_of
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.second_factors import SecondFactors
from pqkeep_gateway.people.sessions import NoSessionError, Sessions, Tokens
from pqkeep_gateway.people.team import InvitationId, OwnersOnlyError
from pqkeep_gateway.people.users import Account, EmailTakenError, User, UserStore
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution

INVITATION_LIFE = timedelta(days=7)
OPERATOR = "The operator"
"""Who invites, where it is not a person."""


class WrongPasswordError(Exception):
    """Nobody has this address and this password."""


class InvalidInvitationTokenError(Exception):
    """The token is of no invitation, or of one that is over."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """One person may become a tenant's."""

    id: InvitationId
    tenant: TenantId
    email: str
    role: Role
    expires_at: datetime
    token: str = field(repr=False)
    """Shown this once."""


class SignInStore(UserStore, Protocol):
    """Where people and invitations are kept, with the events of it. All raise UnavailableError."""

    async def invite(
        self,
        invitation: Invitation,
        digest: bytes,
        mail: OutgoingMail,
        made: Event,
        decides: Collection[Role],
    ) -> None:
        """Keep an invitation instead of any earlier one to the same address, and the letter.

        Raises OwnersOnlyError if an earlier one is to another role than these.
        """
        ...

    async def invited(self, digest: bytes, now: datetime) -> bool:
        """Return whether an invitation can be accepted."""
        ...

    async def accept(
        self, digest: bytes, password_hash: str, now: datetime, attribution: Attribution
    ) -> Account:
        """Use an invitation up and keep the person, in one step.

        Raises InvalidInvitationTokenError, EmailTakenError.
        """
        ...

    async def renew_hash(self, account: Account, password_hash: str) -> bool:
        """Keep another hash of the same password, in one step, unless the hash is another by now."""
        ...

    async def change_password(
        self, user: UserId, password_hash: str, mail: OutgoingMail, changed: Event
    ) -> None:
        """Keep another password, and end every session of the person's, in one step.

        Challenges and letters with which the password could be changed again are over too.
        """
        ...


class SignIn:
    """Lets people in."""

    def __init__(
        self,
        store: SignInStore,
        sessions: Sessions,
        passwords: Passwords,
        attempts: AttemptLimits,
        factors: SecondFactors,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Keep people in a store; invitations' tokens are kept as digests under the pepper."""
        self._store = store
        self._sessions = sessions
        self._passwords = passwords
        self._attempts = attempts
        self._factors = factors
        self._pepper = pepper
        self._courier = audit_delivery
        self._clock = clock

    async def sign_in(self, email: str, password: str, attribution: Attribution) -> Tokens:
        """Begin a session. Raises WrongPasswordError, SecondFactorRequiredError, TooManyAttemptsError.

        Where nobody has the address everything is done likewise, so that it takes as long.
        """
        await self._attempts.count(email, attribution.source_address)
        account = await self._store.find(email)
        known = None if account is None else account.password_hash
        is_right = await self._passwords.verify(known, password)
        if account is None or not is_right:
            await self._tell_of_failure(account, attribution)
            raise WrongPasswordError
        account = await self._renewed(account, password)
        factor = self._factors.of(account)
        if factor is not None:
            raise await self._factors.challenge(account, factor)
        return await self._begin(account, attribution)

    async def answer(self, challenge: str, code: str, attribution: Attribution) -> Tokens:
        """Begin a session of somebody who was challenged.

        Raises WrongPasswordError if there is no such challenge; WrongCodeError,
        TooManyAttemptsError.
        """
        account = await self._factors.answer(challenge, code, attribution)
        if account is None:
            raise WrongPasswordError
        return await self._begin(account, attribution, by_code=True)

    async def change_password(
        self, whose: SessionPrincipal, new: str, attribution: Attribution
    ) -> None:
        """Take another password, and end every session. Raises InvalidPasswordError."""
        password_hash = await self._passwords.hash(new)
        email = (await self._store.get(whose.user)).user.email
        told = mail(MailKind.PASSWORD_CHANGED, email, date_of(self._clock()))
        changed = event(attribution, whose.tenant, AuditEvent.CHANGE_PASSWORD)
        await self._store.change_password(whose.user, password_hash, told, changed)
        await self._courier.deliver()

    async def invite(
        self,
        tenant: TenantId,
        email: str,
        role: Role,
        attribution: Attribution,
        inviter: UserId | None = None,
        decides: Collection[Role] = frozenset(Role),
    ) -> Invitation:
        """Invite somebody, by a letter too; an earlier invitation of theirs is over.

        Without an inviter it is the operator's. Raises EmailTakenError, TooManyAttemptsError, and
        OwnersOnlyError unless whoever invites decides about both roles.
        """
        if role not in decides:
            raise OwnersOnlyError
        if inviter is not None:
            await self._attempts.count_invitation(email, tenant)
        if await self._store.find(email) is not None:
            raise EmailTakenError
        now = date_of(self._clock())
        by = OPERATOR if inviter is None else (await self._store.get(inviter)).user.email
        written = mail(MailKind.INVITATION, email, now, INVITATION_LIFE, by)
        token = token_of(written, CredentialKind.INVITATION, self._pepper)
        identifier = InvitationId(uuid4())
        invitation = Invitation(identifier, tenant, email, role, written.until, token)
        made = event(attribution, tenant, _INVITE[role])
        await self._store.invite(invitation, self._pepper.digest(token), written, made, decides)
        await self._courier.deliver()
        return invitation

    async def accept(
        self, token: str, password: str, attribution: Attribution
    ) -> tuple[User, Tokens]:
        """Become who was invited, and begin a session.

        Raises InvalidInvitationTokenError, EmailTakenError, InvalidPasswordError.
        """
        digest, now = self._pepper.digest(token), date_of(self._clock())
        is_token = kind_of(token) is CredentialKind.INVITATION
        if not (is_token and await self._store.invited(digest, now)):
            raise InvalidInvitationTokenError
        password_hash = await self._passwords.hash(password)
        account = await self._store.accept(digest, password_hash, now, attribution)
        return account.user, await self._sessions.begin(account, attribution)

    async def _renewed(self, account: Account, password: str) -> Account:
        """Return somebody with a hash of today's costs; their password is right.

        Raises WrongPasswordError if it is another one meanwhile.
        """
        if not self._passwords.is_outdated(account.password_hash):
            return account
        renewed = replace(account, password_hash=await self._passwords.hash_again(password))
        if await self._store.renew_hash(account, renewed.password_hash):
            return renewed
        now = await self._store.get(account.user.id)
        if not await self._passwords.verify(now.password_hash, password):
            raise WrongPasswordError
        return now

    async def _begin(
        self, account: Account, attribution: Attribution, *, by_code: bool = False
    ) -> Tokens:
        try:
            return await self._sessions.begin(account, attribution, by_code=by_code)
        except NoSessionError:
            raise WrongPasswordError from None

    async def _tell_of_failure(self, account: Account | None, attribution: Attribution) -> None:
        tenant = INSTALLATION if account is None else account.user.tenant
        who = attribution if account is None else attribution.by(str(account.user))
        failed = event(who, tenant, AuditEvent.SIGN_IN_FAILED, outcome="ERR_AUTH_001")
        await self._courier.record(failed)


_INVITE: Mapping[Role, AuditEvent] = {
    Role.OWNER: AuditEvent.INVITE_OWNER,
    Role.ADMIN: AuditEvent.INVITE_ADMIN,
    Role.DEVELOPER: AuditEvent.INVITE_DEVELOPER,
    Role.VIEWER: AuditEvent.INVITE_VIEWER,
}

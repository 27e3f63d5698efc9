"""Changing one's own password while signed in."""

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, new_mail
from pqkeep_gateway.people.passwords import Passwords, require_valid
from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.storage.users import SqlUsers
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution


class PasswordChange:
    """Replaces passwords of people who are signed in."""

    def __init__(
        self,
        users: SqlUsers,
        passwords: Passwords,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._users = users
        self._passwords = passwords
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def change(
        self, principal: SessionPrincipal, password: str, attribution: Attribution
    ) -> None:
        """Replace a password and end every session of its user.

        Raises InvalidPasswordError, PasswordsDisabledError.
        """
        self._passwords.require_enabled(principal.tenant)
        require_valid(password)
        before_change()  # hashing takes long
        user = principal.user
        password_hash = await self._passwords.hash(user, password, attribution.source_address)
        email = (await self._users.get(user)).user.email
        mail = new_mail(MailKind.PASSWORD_CHANGED, email, date_of(self._clock()))
        changed = event(attribution, principal.tenant, AuditEvent.CHANGE_PASSWORD)
        await self._users.save_password(user, password_hash, mail, changed)
        await self._audit_delivery.deliver()

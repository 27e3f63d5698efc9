"""Named operators: each has a credential of their own, and the audit log has their name."""

import re
from datetime import UTC, datetime

from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.access.principals import OperatorError
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.operators import Operator, SqlOperators
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

MAX_OPERATORS = 32
_ATTRIBUTION = Attribution("", "pqkeepd", "")
_is_name = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}").fullmatch


class Operators:
    """Adds, rotates and removes operators, beside gateways that run."""

    def __init__(self, store: SqlOperators, pepper: Pepper) -> None:
        self._store = store
        self._pepper = pepper

    async def list(self) -> tuple[Operator, ...]:
        """Return all operators, by name."""
        return await self._store.list()

    async def add(self, name: str) -> str:
        """Add an operator; return the credential, which is not stored. Raises OperatorError."""
        if not _is_name(name):
            raise OperatorError(
                "a name is 1 to 32 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit"
            )
        credential = new_credential(CredentialKind.OPERATOR)
        if not await self._store.add(
            name,
            self._pepper.digest(credential),
            datetime.now(UTC),
            MAX_OPERATORS,
            _event(AuditEvent.ADD_OPERATOR, name),
        ):
            raise OperatorError(
                f"there is an operator {name} already, or there are {MAX_OPERATORS} operators"
            )
        return credential

    async def rotate(self, name: str) -> str:
        """Give an operator a new credential instead of the old one. Raises OperatorError."""
        credential = new_credential(CredentialKind.OPERATOR)
        digest = self._pepper.digest(credential)
        rotated = _event(AuditEvent.ROTATE_OPERATOR, name)
        if not await self._store.rotate(name, digest, datetime.now(UTC), rotated):
            raise OperatorError(_NOBODY)
        return credential

    async def remove(self, name: str) -> None:
        """Accept an operator's credential no longer. Raises OperatorError."""
        if not await self._store.remove(name, _event(AuditEvent.REMOVE_OPERATOR, name)):
            raise OperatorError(_NOBODY)


_NOBODY = "there is no operator of this name"


def _event(operation: AuditEvent, name: str) -> Event:
    return event(_ATTRIBUTION, INSTALLATION, operation, policy=f"operator-{name}")

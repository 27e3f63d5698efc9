"""The health of the service, the state of the installation, and its operators.

All except ``health`` need the operator's credential.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, get
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import Health, Installation, InstallationPart, Operator

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Status(Generic[T_co]):
    """The service as a whole."""

    _transport: T_co

    @Operation
    def health(self) -> Call[Health]:
        """Return if the service is ready. Raises OutOfServiceError if not."""
        return Call(method="GET", path="/healthz", read=_health)


def _health(data: Data) -> Health:
    return Health(status=data.text("status"))


FACTS = ("log", "root_key", "mail", "backups", "tenants")
"""The fields that are objects. The field of an unavailable part is null."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InstallationState(Generic[T_co]):
    """The installation's state, for operators."""

    _transport: T_co

    @Operation
    def get(self) -> Call[Installation]:
        """Return the health of each part, and the other fields of "Installation" in docs/api.md."""
        return get("/installation", _installation)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operators(Generic[T_co]):
    """Named operators. The command ``pqkeepd operators`` on the host adds and removes them."""

    _transport: T_co

    @Operation
    def list(self) -> Call[tuple[Operator, ...]]:
        """Return all named operators, with the last use of their credentials."""
        return get("/operators", lambda data: tuple(map(_operator, data.objects("operators"))))


def _installation(data: Data) -> Installation:
    return Installation(
        version=data.text("version"),
        parts=tuple(
            InstallationPart(
                name=part.text("name"),
                is_ready=part.flag("ready"),
                reason=part.text_or_none("reason"),
            )
            for part in data.objects("parts")
        ),
        facts={name: data.json_or_none(name) for name in FACTS},
        certificates={
            certificate.text("name"): certificate.time("expires_at")
            for certificate in data.objects("certificates")
        },
    )


def _operator(data: Data) -> Operator:
    return Operator(
        name=data.text("name"),
        created_at=data.time("created_at"),
        last_used_at=data.time_or_none("last_used_at"),
        last_used_from=data.text_or_none("last_used_from"),
    )

"""Whether the service answers, the state of the installation, and who operates it.

All but the first take the operator's credential.
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
        """Return if requests would be answered. Raises OutOfServiceError if not."""
        return Call(method="GET", path="/healthz", read=_health)


def _health(data: Data) -> Health:
    return Health(status=data.text("status"))


FACTS = ("log", "root_key", "mail", "backups", "tenants")
"""What the installation tells as objects; what a part that is missing would tell is null."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InstallationState(Generic[T_co]):
    """What an operator wants to know of the installation."""

    _transport: T_co

    @Operation
    def get(self) -> Call[Installation]:
        """Return the health of each part, and what else docs/api.md has under "Installation"."""
        return get("/installation", _installation)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operators(Generic[T_co]):
    """Named operators. Adding and removing them is done on the host: ``pqkeepd operators``."""

    _transport: T_co

    @Operation
    def list(self) -> Call[tuple[Operator, ...]]:
        """Return all named operators, and when their credentials were shown last."""
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

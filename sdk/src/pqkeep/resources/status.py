"""Whether the service would answer."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import Health

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

"""What an operation may cost, in microseconds of CPU. The architecture was chosen to hold these."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.load import Measurement


@dataclass(frozen=True, slots=True)
class Budget:
    """One row."""

    name: str
    microseconds: float
    of: Callable[[Measurement], float]


BUDGETS = (
    Budget("gateway", 65.0, lambda measured: measured.cpu_front),
    Budget("key service, record durable", 50.0, lambda measured: measured.cpu_back),
    Budget("whole operation", 110.0, lambda measured: measured.cpu),
)
"""They are for one ML-KEM-768 operation over HTTP, with its audit record durable."""

UNDER_BUDGET = ("encapsulate", "decapsulate")
"""The operations that the budgets are about."""

"""The budget of an operation in microseconds of CPU. The architecture was chosen for these."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.load import Measurement


@dataclass(frozen=True, slots=True)
class Budget:
    """The CPU time that one part of an operation may take."""

    name: str
    microseconds: float
    of: Callable[[Measurement], float]


BUDGETS = (
    Budget("gateway", 65.0, lambda measured: measured.cpu_front),
    Budget("key service, record durable", 50.0, lambda measured: measured.cpu_back),
    Budget("whole operation", 110.0, lambda measured: measured.cpu),
)
"""For one ML-KEM-768 operation over HTTP, with a durable audit record."""

UNDER_BUDGET = ("encapsulate", "decapsulate")
"""The operations that the budgets apply to."""

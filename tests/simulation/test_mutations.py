"""Deliberate bugs in the product: the simulation finds each, by the violated invariant."""

from __future__ import annotations

import pytest
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import run


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_found(mutation: Mutation) -> None:
    """One of the seeds violates an invariant of the mutation."""
    with mutation.applied():
        found = next(
            (
                report
                for place in range(mutation.seeds)
                if (report := run((mutation.first + place) % mutation.seeds, mutation.kind)).finding
            ),
            None,
        )
    assert found is not None
    assert found.invariant in mutation.found_by, found.finding

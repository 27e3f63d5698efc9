"""Every operation with a disabled key is refused until it is enabled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.contract.conftest import World
from tests.fixtures.caller import Caller, refusal_of
from tests.sampling import SLOW_ALGORITHMS, later

from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, Operation

CASES = [later(each) if each in SLOW_ALGORITHMS else each for each in CURRENT]


@pytest.mark.parametrize("algorithm", CASES)
def test_a_disabled_key_does_nothing_until_it_is_enabled(
    world: World,
    new_tenant: Callable[..., Caller],
    paths: Mapping[Operation, str],
    algorithm: Algorithm,
) -> None:
    """Every operation with a disabled key is 404, as for a wrong status."""
    own = replace(world, caller=new_tenant(), algorithms={algorithm}, fields={})
    named = {"algorithm": algorithm.value}
    own.caller.post("/kms/keys/generate", named, status=201)
    own.use(algorithm, 1)
    used = sorted(ALGORITHMS[algorithm].operations & paths.keys())
    key = {**named, "key_version": 1}
    assert own.caller.post("/kms/keys/disable", key)["status"] == "disabled"
    for operation in used:
        response = own.caller.ask("POST", paths[operation], own.body(operation, algorithm, 1))
        assert refusal_of(response)[:2] == (404, "ERR_NOT_FOUND_001")
    assert own.caller.post("/kms/keys/enable", key)["status"] == "active"
    for operation in used:
        own.caller.post(paths[operation], own.body(operation, algorithm, 1))

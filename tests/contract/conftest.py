"""One tenant with a key of each algorithm in each status, and what each key made while active."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation, running
from tests.sampling import step

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.keys import KeyStatus

PATHS: Mapping[Operation, str] = {
    Operation.ENCRYPT: "/kem/encrypt",
    Operation.DECRYPT: "/kem/decrypt",
    Operation.ENCAPSULATE: "/kem/encapsulate",
    Operation.DECAPSULATE: "/kem/decapsulate",
    Operation.WRAP: "/kem/key/wrap",
    Operation.UNWRAP: "/kem/key/unwrap",
    Operation.SIGN: "/signature/sign",
    Operation.VERIFY: "/signature/verify",
    Operation.SIGN_HASH: "/signature/sign-hash",
    Operation.VERIFY_HASH: "/signature/verify-hash",
}
VERSIONS: Mapping[KeyStatus, int] = {
    KeyStatus.ARCHIVED: 1,
    KeyStatus.RETIRED: 2,
    KeyStatus.ACTIVE: 3,
}


@dataclass
class World:
    """A tenant whose keys are, for every algorithm: 1 archived, 2 retired, 3 active."""

    caller: Caller
    plaintext: str
    secret: str
    message: dict[str, str]
    hash: dict[str, str]
    fields: dict[tuple[Operation, Algorithm, int], dict[str, Any]] = field(default_factory=dict)
    """What a valid request says beside ``algorithm`` and ``key_version``."""

    def body(self, operation: Operation, algorithm: Algorithm, version: int) -> dict[str, Any]:
        """Return a valid request."""
        return {
            **self.fields[operation, algorithm, version],
            "algorithm": algorithm.value,
            "key_version": version,
        }

    def use(self, algorithm: Algorithm, version: int) -> None:
        """Make something with the active key for each reading operation to read."""
        named = {"algorithm": algorithm.value, "key_version": version}
        for writing, given, reading, made, kept in (
            (Operation.ENCRYPT, {"plaintext": self.plaintext}, Operation.DECRYPT, "ciphertext", {}),
            (Operation.ENCAPSULATE, {}, Operation.DECAPSULATE, "kem_ciphertext", {}),
            (Operation.WRAP, {"symmetric_key": self.secret}, Operation.UNWRAP, "wrapped_key", {}),
            (Operation.SIGN, self.message, Operation.VERIFY, "signature", self.message),
            (Operation.SIGN_HASH, self.hash, Operation.VERIFY_HASH, "signature", self.hash),
        ):
            if writing in ALGORITHMS[algorithm].operations:
                answer = self.caller.post(PATHS[writing], {**given, **named})
                self.fields[writing, algorithm, version] = given
                self.fields[reading, algorithm, version] = {made: answer[made], **kept}

    def copy(self, algorithm: Algorithm, version: int, *, into: int) -> None:
        """Use what one version made in requests that name another."""
        for operation in ALGORITHMS[algorithm].operations & PATHS.keys():
            made = self.fields[operation, algorithm, version]
            self.fields[operation, algorithm, into] = made


BEFORE_A_DATABASE = frozenset(
    {
        "test_body.py",
        "test_envelope.py",
        "test_fields.py",
        "test_http_edges.py",
        "test_openapi.py",
        "test_reference_page.py",
    }
)
"""What is answered before anything but a credential is looked up, whichever database it is."""


FEW_CASES = 5
"""So many cases of a test are tried on each kind of database."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what an installation answers on each kind of database, if it comes that far."""
    if "installation" in metafunc.fixturenames:
        kinds = ["sqlite"]
        if Path(metafunc.definition.path).name not in BEFORE_A_DATABASE:
            kinds.append("postgresql")
        metafunc.parametrize("installation", kinds, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where a test has many cases, try some of them on the second kind of database."""
    seen: Counter[str] = Counter()
    left_out = []
    for item in items:
        function, _, case = item.nodeid.partition("[")
        if function.startswith("tests/contract/") and case.startswith("postgresql"):
            if seen[function] >= FEW_CASES and seen[function] % step(5):
                left_out.append(item)
            seen[function] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def world(
    installation: Installation, new_tenant: Callable[..., Caller], b64: Callable[[bytes], str]
) -> World:
    """The tenant; tests read from it and change nothing."""
    caller = new_tenant()
    digest = {"hash": b64(os.urandom(32)), "hash_algorithm": "SHA-256"}
    message = {"message": b64(os.urandom(50))}
    world = World(caller, b64(os.urandom(40)), b64(os.urandom(32)), message, digest)
    for algorithm in ALGORITHMS:
        named = {"algorithm": algorithm.value}
        caller.post("/kms/keys/generate", named, status=201)
        caller.post("/kms/keys/rotate", named, status=201)
        world.use(algorithm, 2)
        caller.post("/kms/keys/rotate", named, status=201)
        world.use(algorithm, 3)
        world.copy(algorithm, 2, into=1)
        installation.archive(caller.tenant_id, algorithm, 1)
    return world


@pytest.fixture(scope="session")
def paths() -> Mapping[Operation, str]:
    """Where each operation that uses a key is."""
    return PATHS


@pytest.fixture(scope="session")
def versions() -> Mapping[KeyStatus, int]:
    """Which key version of the world's tenant has which status."""
    return VERSIONS


@pytest.fixture(scope="session")
def nobody(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant without any key; tests leave it so."""
    return new_tenant()


PLANS = """\
[free]
requests_per_minute = 1_000_000
operations_per_month = 20

[starter]
requests_per_minute = 7

[growth]
pqc_keys = 3
"""
POLICIES = """\
@id("no-x-wing-for-starters")
forbid (principal, action == Action::"encrypt", resource == Algorithm::"X-Wing")
when { principal.tier == Tier::"starter" };
"""


@pytest.fixture(scope="session")
def own_rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation with an operator's own plans and policies, and no overlap of API keys."""
    folder = tmp_path_factory.mktemp("own-rules")
    plans, policies = folder / "own.toml", folder / "own"
    plans.write_text(PLANS)
    policies.mkdir()
    (policies / "own.cedar").write_text(POLICIES)
    settings = {
        "plans_file": str(plans),
        "policy_directory": str(policies),
        "api_key_overlap_seconds": 0,
    }
    with running(folder, settings=settings) as started:
        yield started


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation set up as for others than its developer: no sign-up, cookies over TLS."""
    folder = tmp_path_factory.mktemp("closed")
    settings = {"signup": "operator", "cookies": "secure"}
    with running(folder, settings=settings) as started:
        yield started

"""One tenant with a key of each algorithm in each status, with results of each key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation, running
from tests.sampling import SLOW_ALGORITHMS

from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, Operation
from pqkeep_protocol.keys import KeyStatus

PATHS: Mapping[Operation, str] = {
    Operation.ENCRYPT: "/kem/encrypt",
    Operation.DECRYPT: "/kem/decrypt",
    Operation.ENCAPSULATE: "/kem/encapsulate",
    Operation.DECAPSULATE: "/kem/decapsulate",
    Operation.WRAP: "/kem/key/wrap",
    Operation.UNWRAP: "/kem/key/unwrap",
    Operation.RE_ENCRYPT: "/kem/re-encrypt",
    Operation.SIGN: "/signature/sign",
    Operation.VERIFY: "/signature/verify",
    Operation.SIGN_HASH: "/signature/sign-hash",
    Operation.VERIFY_HASH: "/signature/verify-hash",
    Operation.SIGN_JWS: "/signature/jws",
    Operation.SIGN_MU: "/signature/sign-mu",
    Operation.VERIFY_MU: "/signature/verify-mu",
    Operation.GENERATE_DATA_KEY: "/kem/data-key",
    Operation.COMPUTE_MAC: "/mac/compute",
    Operation.VERIFY_MAC: "/mac/verify",
}
VERSIONS: Mapping[KeyStatus, int] = {
    KeyStatus.ARCHIVED: 1,
    KeyStatus.RETIRED: 2,
    KeyStatus.ACTIVE: 3,
}


@dataclass
class World:
    """A tenant with three versions of each key: 1 archived, 2 retired, 3 active."""

    caller: Caller
    plaintext: str
    secret: str
    message: dict[str, str]
    hash: dict[str, str]
    mu: dict[str, str]
    archive: Callable[[str, Algorithm, int], None]
    algorithms: set[Algorithm] = field(default_factory=set)
    """The algorithms with keys. A slow one is added when first needed."""
    fields: dict[tuple[Operation, Algorithm, int], dict[str, Any]] = field(default_factory=dict)
    """The fields of a valid request besides ``algorithm`` and ``key_version``."""

    def add(self, algorithm: Algorithm) -> None:
        """Make the keys of an algorithm, unless they exist."""
        if algorithm in self.algorithms:
            return
        self.algorithms.add(algorithm)
        named = {"algorithm": algorithm.value}
        self.caller.post("/kms/keys/generate", named, status=201)
        self.caller.post("/kms/keys/rotate", named, status=201)
        self.use(algorithm, 2)
        self.caller.post("/kms/keys/rotate", named, status=201)
        self.use(algorithm, 3)
        self.copy(algorithm, 2, into=1)
        self.archive(self.caller.tenant_id, algorithm, 1)

    def body(self, operation: Operation, algorithm: Algorithm, version: int) -> dict[str, Any]:
        """Return the body of a valid request."""
        self.add(algorithm)
        return {
            **self.fields[operation, algorithm, version],
            "algorithm": algorithm.value,
            "key_version": version,
        }

    def use(self, algorithm: Algorithm, version: int) -> None:
        """Make an input for each reading operation, with the active key."""
        named = {"algorithm": algorithm.value, "key_version": version}
        for writing, given, reading, made, kept in (
            (Operation.ENCRYPT, {"plaintext": self.plaintext}, Operation.DECRYPT, "ciphertext", {}),
            (Operation.ENCAPSULATE, {}, Operation.DECAPSULATE, "kem_ciphertext", {}),
            (Operation.WRAP, {"symmetric_key": self.secret}, Operation.UNWRAP, "wrapped_key", {}),
            (Operation.SIGN, self.message, Operation.VERIFY, "signature", self.message),
            (Operation.SIGN_HASH, self.hash, Operation.VERIFY_HASH, "signature", self.hash),
            (Operation.SIGN_MU, self.mu, Operation.VERIFY_MU, "signature", self.mu),
            (Operation.COMPUTE_MAC, self.message, Operation.VERIFY_MAC, "mac", self.message),
        ):
            if writing in ALGORITHMS[algorithm].operations:
                response = self.caller.post(PATHS[writing], {**given, **named})
                self.fields[writing, algorithm, version] = given
                self.fields[reading, algorithm, version] = {made: response[made], **kept}
                if (
                    writing is Operation.SIGN
                    and Operation.SIGN_JWS in ALGORITHMS[algorithm].operations
                ):
                    payload = {"payload": self.message["message"]}
                    self.fields[Operation.SIGN_JWS, algorithm, version] = payload
                if writing is Operation.ENCRYPT:
                    if Operation.GENERATE_DATA_KEY in ALGORITHMS[algorithm].operations:
                        self.fields[Operation.GENERATE_DATA_KEY, algorithm, version] = {}
                    self.fields[Operation.RE_ENCRYPT, algorithm, version] = {made: response[made]}

    def copy(self, algorithm: Algorithm, version: int, *, into: int) -> None:
        """Copy the inputs of one version to requests with another version."""
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
"""Cases that end before they reach the database. They run with one kind of database only."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of an installation on each kind of database, unless they end sooner."""
    if "installation" in metafunc.fixturenames:
        kinds = ["sqlite"]
        if Path(metafunc.definition.path).name not in BEFORE_A_DATABASE:
            kinds.append("postgresql")
        metafunc.parametrize("installation", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def world(
    installation: Installation, new_tenant: Callable[..., Caller], b64: Callable[[bytes], str]
) -> World:
    """The tenant. Tests read from it and change nothing."""
    caller = new_tenant()
    digest = {"hash": b64(os.urandom(32)), "hash_algorithm": "SHA-256"}
    message = {"message": b64(os.urandom(50))}
    plaintext, secret = b64(os.urandom(40)), b64(os.urandom(32))
    mu = {"mu": b64(os.urandom(64))}
    world = World(caller, plaintext, secret, message, digest, mu, installation.archive)
    for algorithm in set(CURRENT) - SLOW_ALGORITHMS:
        world.add(algorithm)
    return world


@pytest.fixture(scope="session")
def paths() -> Mapping[Operation, str]:
    """The path of each operation that uses a key."""
    return PATHS


@pytest.fixture(scope="session")
def versions() -> Mapping[KeyStatus, int]:
    """The key version with each status in the world's tenant."""
    return VERSIONS


@pytest.fixture(scope="session")
def nobody(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant without any key. Tests must not add one."""
    return new_tenant()


PROXY = "127.0.0.2"
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
    """An installation with the operator's own plans and policies.

    API keys have no overlap, nothing is sold, and the operator's default plan is different.
    """
    folder = tmp_path_factory.mktemp("own-rules")
    plans, policies = folder / "own.toml", folder / "own"
    plans.write_text(PLANS)
    policies.mkdir()
    (policies / "own.cedar").write_text(POLICIES)
    settings = {
        "plans_file": str(plans),
        "policy_directory": str(policies),
        "api_key_overlap_seconds": 0,
        "default_plan": "professional",
        "self_service": False,
    }
    with running(folder, settings=settings) as started:
        yield started


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation with settings for the public.

    No sign-up, cookies over TLS, a reverse proxy, and an overlap of one second.
    """
    folder = tmp_path_factory.mktemp("closed")
    settings = {
        "signup": "operator",
        "cookies": "secure",
        "trusted_proxies": [f"{PROXY}/32"],
        "api_key_overlap_seconds": 1,
    }
    with running(folder, settings=settings) as started:
        yield started

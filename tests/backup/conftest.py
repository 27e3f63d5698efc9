"""The operator's commands, and objects that must be usable after a restore."""

from __future__ import annotations

import base64
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import running
from tests.fixtures.processes import ENVIRONMENT

from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, Operation

COMMAND_SECONDS = 100
UNKNOWN = ("--newest", "0.0")
"""The option for a restore without knowledge of a newer backup."""
TEXT = base64.b64encode(b"what was there before").decode()
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def command(pqkeepd_command: Sequence[str | Path]) -> Command:
    """Run pqkeepd to its end; return status and output."""

    def run(
        *arguments: str | Path, environment: Mapping[str, str] = ENVIRONMENT
    ) -> tuple[int, str]:
        ended = subprocess.run(
            [*pqkeepd_command, *arguments],
            env={**environment, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    return run


@dataclass(frozen=True)
class RecoveryKey:
    """A recovery key's files."""

    private: Path
    public: Path


@pytest.fixture(scope="session")
def recovery_key(tmp_path_factory: pytest.TempPathFactory, command: Command) -> RecoveryKey:
    """A recovery key, made by the command."""
    folder = tmp_path_factory.mktemp("recovery")
    key = RecoveryKey(folder / "recovery.private", folder / "recovery.public")
    status, said = command(
        *("recovery-key", "create", "--private", key.private, "--public", key.public)
    )
    assert status == 0, said
    return key


@dataclass(frozen=True)
class Backup:
    """A backup of a stopped installation."""

    file: Path
    data: Path
    said: str
    """The command's output."""

    @property
    def root_key(self) -> Path:
        """Its root key."""
        return self.data / "keyservice" / "root.key"


@pytest.fixture(scope="session")
def backup(
    tmp_path_factory: pytest.TempPathFactory,
    command: Command,
    recovery_key: RecoveryKey,
) -> Backup:
    """A small backup."""
    folder = tmp_path_factory.mktemp("backup")
    file, data = folder / "backup", folder / "data"
    with running(folder, data=data) as installation:
        installation.demo().post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
        operator = installation.operator()
        while not any(
            each["size"] > 2 for each in operator.get("/audit/checkpoints")["checkpoints"]
        ):
            time.sleep(0.1)  # one is signed every second in which the log grew
    status, said = command(
        *("backup", "--data", data, "--recovery-key", recovery_key.public, "--to", file),
    )
    assert status == 0, said
    return Backup(file, data, said)


QUICK = tuple(
    algorithm
    for algorithm in CURRENT
    if ALGORITHMS[algorithm].standard != "FIPS 205" or algorithm is Algorithm.SLH_DSA_SHA2_128F
)
"""The algorithms without the slow ones, which need up to a second for a signature."""


@dataclass
class Outputs:
    """Ciphertexts and signatures of one tenant, which must stay usable."""

    ciphertexts: list[dict[str, Any]] = field(default_factory=list)
    signatures: list[dict[str, Any]] = field(default_factory=list)
    macs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, caller: Caller, algorithms: Iterable[Algorithm] = CURRENT) -> Outputs:
        """Make a key of each algorithm for a tenant, one of them retired, and use them all."""
        outputs = cls()
        for algorithm in algorithms:
            named = {"algorithm": algorithm}
            caller.post("/kms/keys/generate", named, status=201)
            if algorithm is Algorithm.ML_KEM_768:
                caller.post("/kms/keys/rotate", named, status=201)
            if Operation.ENCRYPT in ALGORITHMS[algorithm].operations:
                made = caller.post("/kem/encrypt", {**named, "plaintext": TEXT})
                outputs.ciphertexts.append({**named, **_named(made, "ciphertext")})
            elif Operation.COMPUTE_MAC in ALGORITHMS[algorithm].operations:
                made = caller.post("/mac/compute", {**named, "message": TEXT})
                outputs.macs.append({**named, **_named(made, "mac"), "message": TEXT})
            else:
                made = caller.post("/signature/sign", {**named, "message": TEXT})
                body = {**named, **_named(made, "signature"), "message": TEXT}
                outputs.signatures.append(body)
        return outputs

    def check(self, caller: Caller) -> None:
        """Decrypt and verify everything, and sign again."""
        for body in self.ciphertexts:
            assert caller.post("/kem/decrypt", body)["plaintext"] == TEXT
        for body in self.signatures:
            assert caller.post("/signature/verify", body)["valid"] is True
        for body in self.macs:
            assert caller.post("/mac/verify", body)["valid"] is True
        new = {"algorithm": "SLH-DSA-SHA2-128f", "message": TEXT}
        made = caller.post("/signature/sign", new)
        assert caller.post("/signature/verify", {**new, **_named(made, "signature")})["valid"]


def _named(made: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: made[name], "key_version": made["key_version"]}


@pytest.fixture(scope="session")
def ask_file() -> Callable[..., list[tuple[Any, ...]]]:
    """Run one statement on a SQLite file."""

    def ask(path: Path, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    return ask

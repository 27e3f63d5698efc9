"""The operator's commands, and objects that must be usable after a restore."""

from __future__ import annotations

import base64
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from gateway.tests.test_external_keys import RSA_2048, asset, bom
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation, running
from tests.fixtures.processes import ENVIRONMENT
from tests.patience import PATIENCE

from pqkeep import Client
from pqkeep.key_import import wrap
from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, Operation

LEGACY = "RSA-OAEP-SHA-256"
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
            timeout=PATIENCE,
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
"""All algorithms except the slow ones, which need up to a second for a signature."""


@dataclass
class Outputs:
    """Ciphertexts and signatures of one tenant, which must stay usable."""

    ciphertexts: list[dict[str, Any]] = field(default_factory=list)
    signatures: list[dict[str, Any]] = field(default_factory=list)
    macs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, caller: Caller, algorithms: Iterable[Algorithm] = CURRENT) -> Outputs:
        """Make a key of each algorithm for a tenant, retire one of the keys, and use them all."""
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


@dataclass(frozen=True)
class Migration:
    """A tenant that moves from one algorithm to another, and the API's facts about the move."""

    tenant_id: str
    api_key: str
    sealed: str
    """A ciphertext of the legacy key, in Base64."""
    facts: dict[str, Any]

    @classmethod
    def of(cls, installation: Installation) -> Migration:
        """Make a legacy key, a denying rule, uses, moves, a scan, a canary and a key elsewhere."""
        tenant = installation.new_tenant()
        owner = installation.person(tenant.tenant_id)
        for algorithm in ("Kyber768", "X-Wing", "ML-KEM-1024"):
            tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
        private = rsa.generate_private_key(65537, 2048)
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with Client(installation.base_url, tenant.api_key) as client:
            issued = client.keys.get_import_key(LEGACY)
            client.keys.import_key(issued, wrap(issued, pem))
        digest = hashes.SHA256()
        padding = OAEP(MGF1(digest), digest, None)
        sealed = base64.b64encode(private.public_key().encrypt(b"old", padding)).decode()
        plan = {"sources": [{"algorithm": "Kyber768"}], "target": {"algorithm": "X-Wing"}}
        assert tenant.ask("PUT", "/campaigns/cards", plan).is_success
        made = tenant.post("/kem/encrypt", {"algorithm": "Kyber768", "plaintext": TEXT})
        body = {"algorithm": "Kyber768", **_named(made, "ciphertext")}
        moved = {**body, "to": {"algorithm": "X-Wing"}, "campaign": "cards"}
        tenant.post("/kem/re-encrypt", moved)
        scan = {
            "place": "cards",
            "sha256": "ab" * 32,
            "scanned_at": datetime.now(UTC).isoformat(),
            "counts": [{"algorithm": "Kyber768", "key_version": 1, "count": 2}],
        }
        tenant.post("/campaigns/cards/scans", scan, status=201)
        certificate = asset(
            "www",
            "certificate",
            crypto={"certificateProperties": {"subjectPublicKeyRef": "rsa"}},
        )
        document = bom(RSA_2048, certificate)
        tenant.post("/inventory/external", {"source": "tls", "document": document}, status=201)
        rule = {"name": "end", "algorithms": ["ML-KEM-1024"], "deny_from": "2020-01-01T00:00:00Z"}
        assert owner.ask_proven("PUT", "/rules/algorithms", rule).is_success
        until = (datetime.now(UTC) + timedelta(days=7)).isoformat()
        owner.post_proven("/campaigns/cards/canary", {"until": until}, status=201)
        installation.operator().post("/audit/checkpoints", status=201)
        return cls(tenant.tenant_id, tenant.api_key, sealed, cls.seen_by(tenant))

    @staticmethod
    def seen_by(tenant: Caller) -> dict[str, Any]:
        """Return what the API says, without the log and the time of the response."""
        inventory = tenant.get("/inventory")
        campaign = tenant.get("/campaigns/cards")
        for part in ("moved", "quiet", "canary"):
            del campaign[part]["as_of"]
        rules = tenant.get("/rules/algorithms")
        return {
            "inventory": inventory["keys"],
            "campaign": campaign,
            "rules": rules,
            "external": tenant.get("/inventory/external/tls"),
            "keys": tenant.get("/kms/keys", legacy=True),
        }

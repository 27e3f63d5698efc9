"""No secret of a run is in output, databases or errors."""

from __future__ import annotations

import base64
import hmac
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.e2e.secret_encodings import encodings
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation, running

from pqkeep_keyservice.keys.key_versions import SealedSeed
from pqkeep_keyservice.keys.sealing import Sealer, associated_data
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, Operation
from pqkeep_protocol.keys import KeyVersion, TenantId

PASSWORD = "the horse prefers oats"  # noqa: S105 - everybody's in the tests


@dataclass
class Run:
    """A finished run: its folder, its secrets and its errors."""

    data: Path
    output: bytes
    errors: list[bytes] = field(default_factory=list)
    secrets: dict[str, bytes] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    mailed: dict[str, str] = field(default_factory=dict)
    seeds: int = 0

    def databases(self) -> dict[str, bytes]:
        """Return the content of all database files, with SQLite's side files."""
        return {path.name: path.read_bytes() for path in self.data.rglob("*.sqlite3*")}


def work(caller: Caller, run: Run) -> None:
    """Use every algorithm, and cause errors with secrets in the requests."""
    plaintext = os.urandom(48)
    symmetric_key = os.urandom(32)
    run.secrets |= {"a plaintext": plaintext, "a symmetric key": symmetric_key}
    encoded = base64.b64encode(plaintext).decode()
    wrapped = base64.b64encode(symmetric_key).decode()
    for algorithm in CURRENT:
        spec = ALGORITHMS[algorithm]
        named: dict[str, Any] = {"algorithm": algorithm.value}
        use = {**named, "key_version": 1}
        caller.post("/kms/keys/generate", named, status=201)
        bodies = [("/kem/encrypt", {**named, "plaintext": encoded, "mode": encoded})]
        if Operation.ENCRYPT in spec.operations:
            made = caller.post("/kem/encrypt", {**named, "plaintext": encoded})
            caller.post("/kem/decrypt", {**use, "ciphertext": made["ciphertext"]})
            made = caller.post("/kem/data-key", named)
            run.secrets[f"a data key of {algorithm}"] = base64.b64decode(made["plaintext"])
            bodies.append(("/kem/decrypt", {**use, "ciphertext": encoded}))
        if Operation.ENCAPSULATE in spec.operations:
            shared = caller.post("/kem/encapsulate", use)
            secret = base64.b64decode(shared["shared_secret"])
            run.secrets[f"a shared secret of {algorithm}"] = secret
            caller.post("/kem/decapsulate", {**use, "kem_ciphertext": shared["kem_ciphertext"]})
        if Operation.COMPUTE_MAC in spec.operations:
            made = caller.post("/mac/compute", {**named, "message": encoded})
            body = {**use, "message": encoded, "mac": made["mac"]}
            caller.post("/mac/verify", body)
            bodies.append(("/mac/verify", {**body, "key_version": encoded}))
        if Operation.WRAP in spec.operations:
            made = caller.post("/kem/key/wrap", {**use, "symmetric_key": wrapped})
            caller.post("/kem/key/unwrap", {**use, "wrapped_key": made["wrapped_key"]})
            bodies.append(("/kem/key/wrap", {**use, "symmetric_key": wrapped + "="}))
            bodies.append(("/kem/key/unwrap", {**use, "wrapped_key": wrapped}))
        if Operation.SIGN in spec.operations:
            made = caller.post("/signature/sign", {**named, "message": encoded})
            body = {**use, "message": encoded, "signature": made["signature"]}
            caller.post("/signature/verify", body)
            bodies.append(("/signature/verify", {**body, "key_version": encoded}))
        for path, body in bodies:
            response = caller.ask("POST", path, body)
            assert response.is_client_error
            run.errors.append(response.content)
        caller.post("/kms/keys/rotate", named, status=201)


def unseal_all(run: Run) -> None:
    """Decrypt every seed in the database with the root key."""
    root_key = run.data / "keyservice" / "root.key"
    sealer = Sealer({1: read_root_key(root_key)})
    run.secrets["the root key"] = root_key.read_bytes()
    run.secrets["the pepper"] = (run.data / "gateway" / "pepper").read_bytes()
    with closing(sqlite3.connect(run.data / "keyservice" / "keys.sqlite3")) as connection:
        rows = connection.execute(
            "SELECT tenant_id, keyring, algorithm, version, public_key, sealed_seed FROM keys"
        ).fetchall()
    for tenant, keyring, name, version, public_key, sealed in rows:
        where = associated_data(
            TenantId(UUID(tenant)), keyring, Algorithm(name), KeyVersion(version), public_key
        )
        with sealer.unseal(SealedSeed(sealed), where) as seed:
            run.secrets[f"the seed of {name} {version}"] = bytes(seed.reveal())
            run.seeds += 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with every algorithm, inspected while it serves and at its end."""
    folder = tmp_path_factory.mktemp("secrets")
    with running(folder) as installation:
        run = serve(installation)
    run.output = (folder / "output").read_bytes()
    return run


def serve(installation: Installation) -> Run:
    """Work with a running installation and record its secrets."""
    run = Run(installation.data, b"")
    work(installation.demo(), run)
    other = installation.new_tenant()
    run.credentials = {
        "the demo tenant's API key": installation.ready["api_key"],
        "the operator's key": installation.ready["operator_key"],
        "another tenant's API key": other.api_key,
    }
    for shown in (other.api_key[:-1] + "!", other.api_key + "x"):
        refused = installation.caller(shown).ask("GET", "/kms/keys")
        assert refused.status_code == 401
        run.errors.append(refused.content)
    run.mailed = mailed(installation)
    unseal_all(run)
    # While it serves, what was written last is beside the databases, in their -wal files.
    assert any(name.endswith("-wal") and content for name, content in run.databases().items())
    for name, content in run.databases().items():
        assert_absent(run, content, name)
    return run


def mailed(installation: Installation) -> dict[str, str]:
    """Cause every kind of e-mail with a token or code; return these."""
    stranger, to = installation.caller(None), "ada@example.com"
    person = installation.person(installation.ready["tenant_id"], email=to)
    found = {"an invitation's token": installation.mailbox.token(to, "invitation")}
    stranger.post("/auth/forgot-password", {"email": to}, status=202)
    found["a new password's token"] = installation.mailbox.token(to, "password-reset")
    stranger.post("/auth/register", {"email": "new@example.com"}, status=202)
    found["a registration's token"] = installation.mailbox.token("new@example.com", "registration")
    step_up = person.post("/auth/step-up", {"password": PASSWORD})["step_up_token"]
    headers = {"X-Step-Up-Token": step_up}
    chosen = person.ask("PATCH", "/auth/me", {"email_codes": True}, headers=headers)
    assert chosen.is_success
    fields = {"email": to, "password": PASSWORD}
    challenge = stranger.ask("POST", "/auth/login", fields).json()["error"]["challenge_token"]
    stranger.post("/auth/mfa/email", {"challenge_token": challenge}, status=202)
    installation.mailbox.code(to)  # too short to look for
    return found | {"a challenge's token": challenge, "a step-up token": step_up}


def assert_absent(run: Run, content: bytes, where: str) -> None:
    """Search for every secret in every form."""
    for what, secret in run.secrets.items():
        assert not any(each in content for each in encodings(secret)), f"{what} is in {where}"
    for what, credential in (run.credentials | run.mailed).items():
        assert not any(each in content for each in encodings(credential.encode())), (
            f"{what}: {where}"
        )


def test_the_run_had_secrets_to_find(run: Run) -> None:
    """Two seeds of every algorithm and the log's own were unsealed, and would be found."""
    assert run.seeds == 2 * len(CURRENT) + 1
    for secret in run.secrets.values():
        for around in (b"%s", b"xx%sy", b"<%s>"):
            for written in (secret, base64.b64encode(around % secret), secret.hex().encode()):
                assert any(each in written for each in encodings(secret))


@pytest.mark.threat("accounts-database-reader", "keys-database-reader")
def test_no_secret_is_in_a_database(run: Run) -> None:
    """No database file contains a secret or a credential, as bytes, hexadecimal or base64."""
    databases = run.databases()
    assert {"keys.sqlite3", "accounts.sqlite3"} <= databases.keys()
    for name, content in databases.items():
        assert_absent(run, content, name)


def test_no_secret_is_in_an_error(run: Run) -> None:
    """No error quotes a secret, even if the request was full of them."""
    assert len(run.errors) > len(CURRENT)
    for content in run.errors:
        assert_absent(run, content, "an error")


def test_no_secret_is_in_the_output(run: Run) -> None:
    """The output has only the demo tenant's and the operator's credential, once each."""
    lines = run.output.splitlines()
    for what, credential in run.credentials.items():
        found = [line for line in lines if credential.encode() in line]
        assert len(found) == (0 if what.startswith("another") else 1), what
        lines = [line for line in lines if line not in found]
    assert_absent(run, b"\n".join(lines), "the output")


def test_no_credential_is_in_another_file(run: Run) -> None:
    """Only dev.json has credentials, and only root.key and pepper have secrets.

    Tokens from e-mails are only in the mail folder.
    """
    for path in run.data.rglob("*"):
        if (
            path.is_file()
            and path.name not in {"dev.json", "root.key", "pepper"}
            and path.suffix != ".eml"
        ):
            assert_absent(run, path.read_bytes(), path.name)
    kept = (run.data / "dev.json").read_text()
    assert run.credentials["another tenant's API key"] not in kept


def test_api_keys_are_stored_as_digests(run: Run) -> None:
    """The database has an API key's HMAC-SHA-256 under a subkey, and its last four characters."""
    pepper = (run.data / "gateway" / "pepper").read_bytes()
    subkey = hmac.digest(pepper, b"pqkeep/v1/digest/pqk_", "sha256")
    with closing(sqlite3.connect(run.data / "gateway" / "accounts.sqlite3")) as connection:
        rows = dict(connection.execute("SELECT digest, last4 FROM api_keys").fetchall())
    expected = {
        hmac.digest(subkey, key.encode(), "sha256"): key[-4:]
        for what, key in run.credentials.items()
        if what != "the operator's key"
    }
    assert rows == expected

"""A new root key under load: no interruption, no loss, and the old one opens nothing."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.backup.conftest import QUICK, UNKNOWN, Command, Outputs, RecoveryKey
from tests.fixtures.caller import Caller
from tests.fixtures.installation import running

from pqkeep_protocol.algorithms import Algorithm

AskFile = Callable[..., list[tuple[Any, ...]]]

TEXT = "eHh4"


def work(caller: Caller, stop: threading.Event, made: list[dict[str, Any]]) -> None:
    """Rotate and use keys until told to stop. An error ends it and is reported."""
    while not stop.is_set():
        for algorithm in ("Kyber768", "SLH-DSA-SHA2-128f"):
            caller.post("/kms/keys/rotate", {"algorithm": algorithm}, status=201)
        sealed = caller.post("/kem/encrypt", {"plaintext": TEXT})
        signed = caller.post("/signature/sign", {"algorithm": "SLH-DSA-SHA2-128f", "message": TEXT})
        made.append({"sealed": sealed, "signed": signed})


@pytest.mark.campaign
def test_a_new_root_key_under_load(
    command: Command,
    ask_file: AskFile,
    tmp_path: Path,
) -> None:
    """While keys are used, made and archived, all are sealed again without the old root key."""
    data = tmp_path / "data"
    keys = data / "keyservice" / "keys.sqlite3"
    with running(tmp_path) as installation:
        tenant, worker = installation.new_tenant(), installation.new_tenant()
        outputs = Outputs.of(tenant, QUICK)
        for algorithm in ("Kyber768", "SLH-DSA-SHA2-128f"):
            worker.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
        made: list[dict[str, Any]] = []
        stop = threading.Event()
        thread = threading.Thread(target=work, args=(worker, stop, made))
        thread.start()
        installation.archive(tenant.tenant_id, Algorithm.ML_KEM_768, 1)
        status, said = command("root-key", "rotate", "--data", data, "--destroy-old")
        assert status == 0, said
        assert thread.is_alive()
        stop.set()
        thread.join()
        outputs.check(tenant)
    assert sorted(path.name for path in (data / "keyservice").glob("root*")) == ["root-2.key"]
    under = "SELECT DISTINCT hex(substr(sealed_seed, 2, 1)) FROM keys WHERE sealed_seed NOT NULL"
    assert ask_file(keys, under) == [("02",)]
    archived = "SELECT version, sealed_seed FROM keys WHERE status = 'archived'"
    assert ask_file(keys, archived) == [(1, None)]

    with running(tmp_path) as installation:
        outputs.check(installation.caller(tenant.api_key, tenant.tenant_id))
        caller = installation.caller(worker.api_key, worker.tenant_id)
        for each in made[:3] + made[-3:]:
            sealed = each["sealed"]
            body = {name: sealed[name] for name in ("ciphertext", "key_version")}
            assert caller.post("/kem/decrypt", body)["plaintext"] == TEXT
            signed = {"algorithm": "SLH-DSA-SHA2-128f", "message": TEXT}
            body = {name: each["signed"][name] for name in ("signature", "key_version")}
            assert caller.post("/signature/verify", {**signed, **body})["valid"] is True


def test_without_a_key_service(command: Command, tmp_path: Path) -> None:
    """Without a running service the change is reported as unfinished, and a later command ends it."""
    data = tmp_path / "data"
    with running(tmp_path) as installation:
        tenant = installation.demo()
        tenant.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
        body = tenant.post("/kem/encrypt", {"algorithm": "X-Wing", "plaintext": TEXT})
    status, said = command("root-key", "rotate", "--data", data)
    assert (status, "does not respond" in said) == (1, True), said
    with running(tmp_path) as installation:
        status, said = command("root-key", "rotate", "--data", data)
        assert (status, "root.key" in said) == (0, True), said
        (data / "keyservice" / "root.key").unlink()
        opened = {"algorithm": "X-Wing"} | {
            name: body[name] for name in ("ciphertext", "key_version")
        }
        assert installation.demo().post("/kem/decrypt", opened)["plaintext"] == TEXT


def test_a_root_key_that_is_missing(command: Command, tmp_path: Path) -> None:
    """A service without the root key of its stored keys does not start."""
    data = tmp_path / "data"
    with running(tmp_path):
        pass
    settings = data / "keyservice" / "settings.toml"
    shutil.copy(data / "keyservice" / "root.key", data / "keyservice" / "root-2.key")
    settings.write_text(
        settings.read_text().replace(
            'root_key_file = "root.key"', 'root_keys = {2 = {file = "root-2.key"}}'
        )
    )
    status, said = command("dev", "--port", "0", "--data", data)
    assert (status, "root key 1 is missing" in said) == (1, True), said


def damage(folder: Path) -> None:
    """Change one byte of the tenant's only sealed signature seed."""
    with closing(sqlite3.connect(folder / "keys.sqlite3")) as connection, connection:
        ((sealed,),) = connection.execute(
            "SELECT sealed_seed FROM keys WHERE algorithm = 'ML-DSA-87'"
        )
        changed = sealed[:-1] + bytes((sealed[-1] ^ 1,))
        connection.execute(
            "UPDATE keys SET sealed_seed = ? WHERE sealed_seed = ?", (changed, sealed)
        )


def test_a_damaged_key_keeps_its_root_key(
    command: Command, recovery_key: RecoveryKey, tmp_path: Path
) -> None:
    """If a private key cannot be sealed again, the old root key stays, and a restore needs both."""
    data, file, new = tmp_path / "data", tmp_path / "backup", tmp_path / "new"
    with running(tmp_path, data=data) as installation:
        tenant = installation.demo()
        for algorithm in ("X-Wing", "ML-DSA-87"):
            tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
        made = tenant.post("/kem/encrypt", {"algorithm": "X-Wing", "plaintext": TEXT})
    folder = data / "keyservice"
    damage(folder)
    with running(tmp_path, data=data):
        status, said = command("root-key", "rotate", "--data", data, "--destroy-old")
        assert (status, "1 keys cannot be unsealed" in said) == (1, True), said
        status, said = command(
            *("backup", "--data", data, "--recovery-key", recovery_key.public, "--to", file)
        )
        assert status == 0, said
    restore = ("restore", file, "--recovery-key", recovery_key.private, "--data", new, *UNKNOWN)
    one, two = (("--root-key", folder / name) for name in ("root.key", "root-2.key"))
    for given, missing in ((one, "root key 2"), (two, "root key 1")):
        status, said = command(*restore, *given)
        assert (status, missing in said) == (1, True), said
    status, said = command(*restore, *two, *one)
    assert status == 0, said
    body = {"algorithm": "X-Wing", **{name: made[name] for name in ("ciphertext", "key_version")}}
    with running(tmp_path, data=new) as installation:
        assert installation.demo().post("/kem/decrypt", body)["plaintext"] == TEXT

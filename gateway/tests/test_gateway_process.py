"""A gateway that is set up wrongly does not start: exit status 78 and one clear message."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pqkeep_gateway.access.credentials import PEPPER_SIZE

SECONDS = 30.0
SETTINGS = f"""\
key_service_socket = "keyservice.sock"
database = "accounts.sqlite3"
pepper_file = "pepper"
operator_digest = "{"0f" * 32}"
port = 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a gateway is set up rightly."""
    (tmp_path / "settings.toml").write_text(SETTINGS)
    (tmp_path / "pepper").write_bytes(bytes(PEPPER_SIZE))
    (tmp_path / "pepper").chmod(0o400)
    return tmp_path


def _set(folder: Path, line: str) -> None:
    with (folder / "settings.toml").open("a") as settings:
        settings.write(line + "\n")


def _plans(folder: Path, text: str) -> None:
    (folder / "plans.toml").write_text(text)
    _set(folder, 'plans_file = "plans.toml"')


def _policies(folder: Path, text: str) -> None:
    (folder / "policies").mkdir()
    (folder / "policies" / "own.cedar").write_text(text)
    _set(folder, 'policy_directory = "policies"')


def _open_password(folder: Path) -> None:
    (folder / "password").write_text("secret-of-the-windows")
    (folder / "password").chmod(0o644)
    _set(folder, 'rate_windows_password_file = "password"\nrate_windows = "redis://127.0.0.1:1"')


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an unknown setting": (lambda at: _set(at, "colour = 1"), "colour"),
    "an unknown tier": (lambda at: _plans(at, "[gold]\napi_keys = 1\n"), "plans.toml"),
    "no requests": (lambda at: _plans(at, "[free]\nrequests_per_minute = 0\n"), "plans.toml"),
    "no plans": (lambda at: _set(at, 'plans_file = "missing.toml"'), "missing.toml"),
    "a policy without a name": (
        lambda at: _policies(at, "forbid (principal, action, resource);"),
        "needs a name",
    ),
    "no policies": (lambda at: _set(at, 'policy_directory = "missing"'), "missing"),
    "an open pepper": (lambda at: (at / "pepper").chmod(0o444), "0400"),
    "an open password": (_open_password, "0400"),
    "a password in the address": (
        lambda at: _set(at, 'rate_windows = "redis://:secret-of-the-windows@127.0.0.1:1/0"'),
        "a file of its own",
    ),
    "a password in the address's query": (
        lambda at: _set(
            at, 'rate_windows = "unix:///run/redis.sock?db=1&password=secret-of-the-windows"'
        ),
        "a file of its own",
    ),
    "another kind of address": (
        lambda at: _set(at, 'rate_windows = "https://127.0.0.1:1"'),
        "rate_windows",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_setup_is_refused(folder: Path, mistake: str) -> None:
    """The process ends at once with status 78, and says what is wrong in one line, no secret in it."""
    make, expected = MISTAKES[mistake]
    make(folder)
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "pqkeep_gateway", str(folder / "settings.toml")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": os.defpath},
        timeout=SECONDS,
        check=False,
        text=True,
    )
    assert ended.returncode == os.EX_CONFIG, ended.stdout
    assert expected in ended.stdout
    assert ended.stdout.count("\n") == 1
    assert "secret-of-the-windows" not in ended.stdout


def test_a_gateway_that_is_told_to_stop_closes_its_database(folder: Path) -> None:
    """SIGTERM and SIGINT end it with status 0, and all of the database is in its one file."""
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pqkeep_gateway", str(folder / "settings.toml")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": os.defpath},
            text=True,
        )
        assert process.stderr is not None
        with process.stderr as log:
            assert any("Uvicorn running" in line for line in log)
            process.send_signal(number)
            log.read()
        assert process.wait(SECONDS) == 0
        assert [path.name for path in folder.glob("accounts*")] == ["accounts.sqlite3"]

"""Unusual streams, homes, terminals and arguments: each ends with its documented status."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from sdk.tests.cli.conftest import PROGRAM, TIMEOUT
from tests.sampling import later

if TYPE_CHECKING:
    from pathlib import Path

    from sdk.tests.cli.conftest import Command

    from pqkeep import Client

SAYS_SOMETHING = (
    ("--help",),
    later((("audit", "verify", "--help"),)),
    ("keys", "list"),
    later((("keys", "public-key", "Kyber768"),)),
    later((("encrypt", "report.pdf", "--to", "-"),)),
)
"""Commands that write to standard output and succeed."""


def run(command: Command, shell: str, *arguments: str | bytes) -> tuple[int, bytes, str]:
    """Run the script by a shell line, in which "$@" is the command."""
    ended = subprocess.run(
        ["/bin/bash", "-c", shell, "bash", PROGRAM, *arguments],
        cwd=command.directory,
        env=dict(command.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    return checked(ended.returncode, ended.stdout, ended.stderr.decode())


def run_imported(command: Command, *arguments: str | bytes) -> tuple[int, bytes, str]:
    """Run the command in a process that has imported it."""
    ended = command(*arguments)
    return checked(ended.status, ended.out, ended.err)


def checked(status: int, out: bytes, said: str) -> tuple[int, bytes, str]:
    """Check that a run met no bug; return its status and output."""
    assert "Traceback" not in said + out.decode(errors="replace")
    assert "a bug in pqkeep" not in said
    assert "Exception ignored" not in said
    return status, out, said


@pytest.mark.parametrize("arguments", SAYS_SOMETHING, ids=" ".join)
def test_an_output_that_takes_nothing(
    command: Command, tenant: Client, file: Path, arguments: tuple[str, ...]
) -> None:
    """A full or closed standard output is named, with exit status 1.

    A closed pipe gives 141, silently.
    """
    tenant.keys.generate("Kyber768")
    assert file.exists()
    status, _, said = run(command, '"$@" > /dev/full', *arguments)
    assert (status, said.splitlines()[:1]) == (
        1,
        ["pqkeep: standard output: No space left on device"],
    )
    status, _, said = run(command, '"$@" >&-', *arguments)
    assert (status, said.splitlines()[:1]) == (1, ["pqkeep: standard output: closed"])
    status, out, said = run(command, '"$@" | (exec <&-); exit ${PIPESTATUS[0]}', *arguments)
    assert (status, out, said) == (141, b"", "")


@pytest.mark.parametrize(
    "arguments", [("keys", "list"), ("encrypt", "absent"), later((("absent",),))], ids=" ".join
)
def test_a_standard_error_that_takes_nothing(
    command: Command, tenant: Client, arguments: tuple[str, ...]
) -> None:
    """Without standard error, the status is the same, and standard output has only the result."""
    tenant.keys.generate("Kyber768")
    expected = run_imported(command, *arguments)
    for streams in ("2>&-", "2>/dev/full", "<&- 2>&-"):
        assert run(command, f'"$@" {streams}', *arguments)[:2] == expected[:2]


def test_no_stream_at_all(command: Command, tenant: Client, file: Path) -> None:
    """With all three streams closed, a file is encrypted, without a message in it."""
    tenant.keys.generate("Kyber768")
    assert run(command, '"$@" <&- >&- 2>&-', "encrypt", "report.pdf")[0] == 0
    encrypted = command.directory / "report.pdf.pqk"
    assert command("decrypt", encrypted, "--to", "-").out == file.read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ("encrypt", "-"),
        ("decrypt", "-"),
        ("sign", "-"),
        later((("wrap", "-"),)),
        later((("unwrap", "-"),)),
        later((("decapsulate", "-"),)),
        later((("re-encrypt", "-"),)),
        ("login", "--api-key-file", "-"),
    ],
    ids=" ".join,
)
def test_a_closed_standard_input(
    command: Command, tenant: Client, arguments: tuple[str, ...]
) -> None:
    """With a closed standard input the exit status is 1. The error says why. Nothing is written."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    status, out, said = run(command, '"$@" <&-', *arguments)
    assert status == 1
    assert out == b"" or arguments[0] == "encrypt"  # the head, which needs no input
    assert said.startswith("pqkeep: standard input: closed\n")


@pytest.mark.parametrize(
    "environment",
    [
        {"TERM": "no-such-terminal", "COLUMNS": "0"},
        {"NO_COLOR": "1", "COLUMNS": "nonsense"},
    ],
    ids=str,
)
def test_terminals(operator_command: Command, environment: dict[str, str]) -> None:
    """With any TERM, names and help are shown."""
    tenant = f"Grüße {os.urandom(6).hex()}"
    assert operator_command("tenants", "create", tenant).status == 0
    there = operator_command.as_(**environment)
    listed = run(there, '"$@"', "tenants", "list", "--name", tenant)
    assert listed[0] == 0
    assert tenant[-12:].encode() in listed[1]
    assert run(there, '"$@"', "--help")[0] == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        later({"PYTHONIOENCODING": "ascii:strict"}),
        {"LC_ALL": "no_SUCH.locale"},
    ],
    ids=str,
)
def test_locales(command: Command, operator_command: Command, environment: dict[str, str]) -> None:
    """With any locale, names are shown and files are found."""
    tenant = f"Grüße {os.urandom(6).hex()}"
    name = "Übersicht.txt".encode()
    path = os.path.join(os.fsencode(command.directory), name)  # noqa: PTH118 - bytes
    with open(path, "wb") as opened:  # noqa: PTH123
        opened.write(b"text")
    created = run(operator_command.as_(**environment), '"$@"', "tenants", "create", tenant)
    assert created[0] == 0, created
    listed = run(operator_command.as_(**environment), '"$@"', "tenants", "list", "--name", tenant)
    assert listed[0] == 0
    assert tenant[-12:].encode() in listed[1]
    assert run(command.as_(**environment), '"$@"', "sign", name)[0] == 4  # it has no key


BYTES = b"\xff\xfe"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((b"encrypt", BYTES), 0),
        ((b"encrypt", b"plain", b"--associated-data", BYTES), 2),
        ((b"encrypt", b"plain", b"--keyring", BYTES), 1),
        ((b"encrypt", b"plain", b"--algorithm", BYTES), 1),
        ((b"sign", b"plain", b"--context", BYTES), 2),
        ((b"keys", b"list", b"--keyring", BYTES), 1),
        ((b"keys", b"rotate", BYTES), 1),
        ((b"keyrings", b"create", BYTES), 1),
        ((b"keyrings", b"show", BYTES), 1),
        ((b"audit", b"records", b"--principal", BYTES), 1),
        ((b"status", b"--profile", BYTES), 2),
        ((b"status", b"--url", BYTES), 2),
        ((b"status", b"--api-key-file", BYTES), 2),
        ((BYTES,), 2),
        ((b"keys", BYTES), 2),
        ((b"keys", b"list", b"--" + BYTES), 2),
    ],
)
def test_arguments_of_bytes(
    command: Command, tenant: Client, arguments: tuple[bytes, ...], status: int
) -> None:
    """A file may have any bytes in its name; other arguments must be text."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    directory = os.fsencode(command.directory)
    for name in (b"plain", BYTES):
        with open(os.path.join(directory, name), "wb") as file:  # noqa: PTH118, PTH123 - bytes
            file.write(b"content")
    ended = run_imported(command, *arguments)
    assert ended[0] == status, ended
    made = set(os.listdir(directory)) - {b"plain", BYTES}  # noqa: PTH208 - bytes
    assert made == ({BYTES + b".pqk"} if status == 0 else set())


@pytest.mark.parametrize(
    "arguments",
    [
        ("encrypt", "{}"),
        ("sign", "report.pdf", "--context", "{}"),
        ("keys", "list", "--keyring", "{}"),
        ("keys", "rotate", "{}"),
        ("status", "--url", "https://{}"),
        ("{}",),
    ],
    ids=" ".join,
)
def test_long_arguments(
    command: Command, tenant: Client, file: Path, arguments: tuple[str, ...]
) -> None:
    """An argument of 100,000 characters is refused with a short message."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    assert file.exists()
    status, out, said = run_imported(
        command, *(argument.format("a" * 100_000) for argument in arguments)
    )
    assert status in {1, 2, 4}, said
    assert out == b""
    assert len(said) < (5_000 if arguments != ("{}",) else 200_000)


@pytest.mark.parametrize("home", ["absent/absent", "/dev/null", "/proc", "/sys", "loop", "closed"])
def test_a_home_that_takes_nothing(
    command: Command, api_key: str, tmp_path: Path, home: str
) -> None:
    """If no profile can be written, login names the path; commands without a profile work."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").mkdir(mode=0)
    place = tmp_path / home
    key = command.environment["PQKEEP_API_KEY_FILE"]
    at_home = command.as_(HOME=str(place), XDG_CONFIG_HOME="", PQKEEP_API_KEY_FILE="")
    assert at_home("status", "--api-key-file", key).status == 0
    assert at_home("keys", "list", "--api-key-file", key).status == 0
    stored = at_home("login", "--api-key-file", key)
    if home in {"absent/absent", "closed"} and stored.status == 0:  # to root nothing is closed
        assert api_key in (place / ".config/pqkeep/config.toml").read_text()
    else:
        assert stored.status == 1
        assert str(place) in stored.err
    assert at_home("keys", "list", "--profile", "other", "--api-key-file", key).status == 2


def test_the_home_of_another_user(command: Command, tmp_path: Path) -> None:
    """Login creates no folder that another user's home has but cannot use."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    home = tmp_path / "theirs"
    home.mkdir()
    os.chown(home, 65534, 65534)
    key = command.environment["PQKEEP_API_KEY_FILE"]
    at_home = command.as_(HOME=str(home), XDG_CONFIG_HOME="", PQKEEP_API_KEY_FILE="")
    ended = at_home("login", "--api-key-file", key)
    assert (ended.status, f"{home} belongs to another user" in ended.err) == (2, True), ended
    assert not list(home.iterdir())

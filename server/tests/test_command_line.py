"""``pqkeepd`` explains itself."""

import os
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.fixtures.certificate import new_certificate
from tests.fixtures.processes import PQKEEPD
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.settings_file import edited

Run = Callable[..., tuple[int, str]]
"""Takes arguments, and variables of the environment; returns status and output."""


def run_program(
    program: Sequence[str | Path], *arguments: str | Path, **environment: str
) -> tuple[int, str]:
    """Run a program; return status and output."""
    ended = subprocess.run(
        [*program, *arguments],
        env={"PATH": os.defpath, "COLUMNS": "120", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture
def run(pqkeepd_command: Sequence[str | Path]) -> Run:
    """The command, imported once."""
    return partial(run_program, pqkeepd_command)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("dev", "--help"),
        ("init", "--help"),
        ("start", "--help"),
        ("doctor", "--help"),
        ("gateway", "--help"),
        ("keyservice", "--help"),
        ("config", "check", "--help"),
        ("backup", "--help"),
        ("restore", "--help"),
        ("refused-events", "--help"),
        ("recovery-key", "create", "--help"),
        ("root-key", "rotate", "--help"),
        *(("operator", verb, "--help") for verb in ("add", "rotate", "remove", "list")),
    ],
)
def test_help(run: Run, arguments: tuple[str, ...]) -> None:
    """--help succeeds and shows the usage."""
    status, said = run(*arguments)
    assert status == 0
    assert "Usage: pqkeepd" in said


def test_help_names_the_commands() -> None:
    """The first help names dev and describes pqkeepd."""
    _, said = run_program([PQKEEPD], "--help")
    assert "dev" in said
    assert "pqkeep" in said


def test_the_version_is_the_package_s(run: Run) -> None:
    """--version prints the version and nothing else."""
    assert run("--version") == (0, f"pqkeepd {version('pqkeep-server')}\n")


def test_help_names_the_options(run: Run) -> None:
    """The help of dev has every option, with the default port."""
    _, said = run("dev", "--help")
    for word in ("--port", "8080", "--data", "--ready-file"):
        assert word in said


@pytest.mark.parametrize("arguments", [("unknown",), ("dev", "--unknown"), ("dev", "too-much")])
def test_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    """An unknown command or option is status 2 with an explanation, without a traceback."""
    status, said = run(*arguments)
    assert status == 2
    assert "Usage" in said
    assert "Traceback" not in said


def test_a_wrong_number_of_a_backup(run: Run) -> None:
    """A wrong backup number is status 2 with the expected form, without a library's words."""
    words = ("restore", "x", "--recovery-key", "x", "--root-key", "x", "--data", "x")
    status, said = run(*words, "--newest", "abc")
    assert (status, "0.1200" in said) == (2, True), said
    assert "Value error" not in said


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A data directory."""
    made = Layout(tmp_path_factory.mktemp("settings") / "data")
    initialise(made, "operator", signup="operator")
    return made


def test_settings_are_checked(run: Run, layout: Layout) -> None:
    """Config check names the process of a settings file, and confirms it."""
    for file, role in (
        (layout.gateway_settings, "gateway"),
        (layout.key_service_settings, "key service"),
    ):
        status, said = run("config", "check", file)
        assert (status, said) == (0, f"{file}: valid settings of the {role}\n")


@pytest.mark.parametrize("command", [("config", "check"), ("gateway",)])
def test_wrong_settings_are_status_78(run: Run, layout: Layout, command: tuple[str, ...]) -> None:
    """Invalid settings, also from the environment, are refused before the start."""
    status, said = run(*command, layout.gateway_settings, PQKEEP_GATEWAY_PROT="1")
    assert status == os.EX_CONFIG
    assert "did you mean PQKEEP_GATEWAY_PORT?" in said
    assert "Traceback" not in said


def test_an_address_without_tls_is_found_before_the_start(run: Run, layout: Layout) -> None:
    """Config check refuses to serve other machines without TLS, as the gateway itself does."""
    environment = {"PQKEEP_GATEWAY_HOST": "192.0.2.1", "PQKEEP_GATEWAY_COOKIES": "secure"}
    status, said = run("config", "check", layout.gateway_settings, **environment)
    assert status == os.EX_CONFIG
    assert "tls_certificate" in said


def test_the_certificate_is_checked(run: Run, layout: Layout, tmp_path: Path) -> None:
    """Config check loads the certificate and its key as the gateway does, and reports errors."""
    certificate = new_certificate(tmp_path)
    environment = {
        "PQKEEP_GATEWAY_TLS_CERTIFICATE": str(certificate.path),
        "PQKEEP_GATEWAY_TLS_KEY": str(certificate.key),
    }
    assert run("config", "check", layout.gateway_settings, **environment)[0] == os.EX_OK
    other = tmp_path / "other"
    other.mkdir()
    key = new_certificate(other).key
    environment["PQKEEP_GATEWAY_TLS_KEY"] = str(key)
    mismatched = run("config", "check", layout.gateway_settings, **environment)
    key.unlink()
    missing = run("config", "check", layout.gateway_settings, **environment)
    assert (mismatched[0], missing[0]) == (os.EX_CONFIG, os.EX_CONFIG)
    assert "KEY_VALUES_MISMATCH" in mismatched[1]
    assert f"{key}: No such file or directory" in missing[1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("dev", "--data", "{file}"), "cannot use the data directory {file}: Not a directory"),
        (
            ("dev", "--ready-file", "{file}/ready"),
            "cannot write {file}/ready: {file} is not a directory",
        ),
        (
            ("dev", "--data", "{none}", "--redis-url", "redis://127.0.0.1:1"),
            "--redis-url: no response at redis://127.0.0.1:1: Connection refused",
        ),
        (("dev", "--data", "{made}"), "{made} has an installation from pqkeepd init"),
        (
            ("recovery-key", "create", "--private", "{file}/none/private", "--public", "public"),
            "cannot write the recovery key: {file}/none/private: Not a directory",
        ),
        (("transfer-key", "rotate", "--data", "{none}"), "{none} has no installation"),
    ],
)
def test_a_wrong_path_is_one_line(
    run: Run, tmp_path: Path, arguments: Sequence[str], problem: str
) -> None:
    """An impossible path is named on one line, before anything is created."""
    made = tmp_path / "made"
    made.mkdir(mode=0o711)
    names = {"file": tmp_path / "file", "none": tmp_path / "none", "made": made}
    names["file"].touch()
    (made / "start.toml").touch()
    status, said = run(*(argument.format(**names) for argument in arguments))
    assert status == 1
    assert said.startswith(f"pqkeepd: {problem.format(**names)}")
    assert said.count("\n") == 1
    assert not names["none"].exists()


def test_the_key_service_is_checked_too(run: Run, layout: Layout) -> None:
    """A wrong setting of the key service ends its command with status 78."""
    status, said = run("keyservice", layout.key_service_settings, PQKEEP_KEYSERVICE_SOKET="1")
    assert status == os.EX_CONFIG
    assert "did you mean PQKEEP_KEYSERVICE_SOCKET?" in said


@pytest.mark.parametrize("text", ["", "colour = 1", "{", "database = 'a'"])
def test_a_file_of_neither_process(run: Run, tmp_path: Path, text: str) -> None:
    """A settings file without a setting of either process is refused."""
    file = tmp_path / "settings.toml"
    file.write_text(text)
    status, said = run("config", "check", file)
    assert status == os.EX_CONFIG
    assert str(file) in said


def test_mail_can_be_tested(run: Run, tmp_path: Path) -> None:
    """A test message arrives; without a mail server, or for a wrong address, the error names it."""
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="open")
    status, output = run("mail", "test", "--to", "ada@example.com", "--data", layout.directory)
    assert (status, "ada@example.com" in output) == (0, True), output
    (message,) = (layout.directory / "mailbox").glob("*.eml")
    assert "To: ada@example.com" in message.read_text()
    status, output = run("mail", "test", "--to", "ada", "--data", layout.directory)
    assert (status != 0, "ada is not an e-mail address" in output) == (True, True)
    settings = layout.gateway_settings
    settings.write_text(edited(settings.read_text(), {"mailbox": None}))
    status, output = run("mail", "test", "--to", "ada@example.com", "--data", layout.directory)
    assert (status != 0, "smtp" in output) == (True, True)

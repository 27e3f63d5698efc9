"""``pqkeepd config check`` reads the files that settings name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.certificate import new_certificate

from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.settings_check import check_files
from pqkeep_server.settings_file import edited

SIGN_ON = {
    "name": "corp",
    "issuer": "https://login.example.org",
    "client_id": "pqkeep",
    "client_secret_file": "named",
    "operator_roles": {"root": "admin"},
}
SMTP = {
    "host": "mail.example.org",
    "user": "pqkeep",
    "sender": "pqkeep@example.org",
    "password_file": "named",
}
AUDIT_SINK = "https://logs.example.org/"
GATEWAY: dict[str, dict[str, object]] = {
    "smtp.password_file": {"mailbox": None, "smtp": SMTP, "public_url": "https://a.example"},
    "single_sign_on.client_secret_file": {
        "single_sign_on": [SIGN_ON],
        "public_url": "https://a.example",
    },
    "redis_password_file": {"redis_url": "redis://a.example", "redis_password_file": "named"},
    "audit_sink_token_file": {"audit_sink": AUDIT_SINK, "audit_sink_token_file": "named"},
    "database_password_file": {"database_password_file": "named"},
}
"""Settings with a file of text that is named ``named``."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A data directory."""
    made = Layout(tmp_path / "data")
    initialise(made, "operator", signup="operator")
    return made


def change(settings: Path, changes: dict[str, object]) -> None:
    """Change settings."""
    settings.write_text(edited(settings.read_text(), changes))


def refusal(settings: Path) -> str:
    """Return the problem with a file that settings name."""
    with pytest.raises(ConfigError) as refused:
        check_files(settings)
    return str(refused.value)


def test_a_new_installation_has_no_problem(layout: Layout) -> None:
    """The files of a new installation are accepted."""
    check_files(layout.gateway_settings)
    check_files(layout.key_service_settings)


@pytest.mark.parametrize("name", GATEWAY)
def test_a_secret_that_cannot_be_used(layout: Layout, name: str) -> None:
    """A missing, empty or readable file is named with its setting; a right one is accepted."""
    change(layout.gateway_settings, GATEWAY[name])
    named = layout.gateway / "named"
    assert f"{name}: cannot " in refusal(layout.gateway_settings)
    named.touch(0o600)
    assert f"{name}: " in refusal(layout.gateway_settings)
    named.write_text("s3cret\n")
    check_files(layout.gateway_settings)
    named.chmod(0o644)
    problem = refusal(layout.gateway_settings)
    assert "0600" in problem
    assert "s3cret" not in problem


@pytest.mark.parametrize("name", ["smtp.ca_file", "single_sign_on.ca_file", "audit_sink_ca_file"])
def test_authorities_that_cannot_be_used(layout: Layout, name: str) -> None:
    """A file without a certificate is named; one with a certificate is accepted."""
    certificate = new_certificate(layout.gateway, "ca").path
    named = layout.gateway / "named.pem"
    smtp = {key: value for key, value in SMTP.items() if key not in {"user", "password_file"}}
    sign_on = {key: value for key, value in SIGN_ON.items() if key != "client_secret_file"}
    tables: dict[str, dict[str, object]] = {
        "smtp.ca_file": {"mailbox": None, "smtp": {**smtp, "ca_file": "named.pem"}},
        "single_sign_on.ca_file": {"single_sign_on": [{**sign_on, "ca_file": "named.pem"}]},
        "audit_sink_ca_file": {"audit_sink": AUDIT_SINK, "audit_sink_ca_file": "named.pem"},
    }
    change(layout.gateway_settings, {"public_url": "https://a.example", **tables[name]})
    assert f"{name}: cannot use {named}: No such file" in refusal(layout.gateway_settings)
    named.write_text("no certificate")
    assert f"{name}: cannot use {named}" in refusal(layout.gateway_settings)
    named.write_bytes(certificate.read_bytes())
    check_files(layout.gateway_settings)


def _missing(path: Path) -> None:
    path.unlink()


def _short(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"short")


def _open(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.parametrize("harm", [_missing, _short, _open])
def test_the_pepper_and_the_root_key(layout: Layout, harm: Callable[[Path], None]) -> None:
    """If pepper and root key are missing, short or readable by others, the settings are refused."""
    harm(layout.gateway / "pepper")
    harm(layout.key_service / "root.key")
    assert "pepper_file: " in refusal(layout.gateway_settings)
    assert "root_key_file: " in refusal(layout.key_service_settings)


def test_all_problems_are_named(layout: Layout) -> None:
    """Several files that cannot be used are named at once."""
    change(layout.gateway_settings, GATEWAY["redis_password_file"])
    (layout.gateway / "pepper").unlink()
    problem = refusal(layout.gateway_settings)
    assert "pepper_file: " in problem
    assert "redis_password_file: " in problem


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_rights_of_the_process_count(layout: Layout) -> None:
    """A secret that root can read, and the settings' owner cannot, is refused."""
    for path in (layout.gateway, *layout.gateway.iterdir()):
        os.chown(path, 65534, 65534)
    layout.directory.chmod(0o755)
    os.chown(layout.gateway / "pepper", 0, 0)
    assert "pepper_file: " in refusal(layout.gateway_settings)

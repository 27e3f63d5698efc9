"""``pqkeepd config check`` and ``pqkeepd doctor`` look at the certificates of the link."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

from pqkeep_protocol.link import Identity, Role
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.backup.create import BackupError, backup
from pqkeep_server.backup.recovery_key import create
from pqkeep_server.doctor import examine
from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.settings_check import check_settings
from pqkeep_server.settings_file import edited

if TYPE_CHECKING:
    from tests.fixtures.link import LinkCa

EXPIRES_SOON = "the link's certificate expires soon"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A data directory."""
    made = Layout(tmp_path_factory.mktemp("link") / "data")
    initialise(made, "operator", signup="operator")
    return made


def link(layout: Layout, role: Role, identity: Identity) -> Path:
    """Configure a process for its end of a link; return its settings file."""
    settings, address, socket = {
        Role.GATEWAY: (layout.gateway_settings, "key_service", ("key_service_socket",)),
        Role.KEY_SERVICE: (layout.key_service_settings, "listen", ("socket", "gateway_uid")),
    }[role]
    table = {
        address: "keys.example.org:7400",
        "certificate": str(identity.certificate),
        "key": str(identity.key),
        "ca": str(identity.ca),
    }
    changed = {**dict.fromkeys(socket), "link": table}
    settings.write_text(edited(settings.read_text(), changed))
    return settings


@pytest.mark.parametrize("role", Role)
def test_a_link_is_checked(layout: Layout, link_ca: LinkCa, role: Role) -> None:
    """Certificate, key and CA of a link are checked."""
    checked = check_settings(link(layout, role, link_ca.identity(role)))
    assert checked.link is not None
    assert not checked.link.expires_soon


@pytest.mark.parametrize("role", Role)
def test_a_link_that_the_other_end_would_refuse(
    layout: Layout, link_ca: LinkCa, other_ca: LinkCa, role: Role
) -> None:
    """A certificate of another role or CA, or an expired one, is refused and named."""
    (other,) = set(Role) - {role}
    strange = other_ca.identity(role)
    for identity, problem in (
        (link_ca.identity(role, uris=[other]), "as the only URI"),
        (link_ca.identity(role, days=-1), "has expired"),
        (Identity(role, strange.certificate, strange.key, link_ca.folder / "ca.pem"), "issuer"),
    ):
        file = link(layout, role, identity)
        with pytest.raises(ConfigError, match=f"{identity.certificate}.*{problem}"):
            check_settings(file)


def test_the_command_warns_of_expiry(
    pqkeepd_command: Sequence[str | Path], layout: Layout, link_ca: LinkCa
) -> None:
    """Config check warns that a certificate expires soon, and the process can still start."""
    file = link(layout, Role.GATEWAY, link_ca.identity(Role.GATEWAY, days=12))
    ended = subprocess.run(
        [*pqkeepd_command, "config", "check", file],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert ended.stdout == f"{file}: valid settings of the gateway\n"
    assert EXPIRES_SOON in ended.stderr


def test_the_doctor_looks_at_both_ends(tmp_path: Path, link_ca: LinkCa) -> None:
    """Doctor names a gateway's certificate that is refused, and a key service's that expires soon."""
    layout = Layout(tmp_path / "data")
    initialise(layout, "operator", signup="operator")
    link(layout, Role.GATEWAY, link_ca.identity(Role.GATEWAY, days=-1))
    (problem,) = dict(examine(layout))["settings"]
    assert "has expired" in problem
    soon = link(layout, Role.KEY_SERVICE, link_ca.identity(Role.KEY_SERVICE, days=12))
    assert dict(examine(layout))["settings"] == [
        f"{soon}: the link's certificate expires in 11 days: renew it"
    ]


@pytest.mark.parametrize("role", Role)
def test_settings_that_do_not_meet_are_not_backed_up(
    tmp_path: Path, link_ca: LinkCa, role: Role
) -> None:
    """If the gateway's folder is of another installation, there is no backup."""
    layout = Layout(tmp_path / "data")
    initialise(layout, "operator", signup="operator")
    link(layout, role, link_ca.identity(role))
    public, file = tmp_path / "recovery.public", tmp_path / "backup"
    create("ML-KEM-1024", tmp_path / "recovery.private", public)
    with pytest.raises(BackupError, match="belong to different installations"):
        asyncio.run(backup(layout, public, file, version="1", report=print))
    assert not file.exists()


def test_a_shard_on_another_host_is_not_left_out_of_a_backup(tmp_path: Path) -> None:
    """If a shard's key service is on another host, it is named, and there is no backup."""
    layout = Layout(tmp_path / "data")
    initialise(layout, "operator", signup="operator")
    shards = {"default": {"sockets": ["../run/keyservice.sock"]}, "b": {"sockets": ["../run/b"]}}
    changes = {"key_service_socket": None, "shards": shards}
    settings = layout.gateway_settings
    settings.write_text(edited(settings.read_text(), changes))
    public, file = tmp_path / "recovery.public", tmp_path / "backup"
    create("ML-KEM-1024", tmp_path / "recovery.private", public)
    with pytest.raises(BackupError, match="the shard b has no folder keyservice-b"):
        asyncio.run(backup(layout, public, file, version="1", report=print))
    assert not file.exists()

"""``pqkeep login`` and ``pqkeep status``."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command, Terminal

    from pqkeep import Client

DOWN = "http://127.0.0.1:1"
ELSEWHERE = "https://a.example"
PLAIN = "http://a.example"


def config(command: Command) -> Path:
    """Return the path of the command's profiles."""
    return Path(command.environment["XDG_CONFIG_HOME"]) / "pqkeep" / "config.toml"


def facts(command: Command, *arguments: str) -> dict[str, Any]:
    """Return the JSON output of status."""
    said: dict[str, Any] = json.loads(command("status", *arguments, "--output", "json").out)
    return said


@pytest.fixture
def newcomer(nobody: Command) -> Command:
    """A user without an address and an API key in the environment."""
    return nobody.as_(PQKEEP_URL="")


def test_what_login_writes(newcomer: Command, base_url: str, api_key: str) -> None:
    """Login writes a profile with mode 0600, and later commands use it."""
    arguments = ("login", "--url", base_url, "--api-key-file", "-")
    ended = newcomer(*arguments, stdin=api_key.encode() + b"\n")
    assert (ended.status, api_key in ended.out.decode() + ended.err) == (0, False)
    path = config(newcomer)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert tomllib.loads(path.read_text()) == {
        "profiles": {"default": {"url": base_url, "api_key": api_key, "allow_plain_http": False}}
    }
    assert newcomer("keys", "list").status == 0


def test_other_profiles_stay(newcomer: Command, base_url: str, api_key: str) -> None:
    """A profile with any name can be added, and the existing profiles stay."""
    path = config(newcomer)
    path.parent.mkdir(parents=True)
    path.write_text(f'[profiles.default]\nurl = "{ELSEWHERE}"\napi_key_file = "/run/ü\\""\n')
    path.chmod(0o600)
    before = tomllib.loads(path.read_text())["profiles"]["default"]
    file = newcomer.directory / "api-key"
    file.write_text(api_key)
    file.chmod(0o600)
    name = 'my "other" one.'
    arguments = ("--profile", name, "--url", base_url, "--api-key-file", "api-key")
    assert newcomer("login", *arguments, "--compliance-profile", "cnsa-2.0").status == 0
    profiles = tomllib.loads(path.read_text())["profiles"]
    assert profiles["default"] == before
    assert profiles[name]["compliance_profile"] == "cnsa-2.0"
    assert newcomer("keys", "list", "--profile", name).status == 0
    assert newcomer.as_(PQKEEP_PROFILE=name)("keys", "generate", "Kyber768").status == 5


def test_a_profile_that_the_environment_names(
    newcomer: Command, base_url: str, api_key: str
) -> None:
    """Login writes the profile in PQKEEP_PROFILE, even if it is the first one."""
    at_work = newcomer.as_(PQKEEP_PROFILE="work")
    arguments = ("login", "--url", base_url, "--api-key-file", "-")
    assert at_work(*arguments, stdin=api_key.encode()).status == 0
    assert list(tomllib.loads(config(newcomer).read_text())["profiles"]) == ["work"]
    assert at_work("keys", "list").status == 0


def test_an_older_profile_takes_no_part(newcomer: Command) -> None:
    """Settings of a replaced profile do not apply to the new one."""
    path = config(newcomer)
    path.parent.mkdir(parents=True)
    path.write_text(f'[profiles.default]\nurl = "{PLAIN}"\nallow_plain_http = true\n')
    path.chmod(0o600)
    before = path.read_text()
    arguments = ("login", "--url", PLAIN, "--api-key-file", "-", "--profile", "default")
    at_default = newcomer.as_(PQKEEP_PROFILE="default")
    for command in (newcomer, at_default):
        assert command(*arguments, stdin=b"pqk_any\n").status == 2
    assert path.read_text() == before


def test_what_does_not_work_is_not_written(newcomer: Command, base_url: str) -> None:
    """A wrong API key, or an address without a service, leaves no profile."""
    wrong = newcomer("login", "--url", base_url, "--api-key-file", "-", stdin=b"pqk_wrong\n")
    assert wrong.status == 3
    down = newcomer("login", "--url", DOWN, "--api-key-file", "-", stdin=b"pqk_any\n")
    assert down.status == 8
    far = newcomer("login", "--url", "http://pqkeep.example", "--api-key-file", "-", stdin=b"x")
    assert far.status == 2
    unasked = newcomer("login", "--url", base_url)
    assert unasked.status == 2
    assert "the API key is missing" in unasked.err
    assert "--api-key-file" in unasked.err
    assert "--url" not in unasked.err
    assert not config(newcomer).exists()


def test_a_file_that_is_none(newcomer: Command, base_url: str, api_key: str) -> None:
    """An invalid profile file is not changed and not quoted."""
    path = config(newcomer)
    path.parent.mkdir(parents=True)
    path.write_text("a secret = ")
    arguments = ("login", "--url", base_url, "--api-key-file", "-")
    ended = newcomer(*arguments, stdin=api_key.encode())
    assert (ended.status, path.read_text()) == (2, "a secret = ")
    assert "secret" not in ended.err


def test_login_asks(
    newcomer: Command, terminal: type[Terminal], base_url: str, api_key: str
) -> None:
    """In a terminal login asks for address and API key, and hides the key."""
    asked = terminal(newcomer, "login")
    asked.respond("address: ", base_url + "\r")
    asked.respond("API key: ", api_key + "\r")
    status, shown = asked.end()
    assert (status, api_key in shown) == (0, False)
    assert base_url in shown
    assert newcomer("keys", "list").status == 0


def test_ctrl_c_at_a_question(newcomer: Command, terminal: type[Terminal]) -> None:
    """Ctrl-C at a question gives exit status 130, and nothing is written."""
    asked = terminal(newcomer, "login")
    asked.respond("address: ", "\x03")
    assert asked.end()[0] == 130
    assert not config(newcomer).exists()


def test_who_one_is(command: Command, operator_command: Command, base_url: str) -> None:
    """Status shows the credential's owner and the sources of address and API key, never the key."""
    said = facts(command)
    assert (said["service"], said["service_from"]) == (base_url, "PQKEEP_URL")
    assert said["api_key_from"].startswith("PQKEEP_API_KEY_FILE ")
    assert (said["answers"], said["principal"], said["plan"]) == (
        True,
        "tenant",
        "enterprise_plus",
    )
    assert facts(operator_command)["principal"] == "operator"
    shown = command("status").out.decode().splitlines()
    assert f"service             {base_url}" in shown
    assert "answers             yes" in shown


def test_where_it_is_from(newcomer: Command, base_url: str, api_key: str) -> None:
    """Each possible source of address and API key is named."""
    file = newcomer.directory / "api-key"
    file.write_text(api_key)
    file.chmod(0o600)
    login = ("login", "--url", base_url, "--api-key-file", "api-key")
    assert newcomer(*login, "--profile", "work").status == 0
    place = f"profile work in {config(newcomer)}"
    said = facts(newcomer, "--profile", "work")
    assert (said["service_from"], said["api_key_from"], said["profile"]) == (place, place, "work")
    said = facts(newcomer.as_(PQKEEP_PROFILE="work", PQKEEP_API_KEY=api_key))
    assert (said["service_from"], said["api_key_from"]) == (place, "PQKEEP_API_KEY")
    said = facts(newcomer, "--url", base_url, "--api-key-file", "api-key")
    assert (said["service_from"], said["api_key_from"], said["profile"]) == (
        "--url",
        "--api-key-file api-key",
        None,
    )
    text = config(newcomer).read_text()
    config(newcomer).write_text(text.replace(f'api_key = "{api_key}"', f'api_key_file = "{file}"'))
    said = facts(newcomer, "--profile", "work")
    assert (said["api_key_from"], said["principal"]) == (f"{file}, by {place}", "tenant")


def test_out_of_reach(command: Command) -> None:
    """An unreachable service is reported, with status 8."""
    ended = command("status", "--url", DOWN, "--output", "json")
    assert (ended.status, json.loads(ended.out)["answers"]) == (8, False)


def test_a_wrong_key(nobody: Command) -> None:
    """With a wrong API key, the service is reachable, and the status is 3."""
    ended = nobody.as_(PQKEEP_API_KEY="pqk_wrong")("status", "--output", "json")
    said = json.loads(ended.out)
    assert (ended.status, said["answers"], said["principal"]) == (3, True, None)


def test_nothing_is_configured(newcomer: Command) -> None:
    """Without configuration the status is 2, and the next step is login."""
    ended = newcomer("status")
    assert (ended.status, ended.out) == (2, b"")
    assert "pqkeep login" in ended.err


def test_shared_profiles(newcomer: Command, base_url: str, api_key: str) -> None:
    """A profile file that other users can read is refused."""
    newcomer("login", "--url", base_url, "--api-key-file", "-", stdin=api_key.encode())
    config(newcomer).chmod(0o640)
    assert newcomer("keys", "list").status == 2
    assert os.access(config(newcomer), os.R_OK)


@pytest.mark.parametrize(
    "settings",
    [
        {"HTTPS_PROXY": "socks5://127.0.0.1:1"},
        {"HTTPS_PROXY": "socks4://127.0.0.1:1"},
        {"ALL_PROXY": "http://ada:secret@:1"},
        {"SSL_CERT_FILE": "/nowhere/secret"},
        {"PQKEEP_URL": "pqkeep.example"},
        {"PQKEEP_URL": "https://ada:secret@pqkeep.example"},
        {"PQKEEP_API_KEY": '"secret"'},
        {"PQKEEP_API_KEY": "secret secret"},
        {"PQKEEP_API_KEY": "", "HOME": "/nowhere"},
    ],
    ids=repr,
)
def test_an_environment_that_cannot_be_used(newcomer: Command, settings: dict[str, str]) -> None:
    """Each unusable variable of the environment is named, with status 2 and not as a bug in pqkeep."""
    usual = {"PQKEEP_URL": "https://pqkeep.example", "PQKEEP_API_KEY": "pqk_any"}
    ended = replace(newcomer, environment={**newcomer.environment, **usual, **settings})(
        "keys", "list"
    )
    assert ended.status == 2
    assert "a bug in pqkeep" not in ended.err
    assert "Traceback" not in ended.err
    assert "ada" not in ended.err
    assert "secret secret" not in ended.err
    named = next(iter(settings))
    assert named in ended.err


@pytest.mark.parametrize(
    "settings",
    [
        {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "xx_YY.none"},
        {"TERM": "dumb", "NO_COLOR": "1"},
        {"HTTPS_PROXY": "socks4://127.0.0.1", "no_proxy": "127.0.0.1"},
    ],
    ids=repr,
)
def test_an_environment_that_makes_no_difference(
    command: Command, tenant: Client, settings: dict[str, str]
) -> None:
    """Languages, encodings, terminals and a proxy for other hosts do not change a result."""
    tenant.keys.generate("Kyber768")
    usual = command("keys", "list")
    other = replace(command, environment={**command.environment, **settings})("keys", "list")
    assert (other.status, other.out) == (0, usual.out)

"""Root keys from a credential, a command and a PKCS#11 token, and their refusals."""

from __future__ import annotations

import hmac
import os
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pkcs11
import pytest
from pkcs11 import Attribute, KeyType, ObjectClass

from pqkeep_keyservice.config import Pkcs11, RootKeySource
from pqkeep_keyservice.root_key_sources.file import RootKeyUnavailableError
from pqkeep_keyservice.root_key_sources.sources import read, run_command
from pqkeep_keyservice.root_key_sources.token import (
    LABEL,
    create_token_key,
    derive_root_key,
    destroy_token_key,
)
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from tests.fixtures.softhsm import SoftHsm

KEY = bytes(range(32))
PIN = "4711-4711"
QUICK_SECONDS = 0.2


# --- credentials


def test_a_credential_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root key is read from the service manager's credentials folder."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "root-key").touch(0o400)
    (tmp_path / "root-key").write_bytes(KEY)
    assert bytes(read(RootKeySource(credential="root-key")).reveal()) == KEY


def test_a_process_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a service manager's credentials, the message names the missing one and the reason."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(
        ConfigError, match=r"credential root-key: .CREDENTIALS_DIRECTORY is not set"
    ):
        read(RootKeySource(credential="root-key"))


# --- commands


def shell(script: str) -> tuple[str, str, str]:
    """Return a command that runs a script."""
    return "/bin/sh", "-c", script


@pytest.mark.parametrize("printed", [KEY, b64encode(KEY), b64encode(KEY) + b"\n"])
def test_a_command_prints_a_root_key(printed: bytes, tmp_path: Path) -> None:
    """A command prints the 32 bytes, or their base64 with or without a line ending."""
    file = tmp_path / "printed"
    file.write_bytes(printed)
    assert bytes(run_command(("/bin/cat", str(file))).reveal()) == KEY


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "head -c 31 /dev/zero",
        "head -c 33 /dev/zero",
        "echo not base64 at all and longer than 32",
        "printf %s " + b64encode(bytes(31)).decode(),
        "cat /dev/zero",
    ],
)
def test_what_is_no_root_key_is_refused(script: str) -> None:
    """Empty, wrong or endless output is refused and not repeated."""
    with pytest.raises(
        ConfigError, match=r"must print 32 bytes, or their base64 on one line"
    ) as it:
        run_command(shell(script))
    assert "base64 at all" not in str(it.value)


def test_a_command_that_fails_has_no_root_key() -> None:
    """Output of a failing command is not used, and a later start may succeed."""
    with pytest.raises(RootKeyUnavailableError, match="ended with status 3"):
        run_command(shell("head -c 32 /dev/zero; exit 3"))


def test_a_missing_command() -> None:
    """A missing program is a configuration error."""
    with pytest.raises(ConfigError, match=r"cannot run .*/nowhere: No such file") as refused:
        run_command(("/nowhere",))
    assert not isinstance(refused.value, RootKeyUnavailableError)


@pytest.mark.parametrize("script", ["exec sleep 60", "exec >&-; exec sleep 60", "sleep 60 & true"])
def test_a_slow_command_is_ended(script: str, tmp_path: Path) -> None:
    """A command that is too slow, or keeps its output open, is killed and gives no key."""
    pid = tmp_path / "pid"
    seconds = QUICK_SECONDS
    while not pid.exists() or not pid.read_text():  # a busy machine starts the shell later
        with pytest.raises(RootKeyUnavailableError, match=rf"did not end within {seconds} seconds"):
            run_command(shell(f"echo $$ > {pid}; {script}"), seconds)
        seconds *= 2
    assert not Path("/proc", pid.read_text().strip() or "none").exists()


def test_a_command_gets_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A command gets only a path and the credentials, and its standard error is discarded."""
    monkeypatch.setenv("PQKEEP_SECRET", "secret")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x")
    found = tmp_path / "found"
    run_command(shell(f"/usr/bin/env > {found}; echo secret >&2; head -c 32 /dev/zero"))
    names = {line.partition("=")[0] for line in found.read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LC_ALL", "CREDENTIALS_DIRECTORY"}
    assert capfd.readouterr() == ("", "")


# --- tokens


@pytest.fixture
def hsm(softhsm: SoftHsm, monkeypatch: pytest.MonkeyPatch) -> SoftHsm:
    """Use a token in this process."""
    for name, value in softhsm.environment.items():
        monkeypatch.setenv(name, value)
    return softhsm


def make_key(source: Pkcs11, **attributes: Any) -> None:
    """Create a key in a token as another program could, with the value KEY."""
    library = pkcs11.lib(str(source.library))
    try:
        with library.get_token(token_label=source.token).open(rw=True, user_pin=PIN) as session:
            template = {
                Attribute.CLASS: ObjectClass.SECRET_KEY,
                Attribute.KEY_TYPE: KeyType.GENERIC_SECRET,
                Attribute.LABEL: source.key,
                Attribute.VALUE: KEY,
                Attribute.TOKEN: True,
                Attribute.PRIVATE: True,
                Attribute.SIGN: True,
                Attribute.SENSITIVE: True,
                Attribute.EXTRACTABLE: False,
            }
            named = {Attribute[name]: value for name, value in attributes.items()}
            session.create_object(template | named)
    finally:
        library.finalize()


def test_a_token_derives_the_root_key(hsm: SoftHsm) -> None:
    """The root key is HMAC-SHA-256 of a fixed label under the token's key."""
    source = hsm.source("known")
    make_key(source)
    expected = hmac.digest(KEY, LABEL, "sha256")
    assert bytes(derive_root_key(source).reveal()) == expected


def test_each_token_key_has_its_own_root_key(hsm: SoftHsm) -> None:
    """A token key always derives the same root key; another token key derives another one."""
    one, other = hsm.source("root-1"), hsm.source("root-2")
    create_token_key(one)
    first = bytes(derive_root_key(one).reveal())
    create_token_key(one)
    create_token_key(other)
    assert bytes(derive_root_key(one).reveal()) == first != bytes(derive_root_key(other).reveal())
    destroy_token_key(one)
    with pytest.raises(ConfigError, match=r"key root-1 in the token .* is missing"):
        derive_root_key(one)
    derive_root_key(other)


def extractable(hsm: SoftHsm) -> Pkcs11:
    make_key(hsm.source("key"), EXTRACTABLE=True)
    return hsm.source("key")


def not_sensitive(hsm: SoftHsm) -> Pkcs11:
    make_key(hsm.source("key"), SENSITIVE=False)
    return hsm.source("key")


def short(hsm: SoftHsm) -> Pkcs11:
    make_key(hsm.source("key"), VALUE=KEY[:16])
    return hsm.source("key")


def twice(hsm: SoftHsm) -> Pkcs11:
    make_key(hsm.source("key"))
    make_key(hsm.source("key"))
    return hsm.source("key")


def missing(hsm: SoftHsm) -> Pkcs11:
    return hsm.source("key")


def wrong_pin(hsm: SoftHsm) -> Pkcs11:
    hsm.pin_file.write_text("0000-0000")
    return hsm.source("key")


def open_pin(hsm: SoftHsm) -> Pkcs11:
    hsm.pin_file.chmod(0o644)
    return hsm.source("key")


def no_library(hsm: SoftHsm) -> Pkcs11:
    return msgspec.structs.replace(hsm.source("key"), library=Path("/nowhere.so"))


REFUSED = [
    (extractable, "can be read out"),
    (not_sensitive, "can be read out"),
    (short, "shorter than 256 bits"),
    (twice, "exists 2 times"),
    (missing, "is missing"),
    (wrong_pin, "rejects the PIN: PinIncorrect"),
    (open_pin, "other users have access"),
    (no_library, "cannot load the PKCS#11 library /nowhere.so"),
]


@pytest.mark.threat("stolen-disk")
@pytest.mark.parametrize(("made", "message"), REFUSED)
def test_a_token_that_is_not_set_up_is_refused(
    made: Callable[[SoftHsm], Pkcs11], message: str, hsm: SoftHsm
) -> None:
    """Errors that an operator must fix are configuration errors, so no restart retries a PIN."""
    source = made(hsm)
    with pytest.raises(ConfigError, match=message) as refused:
        derive_root_key(source)
    assert not isinstance(refused.value, RootKeyUnavailableError)
    assert PIN not in str(refused.value)
    assert "0000" not in str(refused.value)


def test_a_token_that_is_away(hsm: SoftHsm) -> None:
    """Without its token there is no root key.

    When the token is back, the same process can read the root key.
    """
    source = hsm.source("key")
    create_token_key(source)
    away = hsm.tokens.rename(hsm.folder / "away")
    hsm.tokens.mkdir()
    with pytest.raises(RootKeyUnavailableError, match="is not present"):
        derive_root_key(source)
    hsm.tokens.rmdir()
    away.rename(hsm.tokens)
    derive_root_key(source)


def test_the_pin_may_be_a_credential(hsm: SoftHsm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PIN can come from the service manager's credentials."""
    create_token_key(hsm.source("key"))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(hsm.folder))
    named = msgspec.structs.replace(hsm.source("key"), pin_file=None, pin_credential="pin")
    derive_root_key(named)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra package, the message names it."""
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    source = Pkcs11(library=Path("/l"), token="t", key="k", pin_file=Path(os.devnull))  # noqa: S106 - a label
    with pytest.raises(ConfigError, match=r"pqkeep-keyservice\[pkcs11\]"):
        derive_root_key(source)

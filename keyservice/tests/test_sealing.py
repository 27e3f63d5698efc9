"""A sealed seed opens only undamaged, in its own row and with its own root key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.key_versions import SealedSeed
from pqkeep_keyservice.keys.sealing import (
    DamagedKeyError,
    Sealer,
    associated_data,
    sealing_root_key_id,
)
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyVersion, TenantId
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import Location

SEED = bytes(range(64))
HERE = associated_data(
    TenantId(UUID(int=1)), DEFAULT_KEYRING, Algorithm.ML_KEM_768, KeyVersion(1), b"public key"
)
ELSEWHERE = {
    "tenant": associated_data(
        TenantId(UUID(int=2)), DEFAULT_KEYRING, Algorithm.ML_KEM_768, KeyVersion(1), b"public key"
    ),
    "algorithm": associated_data(
        TenantId(UUID(int=1)), DEFAULT_KEYRING, Algorithm.ML_DSA_65, KeyVersion(1), b"public key"
    ),
    "version": associated_data(
        TenantId(UUID(int=1)), DEFAULT_KEYRING, Algorithm.ML_KEM_768, KeyVersion(2), b"public key"
    ),
    "public key": associated_data(
        TenantId(UUID(int=1)), DEFAULT_KEYRING, Algorithm.ML_KEM_768, KeyVersion(1), b"public kez"
    ),
    "keyring": associated_data(
        TenantId(UUID(int=1)), "another", Algorithm.ML_KEM_768, KeyVersion(1), b"public key"
    ),
    "nothing": b"",
}


def test_a_seed_comes_back(sealer: Sealer) -> None:
    """A seed sealed for a row is unsealed in that row."""
    assert bytes(sealer.unseal(sealer.seal(Secret(SEED), HERE), HERE).reveal()) == SEED


def test_the_format_is_the_documented_one(sealer: Sealer) -> None:
    """Format byte, root key id, 16 bytes of salt, 12 of nonce, the seed's length, 16 of tag."""
    sealed = sealer.seal(Secret(SEED), HERE)
    assert sealed[:2] == b"\x01\x01"
    assert len(sealed) == 2 + 16 + 12 + len(SEED) + 16


def test_sealing_is_never_the_same_twice(sealer: Sealer) -> None:
    """Salt and nonce are fresh each time, and the result does not show the seed."""
    first, second = (sealer.seal(Secret(SEED), HERE) for _ in range(2))
    assert first[2:18] != second[2:18]
    assert first[18:30] != second[18:30]
    assert bytes(first).find(SEED[:8]) < 0


@pytest.mark.parametrize("moved", ELSEWHERE)
def test_a_moved_seed_does_not_open(moved: str, sealer: Sealer) -> None:
    """A sealed seed with another tenant, algorithm, version or public key is refused."""
    sealed = sealer.seal(Secret(SEED), HERE)
    with pytest.raises(DamagedKeyError):
        sealer.unseal(sealed, ELSEWHERE[moved])


def refused(sealer: Sealer, sealed: bytes) -> bool:
    """Return whether a sealed seed does not open."""
    try:
        sealer.unseal(SealedSeed(sealed), HERE)
    except DamagedKeyError:
        return True
    return False


def test_no_damaged_seed_opens(sealer: Sealer) -> None:
    """A flipped bit, a shorter length or an extra byte is refused."""
    sealed = sealer.seal(Secret(SEED), HERE)
    flipped = [
        sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :]
        for at in range(len(sealed))
        for bit in range(8)
    ]
    truncated = [sealed[:size] for size in range(len(sealed))]
    assert all(refused(sealer, damaged) for damaged in (*flipped, *truncated, sealed + b"\0"))
    assert not refused(sealer, sealed)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_what_has_no_root_key_is_said_to_have_none(size: int) -> None:
    """A seed cut within its header has root key id 0, meaning none."""
    sealed = SealedSeed(b"\x01\x07"[:size])
    assert sealing_root_key_id(sealed) == (7 if size == 2 else 0)


def test_a_sealed_seed_names_its_root_key(sealer: Sealer) -> None:
    """The header of a sealed seed has its root key's id."""
    assert sealing_root_key_id(sealer.seal(Secret(SEED), HERE)) == 1


def test_no_other_mac_is_accepted(sealer: Sealer) -> None:
    """A MAC is valid only for its data, complete, with its format and root key."""
    mac = sealer.mac(b"data")
    assert sealer.is_mac(mac, b"data")
    assert not sealer.is_mac(mac, b"date")
    others = [mac[:size] for size in range(len(mac))]
    others += [b"\x02" + mac[1:], mac[:1] + b"\x09" + mac[2:], mac[:-1] + bytes((mac[-1] ^ 1,))]
    assert not any(sealer.is_mac(other, b"data") for other in others)


@pytest.mark.threat(
    "keys-database-reader",
    "stolen-transfer-key",
    "moved-tenant-rollback",
    "stolen-backup-and-recovery-key",
)
def test_another_root_key_does_not_open_it(sealer: Sealer) -> None:
    """A seed needs its own root key under its own id."""
    sealed = sealer.seal(Secret(SEED), HERE)
    assert refused(Sealer({1: Secret(os.urandom(32))}), sealed)
    root_key = os.urandom(32)
    other_id = Sealer({2: Secret(root_key)}).seal(Secret(SEED), HERE)
    assert refused(Sealer({1: Secret(root_key)}), other_id)


def test_check_values_tell_root_keys_apart(sealer: Sealer) -> None:
    """A check value fits one root key, and contains no part of it."""
    root_key = os.urandom(32)
    other = Sealer({1: Secret(root_key)})
    assert other.matches(1, Sealer({1: Secret(root_key)}).check_value(1))
    assert not sealer.matches(1, other.check_value(1))
    assert other.check_value(1) not in root_key


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_root_key_of_another_size_is_refused(size: int) -> None:
    """A root key must have exactly 32 bytes."""
    with pytest.raises(ConfigError, match="32 bytes"):
        Sealer({1: Secret(bytes(size))})


def test_two_root_keys_that_are_the_same() -> None:
    """A root key with two ids is refused, because a rotation would change nothing."""
    with pytest.raises(ConfigError, match="root keys 1 and 2 are equal"):
        Sealer({1: Secret(bytes(32)), 2: Secret(bytes(32))})


@pytest.fixture
def root_key_file(tmp_path: Path) -> Path:
    """Create a valid root key file."""
    path = tmp_path / "root.key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o400)
    return path


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_a_private_root_key_file_is_read(mode: int, root_key_file: Path) -> None:
    """A file of 32 bytes that only its owner can read is a root key."""
    root_key_file.chmod(mode)
    assert bytes(read_root_key(root_key_file).reveal()) == bytes(range(32))


@pytest.mark.threat("stolen-root-key")
@pytest.mark.parametrize("mode", [0o440, 0o404, 0o420, 0o402, 0o410, 0o401, 0o644, 0o777])
def test_a_root_key_file_open_to_others_is_refused(mode: int, root_key_file: Path) -> None:
    """A file with any right for group or others stops the start."""
    root_key_file.chmod(mode)
    with pytest.raises(ConfigError, match="other users have access"):
        read_root_key(root_key_file)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_root_key_file_of_another_length_is_refused(size: int, root_key_file: Path) -> None:
    """A file that is too short, too long or empty is refused."""
    root_key_file.chmod(0o600)
    root_key_file.write_bytes(bytes(size))
    with pytest.raises(ConfigError, match="32 bytes"):
        read_root_key(root_key_file)


def test_a_missing_root_key_file_is_a_clear_error(tmp_path: Path) -> None:
    """A missing file, or a folder in its place, is a ConfigError with the path."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match=path.name):
            read_root_key(path)


BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@BOTH
async def test_the_wrong_root_key_is_refused(store: KeyStore, database: Database) -> None:
    """A database accepts only the root key of its first start."""
    await store.check()
    await store.check()
    with pytest.raises(ConfigError, match="root key"):
        await KeyStore(database, Sealer({1: Secret(os.urandom(32))})).check()
    await store.check()


@BOTH
async def test_the_root_key_is_remembered_over_a_restart(
    location: Location, sealer: Sealer
) -> None:
    """The check value is stored, so a wrong root key is refused after a restart too."""
    first = await location.open()
    await KeyStore(first, sealer).check()
    await first.close()
    second = await location.open()
    try:
        with pytest.raises(ConfigError, match="root key"):
            await KeyStore(second, Sealer({1: Secret(os.urandom(32))})).check()
    finally:
        await second.close()

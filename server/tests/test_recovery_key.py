"""Recovery keys in their files."""

import stat
from pathlib import Path

import pytest

from pqkeep_server.backup import recovery_key
from pqkeep_server.backup.recovery_key import RecoveryKeyError

KEMS = pytest.mark.parametrize("kem", ["ML-KEM-1024", "X-Wing"])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The paths of the private and the public half."""
    return tmp_path / "private", tmp_path / "public"


@KEMS
def test_both_halves_fit(kem: str, files: tuple[Path, Path]) -> None:
    """The private half recovers a secret that was encapsulated to the public half."""
    recovery_key.create(kem, *files)
    secret, ciphertext = recovery_key.read_public(files[1]).key.encapsulate()
    assert recovery_key.read_private(files[0]).key.decapsulate(ciphertext) == secret


@KEMS
def test_the_files_say_what_they_are(kem: str, files: tuple[Path, Path]) -> None:
    """The first line of each file names the half and the KEM."""
    recovery_key.create(kem, *files)
    first = [file.read_text().splitlines()[0] for file in files]
    assert first == [
        f"pqkeep recovery key v1, {half} half, {kem}" for half in ("private", "public")
    ]


def test_the_private_half_is_its_owners(files: tuple[Path, Path]) -> None:
    """The private half has mode 0400."""
    recovery_key.create("X-Wing", *files)
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o400


@pytest.mark.parametrize("there", [0, 1])
def test_nothing_is_overwritten(there: int, files: tuple[Path, Path]) -> None:
    """An existing file is not changed."""
    files[there].write_text("precious")
    with pytest.raises(RecoveryKeyError):
        recovery_key.create("X-Wing", *files)
    assert files[there].read_text() == "precious"


def test_an_open_private_half_is_refused(files: tuple[Path, Path]) -> None:
    """A private half that others can read is not used."""
    recovery_key.create("X-Wing", *files)
    files[0].chmod(0o444)
    with pytest.raises(RecoveryKeyError, match="0400"):
        recovery_key.read_private(files[0])


def test_the_halves_are_not_mistaken(files: tuple[Path, Path]) -> None:
    """The two halves cannot be confused."""
    recovery_key.create("X-Wing", *files)
    with pytest.raises(RecoveryKeyError, match="not the public half"):
        recovery_key.read_public(files[0])
    files[1].chmod(0o400)
    with pytest.raises(RecoveryKeyError, match="not the private half"):
        recovery_key.read_private(files[1])


@KEMS
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("line", [0, 1, 2])
def test_damage_is_noticed(kem: str, half: int, line: int, files: tuple[Path, Path]) -> None:
    """A file with any changed character is refused."""
    recovery_key.create(kem, *files)
    lines = files[half].read_text().splitlines()
    first = lines[line][0]
    lines[line] = ("0" if first != "0" else "1") + lines[line][1:]
    files[half].chmod(0o600)
    files[half].write_text("\n".join(lines) + "\n")
    with pytest.raises(RecoveryKeyError):
        (recovery_key.read_private, recovery_key.read_public)[half](files[half])

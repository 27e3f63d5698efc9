"""The format of credentials, malformed credentials, and the stored form."""

import hmac
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_gateway.access.credentials import (
    PEPPER_SIZE,
    CredentialKind,
    Pepper,
    kind_of,
    new_credential,
    read_pepper,
)
from pqkeep_protocol.startup.settings import ConfigError

DIGITS = string.digits + string.ascii_letters
SIZE = 53
EXAMPLE = new_credential(CredentialKind.API_KEY)

every_kind = pytest.mark.parametrize("kind", CredentialKind)


@every_kind
def test_the_form(kind: CredentialKind) -> None:
    """A credential is its prefix and 49 digits of base62, and only this form is accepted."""
    for _ in range(200):
        credential = new_credential(kind)
        assert len(credential) == SIZE
        assert credential.startswith(kind)
        assert set(credential[len(kind) :]) <= set(DIGITS)
        assert kind_of(credential) is kind


@every_kind
def test_credentials_differ(kind: CredentialKind) -> None:
    """A thousand credentials are different, and differ in every digit."""
    made = {new_credential(kind) for _ in range(1000)}
    assert len(made) == 1000
    for position in range(len(kind) + 1, len(kind) + 43):
        assert len({credential[position] for credential in made}) > 30


@given(st.integers(0, SIZE - 1), st.characters())
def test_one_character_changed(position: int, character: str) -> None:
    """A credential with one changed character is malformed."""
    changed = EXAMPLE[:position] + character + EXAMPLE[position + 1 :]
    assert (kind_of(changed) is None) is (changed != EXAMPLE)


@given(st.integers(0, SIZE - 2))
def test_two_neighbours_exchanged(position: int) -> None:
    """A credential with two exchanged neighbouring characters is malformed."""
    first, second = EXAMPLE[position], EXAMPLE[position + 1]
    changed = EXAMPLE[:position] + second + first + EXAMPLE[position + 2 :]
    assert (kind_of(changed) is None) is (first != second)


@given(st.integers(0, SIZE), st.text(DIGITS, min_size=1, max_size=3))
def test_characters_inserted(position: int, inserted: str) -> None:
    """A credential with an insertion is malformed."""
    assert kind_of(EXAMPLE[:position] + inserted + EXAMPLE[position:]) is None


@given(st.integers(0, SIZE - 1))
def test_cut_off(length: int) -> None:
    """A truncated credential is malformed."""
    assert kind_of(EXAMPLE[:length]) is None


@given(st.text(max_size=80))
def test_any_text(text: str) -> None:
    """No text raises, and no text that was not created here is a credential."""
    assert kind_of(text) is None


@given(st.text(min_size=43, max_size=43), st.text(min_size=6, max_size=6))
def test_any_text_of_the_right_length(body: str, checksum: str) -> None:
    """The right length and prefix do not make a credential."""
    assert kind_of(f"{CredentialKind.API_KEY}{body}{checksum}") is None


def test_another_prefix() -> None:
    """An API key with the operator's prefix is malformed, and the reverse."""
    for kind, other in (
        (CredentialKind.API_KEY, CredentialKind.OPERATOR),
        (CredentialKind.OPERATOR, CredentialKind.API_KEY),
    ):
        assert kind_of(other + new_credential(kind)[len(kind) :]) is None


def test_the_digest_is_hmac_sha_256(pepper: Pepper) -> None:
    """A digest is HMAC-SHA-256 of the credential, under the subkey of the pepper for its kind."""
    label = f"pqkeep/v1/digest/{EXAMPLE[:4]}".encode()
    subkey = hmac.digest(bytes(range(PEPPER_SIZE)), label, "sha256")
    expected = hmac.digest(subkey, EXAMPLE.encode(), "sha256")
    assert pepper.digest(EXAMPLE) == expected


def test_digests_depend_on_pepper_and_credential(pepper: Pepper) -> None:
    """Another pepper or another credential gives another digest."""
    other = Pepper(bytes(PEPPER_SIZE))
    assert pepper.digest(EXAMPLE) != other.digest(EXAMPLE)
    assert pepper.digest(EXAMPLE) != pepper.digest(EXAMPLE + " ")


def test_the_pepper_does_not_show(pepper: Pepper) -> None:
    """The repr of a pepper does not contain its bytes."""
    assert repr(pepper) == str(pepper) == "<Pepper>"


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_a_pepper_of_another_size(size: int) -> None:
    """A pepper that is not 32 bytes long stops the start."""
    with pytest.raises(ConfigError, match="32 bytes"):
        Pepper(bytes(size))


def test_a_pepper_file(tmp_path: Path) -> None:
    """A pepper is read from a file that only its owner can read."""
    path = tmp_path / "pepper"
    path.write_bytes(bytes(PEPPER_SIZE))
    path.chmod(0o400)
    assert read_pepper(path).digest("x") == Pepper(bytes(PEPPER_SIZE)).digest("x")


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o644, 0o420])
def test_a_pepper_file_that_others_can_use(tmp_path: Path, mode: int) -> None:
    """A pepper file that others can read or write is refused, with the required mode."""
    path = tmp_path / "pepper"
    path.write_bytes(bytes(PEPPER_SIZE))
    path.chmod(mode)
    with pytest.raises(ConfigError, match="0400"):
        read_pepper(path)


def test_a_pepper_file_that_is_missing(tmp_path: Path) -> None:
    """A missing pepper file is refused by name."""
    with pytest.raises(ConfigError, match=str(tmp_path / "pepper")):
        read_pepper(tmp_path / "pepper")

"""Key material is not printed, pickled, hashed or left behind."""

import copy
import json

import pytest

from pqkeep_keyservice.crypto.secret import Secret

DATA = b"do not print me"


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{0!r}".format])
def test_a_secret_is_not_printed(show: object) -> None:
    """The text of a secret shows only its size."""
    assert callable(show)
    assert show(Secret(DATA)) == "<Secret: 15 bytes>"


@pytest.mark.parametrize("leak", [copy.copy, copy.deepcopy, hash, json.dumps, bytes])
def test_a_secret_is_not_copied_by_accident(leak: object) -> None:
    """A secret cannot be copied, pickled, hashed, encoded or used as bytes."""
    assert callable(leak)
    with pytest.raises(TypeError):
        leak(Secret(DATA))


def test_a_secret_is_wiped_behind_its_block() -> None:
    """After its block the original buffer, and every view of it, is zeros."""
    buffer = bytearray(DATA)
    with Secret(buffer) as secret:
        view = secret.reveal()
        assert bytes(view) == DATA
    assert bytes(view) == bytes(buffer) == bytes(len(DATA))


def test_a_secret_is_wiped_by_an_exception_too() -> None:
    """A block that fails wipes the secret too."""
    buffer = bytearray(DATA)
    with pytest.raises(RuntimeError), Secret(buffer):
        raise RuntimeError
    assert not any(buffer)


def test_a_revealed_secret_cannot_be_changed() -> None:
    """The view of a secret is read-only."""
    view = Secret(DATA).reveal()
    with pytest.raises(TypeError):
        view[0] = 0

"""Snippets for shell and Python quote every value safely."""

import ast
import base64
import json
import shlex
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.contract.rows import api_rows

from pqkeep_gateway.http.road import API
from pqkeep_gateway.reference.snippets import curl, example_values, python

ROWS = {row.name: row for row in api_rows()}
HOSTILE = "'\"; touch /tmp/x; $(id) `id` ${HOME} \\ ! # %s {} [1-9] \n@file"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def words(snippet: str) -> list[str]:
    """Return a command's words after shell quoting."""
    return shlex.split(snippet.replace("\\\n", ""))


def literals(snippet: str) -> list[object]:
    """Return all constants in a program."""
    return [node.value for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Constant)]


@given(TEXT)
@example(HOSTILE)
@settings(max_examples=60)
def test_values_stay_values(text: str) -> None:
    """A value in a body is one quoted word for the shell and one literal for Python, unchanged."""
    row, values = ROWS["create_tenant"], {"name": text}
    command = words(curl(row, values))
    assert json.loads(command[command.index("-d") + 1]) == values
    assert len(command) == len(words(curl(row, {"name": "a"})))
    program = python(row, values)
    assert program is not None
    assert text in literals(program)


@given(TEXT.filter(bool))
@example(HOSTILE)
@settings(max_examples=60)
def test_values_of_addresses_stay_values(text: str) -> None:
    """A path or query value contains no character that a shell, curl or a URL would interpret."""
    row = ROWS["get_key"]
    url = words(curl(row, {"key_version": text, "algorithm": text}))[1]
    assert not set(url.removeprefix("$PQKEEP_URL")) & set("$`\"'\\!{}[]#@; ")
    parts = urlsplit(url)
    assert unquote(parts.path) == f"$PQKEEP_URL{API}/kms/keys/{text}"
    assert parse_qs(parts.query) == {"algorithm": [text]}


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202e", "\x9b"])
def test_nothing_unprintable(text: str) -> None:
    """Control characters for terminals are escaped in both languages."""
    values = {"name": text}
    program = python(ROWS["create_tenant"], values)
    assert program is not None
    assert text not in program
    assert text not in curl(ROWS["create_tenant"], values)


@given(st.binary(max_size=40))
@example(b"attack at dawn")
@example(b"'\"\\")
def test_binary_values_are_bytes(data: bytes) -> None:
    """Python gets the decoded bytes of base64 values."""
    program = python(ROWS["encrypt"], {"plaintext": base64.b64encode(data).decode()})
    assert program is not None
    found = literals(program)
    assert data in found or base64.b64encode(data).decode() in found
    assert ("b64decode" in program) is (data not in found)


def test_unknown_fields_are_refused() -> None:
    """A value for an unknown field is an error, and is not ignored."""
    for snippet in (curl, python):
        with pytest.raises(ValueError, match="has no field colour"):
            snippet(ROWS["encrypt"], {"colour": "red"})


def test_none_is_left_out() -> None:
    """A field with None is not sent."""
    row, values = ROWS["encrypt"], {"plaintext": "AAAA", "key_version": None}
    assert curl(row, values) == curl(row, {"plaintext": "AAAA"})
    assert python(row, values) == python(row, {"plaintext": "AAAA"})


def test_what_the_client_cannot_say_is_not_said() -> None:
    """Operations of people, and fields that the client lacks, have no Python snippet."""
    assert python(ROWS["archive_key"], example_values(ROWS["archive_key"])) is None
    assert python(ROWS["rotate_api_key"], {}) is not None
    assert python(ROWS["rotate_api_key"], {"overlap_seconds": 0}) is None


def test_long_calls_are_broken_into_lines() -> None:
    """A long call has one argument on each line."""
    program = python(ROWS["decrypt"], {"ciphertext": "A" * 400, "key_version": 1})
    assert program is not None
    assert "\n        key_version=1,\n    )\n" in program

"""Any document is decoded, or refused quickly and by a single exception."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pqkeep_protocol.documents import MalformedDocumentError, decode_json, decode_toml
from pqkeep_protocol.startup.settings import MAX_SETTINGS, ConfigError, read_toml

DEEP = 100_000
NOT_JSON = {
    "arrays": b"[" * DEEP,
    "closed arrays": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * DEEP,
    "nested in a member": b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a number of 4,301 digits": b'{"a":' + b"1" * 4301 + b"}",
    "a negative one": b'{"a":-' + b"1" * 5000 + b"}",
    "an exponent": b'{"a":1e400}',
    "NaN": b'{"a":NaN}',
    "not UTF-8": b'{"a":"\xff"}',
    "half a pair": rb'{"a":"\ud800"}',
    "cut": b'{"a"',
    "nothing": b"",
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "an array": b"[]",
    "a text": b'"a"',
}
NOT_TOML = {
    "arrays": "a = " + "[" * DEEP,
    "inline tables": "a = " + "{a = " * DEEP,
    "a name of many parts": "a." * DEEP + "a = 1",
    "spaces between the parts": "a . " * DEEP + "a = 1",
    "quoted parts": '"a\\"". ' * DEEP + "a = 1",
    "literal parts": "'a'." * DEEP + "a = 1",
    "many parts of a table": "[a" + ".a" * DEEP + "]",
    "many parts in a table": "a = {b" + ".b" * DEEP + " = 1}",
    "a number of 4,301 digits": "a = " + "1" * 4301,
    "a control character": "a = '\0'",
    "cut": "a = [",
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_json_that_is_refused(name: str) -> None:
    """The message of the refusal repeats none of the document."""
    with pytest.raises(MalformedDocumentError) as refused:
        decode_json(NOT_JSON[name], dict[str, Any])
    assert str(refused.value) == "not the expected JSON document"


@pytest.mark.parametrize("name", NOT_TOML)
def test_toml_that_is_refused(name: str, tmp_path: Path) -> None:
    """The document is refused at once. A settings file with it is refused by name."""
    began = time.process_time()
    with pytest.raises(MalformedDocumentError):
        decode_toml(NOT_TOML[name], dict[str, Any])
    file = tmp_path / "settings.toml"
    file.write_text(NOT_TOML[name])
    with pytest.raises(ConfigError) as refused:
        read_toml(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert time.process_time() - began < 60


@pytest.mark.threat("gateway-user")
@pytest.mark.parametrize(
    "unit", ["a.", " a", '" ', "' ", '\\"', ' \\"', ' \\" "', "a" * 99, "[", ",a."]
)
def test_a_large_settings_file_is_read_at_once(unit: str) -> None:
    """A file of 1 MiB is decoded or refused in time linear in its size."""
    began = time.process_time()
    with pytest.raises(MalformedDocumentError):
        decode_toml("# " + unit * (MAX_SETTINGS // len(unit)) + "\n=", dict[str, Any])
    assert time.process_time() - began < 60


def test_what_is_decoded() -> None:
    """Names of up to 16 parts and addresses in texts are decoded correctly."""
    name = ".".join("a" * 16)
    text = f'{name} = 1\nb = ["10.0.0.0/8", "10.1.0.0/16"]\n[table."with.dots"]\nc = 1.5\n'
    decoded = decode_toml(text, dict[str, Any])
    assert decoded["b"] == ["10.0.0.0/8", "10.1.0.0/16"]
    assert decoded["table"] == {"with.dots": {"c": 1.5}}
    assert decode_json(b'{"a":[1]}', dict[str, Any]) == {"a": [1]}

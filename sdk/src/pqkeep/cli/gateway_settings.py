"""The part of a gateway's settings file that ``pqkeep apply`` writes, between two pairs of marks.

Single sign-on and the audit sink are settings of the gateway and not part of its API.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pqkeep.cli.failures import Refusal
from pqkeep.new_files import changeable, replacement

_BEGIN = "# pqkeep apply writes what follows, up to the next mark."
_END = "# End of what pqkeep apply writes."
_BLOCK = re.compile(rf"^{re.escape(_BEGIN)}\n.*?^{re.escape(_END)}\n?", re.DOTALL | re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PROVIDERS = "single_sign_on"
_SINK = {
    "url": "audit_sink",
    "token_file": "audit_sink_token_file",
    "ca_file": "audit_sink_ca_file",
}
_MAX_BYTES = 1024 * 1024

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Identity providers and the audit sink of a settings file."""

    providers: Sequence[Values]
    """The settings that this command wrote."""
    sink: Values
    others: Sequence[Values]
    """Providers outside the marks, which are never changed."""
    other_sink: Values


def read_settings(path: Path) -> GatewaySettings:
    """Read a settings file. Raises Refusal and OSError."""
    return _parsed(_text_of(path.read_bytes(), path), path)


def _parsed(text: str, path: Path) -> GatewaySettings:
    whole, rest = _loaded(text, path), _loaded(_BLOCK.sub("", text), path)
    others: list[Values] = rest.get(_PROVIDERS, [])
    other_sink = _sink_in(rest)
    return GatewaySettings(
        providers=[provider for provider in whole.get(_PROVIDERS, []) if provider not in others],
        sink={} if other_sink else _sink_in(whole),
        others=others,
        other_sink=other_sink,
    )


def write_settings(path: Path, providers: Sequence[Values], sink: Values) -> None:
    """Replace what is between the marks. Everything else stays, byte for byte.

    Raises Refusal if the file would no longer mean what it says, and OSError.
    """
    with changeable(path) as file:
        before = _text_of(file.read(_MAX_BYTES + 1), path)
        rest = _BLOCK.sub("", before)
        expected = _loaded(rest, path)
        head = "".join(f"{_SINK[name]} = {_value(sink[name])}\n" for name in _SINK if name in sink)
        tail = "\n".join(
            f"[[{_PROVIDERS}]]\n"
            + "".join(f"{name} = {_value(value)}\n" for name, value in provider.items())
            for provider in providers
        )
        separator = "" if not rest or rest.endswith("\n") else "\n"
        after = _marked(head) + rest + separator + _marked(tail)
        expected |= {_SINK[name]: value for name, value in sink.items()}
        if providers:
            expected[_PROVIDERS] = [*expected.get(_PROVIDERS, []), *map(dict, providers)]
        if _loaded(after, path) != expected:
            raise Refusal(
                f"{path} cannot be extended without changing another setting",
                "write identity providers and audit_sink into it yourself",
            )
        with replacement(file) as target:
            target.write(after.encode())


def _text_of(data: bytes, path: Path) -> str:
    try:
        if len(data) <= _MAX_BYTES:
            return data.decode()
    except UnicodeDecodeError:
        pass
    raise Refusal(f"{path} is not a settings file", "name the gateway's settings file")


def _marked(text: str) -> str:
    return f"{_BEGIN}\n{text}{_END}\n" if text else ""


def _loaded(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"{path} is not TOML: {error}", "correct the file") from None


def _sink_in(settings: Values) -> Values:
    return {name: settings[setting] for name, setting in _SINK.items() if setting in settings}


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return f"{{ {', '.join(f'{_key(key)} = {_value(of)}' for key, of in value.items())} }}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return str(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)

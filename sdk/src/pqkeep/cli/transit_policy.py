"""Translates the Transit paths of a Vault or OpenBao policy to scopes.

A scope is printed only if it allows nothing that the policy denies. The reader takes what policies
use of HCL and JSON, and refuses the rest.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import NamedTuple

from pqkeep.cli.failures import Refusal

LARGEST_POLICY = 1024 * 1024
"""The most bytes of a policy."""
_DEEPEST = 16
_KEYRINGS_IN_A_SCOPE = 16
_KEY = "{name}"
_ALL = ""
_CAPABILITIES = frozenset(
    {
        *("create", "read", "update", "patch", "delete", "list", "sudo", "deny"),
        *("subscribe", "recover", "scan"),
    }
)
_HARMLESS = frozenset({"capabilities", "comment"})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PREFIX = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,126})?")


class Row(NamedTuple):
    """An endpoint of Transit, and what a scope calls it."""

    path: str
    capability: str
    operations: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Other endpoints of the table that the policy must allow for the same keys. Otherwise the
    operations would allow more than this policy."""
    why: str = ""
    """The other rights that the operations give."""


_TABLE: Mapping[str, Row] = {
    "encrypt": Row("encrypt/{name}", "update", ("encrypt",)),
    "decrypt": Row("decrypt/{name}", "update", ("decrypt",)),
    "rewrap": Row(
        "rewrap/{name}",
        "update",
        ("re-encrypt",),
        ("encrypt", "decrypt"),
        "re-encrypt also moves data to other keys and associated data, so it needs encrypt and "
        "decrypt on the same keys",
    ),
    "data key": Row("datakey/plaintext/{name}", "update", ("generate-data-key",)),
    "wrapped data key": Row(
        "datakey/wrapped/{name}",
        "update",
        ("generate-data-key",),
        ("data key",),
        "generate-data-key also returns the key in the clear",
    ),
    "sign": Row("sign/{name}", "update", ("sign", "sign-hash")),
    "verify": Row("verify/{name}", "update", ("verify", "verify-hash", "verify-mac")),
    "hmac": Row("hmac/{name}", "update", ("compute-mac",)),
    "hash": Row("hash", "update", ("hash",)),
    "random": Row("random", "update", ("generate-random",)),
    "read key": Row(
        "keys/{name}", "read", ("get-keyring", "list-keys", "get-key", "get-active-key")
    ),
    "create key": Row("keys/{name}", "update", ("create-keyring", "generate-key")),
    "configure key": Row("keys/{name}/config", "update", ("update-keyring",)),
    "rotate key": Row("keys/{name}/rotate", "update", ("rotate-key",)),
    "delete key": Row("keys/{name}", "delete", ("delete-keyring",)),
    "soft-delete key": Row(
        "keys/{name}/soft-delete",
        "delete",
        ("delete-keyring",),
        ("delete key",),
        "delete-keyring destroys the keys after a delay",
    ),
    "restore key": Row("keys/{name}/soft-delete-restore", "update", ("restore-keyring",)),
    "list keys": Row(
        "keys/",
        "list",
        ("list-keyrings",),
        ("read key",),
        "list-keyrings also shows their settings, so it needs read on all of transit/keys/*",
    ),
}
_REFUSED: Mapping[str, tuple[str, str]] = {
    "export/": ("export", "read"),
    "byok-export/": ("byok-export", "read"),
    "backup/": ("backup", "read"),
    "restore": ("restore", "update"),
    "keys/{name}/trim": ("trim", "update"),
    "keys/{name}/import": ("import", "update"),
    "keys/{name}/import_version": ("import_version", "update"),
    "cache-config": ("cache-config", "update"),
    "config/keys": ("config/keys", "update"),
}
"""Endpoints without a counterpart, with their names and capabilities."""
_CALLS = frozenset({"create", "read", "update", "patch", "delete", "list"})


class Untranslated(NamedTuple):
    """A path, or a part of its meaning, that no scope says."""

    line: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Translation:
    """The scopes of a policy, and what they leave out."""

    scopes: tuple[dict[str, list[str]], ...]
    untranslated: tuple[Untranslated, ...]
    skipped: int
    """The number of paths outside the mount."""


def translate(data: bytes, mount: str) -> Translation:
    """Return a policy's scopes. Raises Refusal for text that is not a policy."""
    return _Translator(_rules(_Reader(_text(data)).document()), mount).translate()


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _not_a_policy(1, "it is not UTF-8") from None


@dataclass
class _Rule:
    """One path with the capabilities of all its blocks."""

    line: int
    path: str
    capabilities: set[str] = field(default_factory=set)
    problem: str = ""
    """Why it allows nothing here."""

    def allows(self, capability: str) -> bool:
        """Return whether it allows a capability without a condition."""
        return (
            not self.problem and "deny" not in self.capabilities and capability in self.capabilities
        )

    @cached_property
    def priority(self) -> tuple[float, bool, int, int, str]:
        """The order in which Vault chooses among matching paths: the greatest wins."""
        path = self.pattern
        parts = path.split("/")
        wildcards = parts.count("+")
        is_glob = path.endswith("*")
        starts = [path.index("*")] if is_glob else []
        starts += [len("/".join(parts[:place])) for place, part in enumerate(parts) if part == "+"]
        return (min(starts, default=inf), not is_glob, -wildcards, len(path), path)

    @cached_property
    def pattern(self) -> str:
        """The path in the form that is compared.

        A path with a template matches every path with the same beginning.

        Vault lists keys by the path without its slash, too.
        """
        beginning, template, _ = self.path.partition("{{")
        if template:
            return f"{beginning}*"
        return f"{self.path}/" if self.path.endswith("/keys") else self.path

    @property
    def is_template(self) -> bool:
        """Whether the path depends on the caller."""
        return "{{" in self.path


class _Keys(NamedTuple):
    """Names of keys: one name, or all with a prefix."""

    text: str
    is_prefix: bool

    def overlaps(self, other: "_Keys") -> bool:
        if self.is_prefix and other.is_prefix:
            return self.text.startswith(other.text) or other.text.startswith(self.text)
        if self.is_prefix:
            return other.text.startswith(self.text)
        return self.text.startswith(other.text) if other.is_prefix else self.text == other.text

    def includes(self, other: "_Keys") -> bool:
        if self.is_prefix:
            return other.text.startswith(self.text)
        return not other.is_prefix and self.text == other.text

    @property
    def shown(self) -> str:
        """The pattern as a scope has it."""
        return f"{self.text}*" if self.is_prefix else self.text


_EVERY_KEY = _Keys(_ALL, is_prefix=True)


class _Translator:
    """Translates the rules of one policy."""

    def __init__(self, rules: Sequence[_Rule], mount: str) -> None:
        self._mount = mount
        self._rules = [rule for rule in rules if self._is_of_mount(rule)]
        self._skipped = len(rules) - len(self._rules)
        self._untranslated: list[Untranslated] = []
        self._granted: dict[str, list[_Keys]] = {name: [] for name in _TABLE}

    def translate(self) -> Translation:
        """Return the scopes, and the rules that they omit."""
        for rule in self._rules:
            self._explain(rule)
        for name, row in sorted(_TABLE.items(), key=lambda entry: len(entry[1].needs)):
            self._grant(name, row)
        for rule in self._rules:
            self._explain_creation(rule)
        return Translation(
            tuple(self._scopes()), tuple(sorted(set(self._untranslated))), self._skipped
        )

    def _grant(self, name: str, row: Row) -> None:
        """Grant an endpoint's operations on the keys of each rule, or say why not."""
        found = [
            (rule, keys)
            for rule in self._rules
            if (keys := _matched(rule.pattern, f"{self._mount}/{row.path}")) is not None
        ]
        refusing = [entry for entry in found if not entry[0].allows(row.capability)]
        for rule, keys in found:
            if not rule.allows(row.capability):
                continue
            if not _is_expressible(keys):
                self._leave_out(rule, "pqkeep's key names cannot have this form")
            elif (other := _exception(rule, keys, refusing)) is not None:
                reason = f"line {other.line} is an exception to it, and scopes have no exceptions"
                self._leave_out(rule, f"{row.path}: {reason}")
            elif all(self._is_granted(need, keys) for need in row.needs):
                self._granted[name].append(keys)
            else:
                self._leave_out(rule, f"{row.path}: {row.why}")

    def _is_of_mount(self, rule: _Rule) -> bool:
        paths = (*(row.path for row in _TABLE.values()), *_REFUSED, "")
        if rule.pattern.startswith(f"{self._mount}/"):
            return True
        return any(_matched(rule.pattern, f"{self._mount}/{path}") for path in paths)

    def _explain(self, rule: _Rule) -> None:
        """Say why a rule is not translated at all, or in part."""
        if "deny" in rule.capabilities or not rule.capabilities & _CALLS:
            return
        if rule.problem:
            self._leave_out(rule, rule.problem)
            return
        refused = [
            name
            for path, (name, capability) in _REFUSED.items()
            if rule.allows(capability)
            and (
                _matched(rule.pattern, f"{self._mount}/{path}") is not None
                or _begins(rule.pattern, f"{self._mount}/{path}")
            )
        ]
        if refused:
            self._leave_out(rule, f"pqkeep does not offer {', '.join(refused)}")
        elif not any(
            _matched(rule.pattern, f"{self._mount}/{row.path}") is not None
            for row in _TABLE.values()
        ):
            self._leave_out(rule, "no scope allows only this")

    def _explain_creation(self, rule: _Rule) -> None:
        """Say that creating keys by encrypt is left out, unless they may be created anyway."""
        keys = _matched(rule.pattern, f"{self._mount}/{_TABLE['encrypt'].path}")
        if keys is not None and rule.allows("create") and not self._is_granted("create key", keys):
            self._leave_out(
                rule, "encrypt/{name}: create makes missing keys, and no scope allows only that"
            )

    def _is_granted(self, name: str, keys: _Keys) -> bool:
        return any(granted.includes(keys) for granted in self._granted[name])

    def _leave_out(self, rule: _Rule, reason: str) -> None:
        self._untranslated.append(Untranslated(rule.line, rule.path, reason))

    def _scopes(self) -> Iterator[dict[str, list[str]]]:
        """Yield scopes: the keys with the same operations share one."""
        operations: dict[str, dict[str, None]] = {}
        for name, granted in self._granted.items():
            for keys in granted:
                mine = operations.setdefault(keys.shown, {})
                mine.update(dict.fromkeys(_TABLE[name].operations))
        together: dict[tuple[str, ...], list[str]] = {}
        for keyring, mine in sorted(operations.items()):
            together.setdefault(tuple(mine), []).append(keyring)
        for same, keyrings in together.items():
            if _EVERY_KEY.shown in keyrings:
                yield {"operations": [*same]}
                continue
            for place in range(0, len(keyrings), _KEYRINGS_IN_A_SCOPE):
                part = keyrings[place : place + _KEYRINGS_IN_A_SCOPE]
                yield {"operations": [*same], "keyrings": part}


def _exception(rule: _Rule, keys: _Keys, refusing: Iterable[tuple[_Rule, _Keys]]) -> _Rule | None:
    """Return a refusing rule that counts more for some of a rule's keys."""
    for other, found in refusing:
        counts = other.is_template or other.priority >= rule.priority
        if counts and found.overlaps(keys):
            return other
    return None


def _matched(pattern: str, path: str) -> _Keys | None:
    """Return the keys with paths that a pattern matches; None for no key.

    A path without a key's name that matches has every key.
    """
    is_glob = pattern.endswith("*")
    parts = pattern.removesuffix("*").split("/") if is_glob else pattern.split("/")
    segments = path.split("/")
    keys = _EVERY_KEY
    for place, part in enumerate(parts):
        is_last = place == len(parts) - 1
        if place >= len(segments):
            return None
        segment = segments[place]
        if is_last and is_glob:
            if segment == _KEY:
                return _Keys(part, is_prefix=True)
            return keys if segment.startswith(part) else None
        if segment == _KEY:
            if not part:
                return None
            keys = _EVERY_KEY if part == "+" else _Keys(part, is_prefix=False)
        elif part not in {"+", segment} or (part == "+" and not segment):
            return None
    return keys if len(parts) == len(segments) else None


def _begins(pattern: str, path: str) -> bool:
    """Return whether a pattern is of paths below a path that ends with a slash."""
    return path.endswith("/") and pattern.startswith(path)


def _is_expressible(keys: _Keys) -> bool:
    return (_PREFIX if keys.is_prefix else _NAME).fullmatch(keys.text) is not None


class _Value(NamedTuple):
    """A value of the document, with its line: a text, a list or an object. Others have none."""

    line: int
    text: str | None = None
    items: "list[_Value] | None" = None
    members: "list[tuple[_Value, _Value]] | None" = None


def _rules(blocks: Iterable[tuple[_Value, _Value]]) -> list[_Rule]:
    """Return the rules of a document's paths. Blocks of one path are one rule, as in Vault."""
    rules: dict[str, _Rule] = {}
    for path, body in blocks:
        name = (path.text or "").removeprefix("/")
        _fill(rules.setdefault(name, _Rule(path.line, name)), body)
    return list(rules.values())


def _fill(rule: _Rule, body: _Value) -> None:
    seen: set[str] = set()
    for key, value in _members(body):
        name = key.text or ""
        if name in seen:
            raise _not_a_policy(key.line, "a name is repeated in the block of a path")
        seen.add(name)
        if name == "capabilities":
            _read_capabilities(rule, value)
        elif name not in _HARMLESS:
            rule.problem = f"scopes cannot express its condition {name}"
    if "capabilities" not in seen:
        rule.problem = "it has no capabilities"
    if rule.is_template or "${" in rule.path:
        rule.problem = "its path has a template, and scopes have no templates"
    elif "*" in rule.path[:-1]:
        rule.problem = "a * inside a path is not a wildcard"


def _read_capabilities(rule: _Rule, value: _Value) -> None:
    for member in _items(value, "capabilities must be a list"):
        if member.text is None:
            raise _not_a_policy(member.line, "capabilities must be texts")
        if member.text not in _CAPABILITIES:
            raise _not_a_policy(member.line, "it has an unknown capability")
        rule.capabilities.add(member.text)


def _not_a_policy(line: int, why: str) -> Refusal:
    return Refusal(
        f"line {line} of the policy cannot be read: {why}",
        "name the file of a policy of Vault or OpenBao, in HCL or JSON",
    )


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*|//[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:[^"\\\n]|\\["\\/nrt])*")
    |(?P<word>[A-Za-z_][A-Za-z0-9_-]*)
    |(?P<number>-?[0-9]+(?:\.[0-9]+)?)
    |(?P<sign>[{}\[\]=:,])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


class _Reader:
    """Reads a policy: blocks of paths in HCL, or an object of paths in JSON."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0

    def document(self) -> Iterator[tuple[_Value, _Value]]:
        """Yield each path with its block. Raises Refusal."""
        if self._peek().text == "{":
            yield from self._json_paths()
            self._expect_end()
            return
        while self._peek().kind != "end":
            if self._key().text == "path":
                yield self._key(), self._block(0)
            else:
                self._assigned(0)

    def _json_paths(self) -> Iterator[tuple[_Value, _Value]]:
        for key, value in _members(self._block(0)):
            if key.text != "path":
                continue
            objects = [value] if value.items is None else value.items
            for paths in objects:
                yield from _members(paths)

    def _expect_end(self) -> None:
        if (token := self._peek()).kind != "end":
            raise _not_a_policy(token.line, "something follows the policy")

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        token = self._tokens[self._place]
        self._place += token.kind != "end"
        return token

    def _key(self) -> _Value:
        token = self._next()
        if token.kind not in {"word", "text"}:
            raise _not_a_policy(token.line, "a name is missing")
        return _Value(token.line, _unquoted(token))

    def _assigned(self, depth: int) -> _Value:
        if self._peek().text == "{":
            return self._block(depth)
        token = self._next()
        if token.text not in {"=", ":"} or token.kind != "sign":
            raise _not_a_policy(token.line, "= or a block is missing")
        return self._value(depth)

    def _value(self, depth: int) -> _Value:
        token = self._peek()
        if token.text == "{" and token.kind == "sign":
            return self._block(depth)
        if token.text == "[" and token.kind == "sign":
            return self._list(depth)
        self._next()
        if token.kind == "text":
            return _Value(token.line, _unquoted(token))
        if token.kind == "number" or token.text in {"true", "false", "null"}:
            return _Value(token.line)
        raise _not_a_policy(token.line, "a value is missing")

    def _list(self, depth: int) -> _Value:
        line = self._next().line
        _require_flat(line, depth)
        members: list[_Value] = []
        while self._peek().text != "]":
            members.append(self._value(depth + 1))
            if self._peek().text == ",":
                self._next()
            elif self._peek().text != "]":
                raise _not_a_policy(self._peek().line, "a comma or ] is missing")
        self._next()
        return _Value(line, items=members)

    def _block(self, depth: int) -> _Value:
        opening = self._next()
        if opening.text != "{":
            raise _not_a_policy(opening.line, "a { is missing")
        _require_flat(opening.line, depth)
        members: list[tuple[_Value, _Value]] = []
        while self._peek().text != "}":
            key = self._key()
            members.append((key, self._assigned(depth + 1)))
            if self._peek().text == ",":
                self._next()
        self._next()
        return _Value(opening.line, members=members)


def _members(value: _Value) -> list[tuple[_Value, _Value]]:
    if value.members is None:
        raise _not_a_policy(value.line, "a path needs a block with capabilities")
    return value.members


def _items(value: _Value, must: str) -> list[_Value]:
    if value.items is None:
        raise _not_a_policy(value.line, must)
    return value.items


def _require_flat(line: int, depth: int) -> None:
    if depth > _DEEPEST:
        raise _not_a_policy(line, "it is nested too deeply")


def _unquoted(token: _Token) -> str:
    if token.kind != "text":
        return token.text
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), token.text[1:-1])


def _tokens(text: str) -> Iterator[_Token]:
    place, line = 0, 1
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _not_a_policy(line, "a character is not one of a policy's")
        if found.lastgroup != "space":
            yield _Token(found.lastgroup or "", found[0], line)
        line += found[0].count("\n")
        place = found.end()
    yield _Token("end", "", line)

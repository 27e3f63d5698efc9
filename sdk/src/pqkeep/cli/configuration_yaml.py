"""Reads and writes the YAML of configuration files.

It takes the part of YAML that is safe and has one meaning: no anchors and aliases, no tags, no
repeated names, one document, a limited size and depth. Every node knows its file and line.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from pqkeep.cli.failures import Refusal

MAX_BYTES = 1024 * 1024
"""The largest file."""
MAX_DEPTH = 12
MAX_NODES = 100_000
_SHOWN = 64
"""The most characters of a wrong name in a message."""
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER = yaml.SafeLoader("")
_TEXT_TAG = "tag:yaml.org,2002:str"
_ADVICE = {
    "tab": "indent with spaces, without tabs",
    r"'\\t'": "indent with spaces, without tabs",
    "mapping values": "align it with the lines around it; a text with a colon needs quotation marks",
    "expected ':'": "write NAME: VALUE with a space after the colon, here or on the line above",
    "did not find expected": "align it with the lines around it, and close each bracket and quotation mark",
    "nesting": "nest values less",
    "": "correct this line, or the one above",
}
"""What to do, by a part of the parser's message. The last one is for all others."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    def refusal(self, what: str, next_step: str) -> Refusal:
        """Return the refusal of what stands here."""
        return Refusal(f"{self.file}:{self.line}: {what}", next_step)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text, number, boolean, time or null, exactly as written in the file."""

    text: str
    is_text: bool
    """False if YAML reads the text as another type, such as ``no`` without quotes."""
    place: Place


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    members: "list[Node]"
    place: Place


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping: names with their places and values."""

    members: "dict[str, tuple[Place, Node]]"
    place: Place


Node = Scalar | Items | Fields


def shortened(name: str) -> str:
    """Return the beginning of a name for a message."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"


def parsed(data: bytes, file: str) -> Node:
    """Return the root of a file. Raises Refusal with the line of the error."""
    start = Place(file, 1)
    if len(data) > MAX_BYTES:
        raise start.refusal(f"the file has more than {MAX_BYTES:,} bytes", "split it")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise start.refusal("the file is not UTF-8", "save it as UTF-8") from None
    try:
        return _Tree(file).read(text)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        problem = f"this is not YAML: {error.problem}"
        advice = next(_ADVICE[part] for part in _ADVICE if part in str(error.problem))
    except yaml.YAMLError:
        line, problem = 1, "a character is not allowed in YAML"
        advice = "remove control characters"
    raise Place(file, line).refusal(problem, advice)


class _Tree:
    """Builds nodes from events, without recursion."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._open: list[Items | Fields] = []
        self._names: list[tuple[str, Place] | None] = []
        self._root: Node | None = None
        self._nodes = 0

    def read(self, text: str) -> Node:
        documents = 0
        for event in yaml.parse(text, Loader=_PARSER):
            place = Place(self._file, event.start_mark.line + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise place.refusal("there is a second document", "use one file for each")
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self._open.pop()
                self._names.pop()
            elif isinstance(event, yaml.NodeEvent):
                self._take(event, place)
        if self._root is None:
            raise Place(self._file, 1).refusal("the file is empty", "write version: 1 into it")
        return self._root

    def _take(self, event: Any, place: Place) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise place.refusal(f"there are more than {MAX_NODES:,} values", "split the file")
        if event.anchor is not None:
            raise place.refusal("anchors and aliases are not supported", "write the value out")
        if getattr(event, "tag", None) not in {None, "!"}:
            raise place.refusal("tags are not supported", "leave out the word that begins with !")
        if isinstance(event, yaml.ScalarEvent):
            node: Node = Scalar(event.value, _is_text(event), place)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Items([], place)
        else:
            node = Fields({}, place)
        is_name = self._add(node)
        if is_name or isinstance(node, Scalar):
            return
        if len(self._open) == MAX_DEPTH:
            raise place.refusal(f"values are nested more than {MAX_DEPTH} deep", "nest them less")
        self._open.append(node)
        self._names.append(None)

    def _add(self, node: Node) -> bool:
        """Put a node where it belongs. Return True if it is the name of a field."""
        if not self._open:
            self._root = node
            return False
        parent = self._open[-1]
        if isinstance(parent, Items):
            parent.members.append(node)
            return False
        pending = self._names[-1]
        if pending is not None:
            name, place = pending
            parent.members[name] = (place, node)
            self._names[-1] = None
            return False
        if not isinstance(node, Scalar):
            raise node.place.refusal("a name must be a text", "write NAME: VALUE")
        if node.text in parent.members:
            first = parent.members[node.text][0].line
            what = f"{shortened(node.text)} is here a second time: the first is on line {first}"
            raise node.place.refusal(what, "remove one of them")
        self._names[-1] = (node.text, node.place)
        return True


def _is_text(event: Any) -> bool:
    if event.style:  # quoted, or a block; libyaml gives an empty text for others
        return True
    tag = _RESOLVER.resolve(yaml.ScalarNode, event.value, (True, False))
    return bool(tag == _TEXT_TAG)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc] # yaml has no types
    """Indents lists below their name, so that a diff shows whole entries."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - yaml's signature
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def written(value: Mapping[str, object] | Sequence[object]) -> str:
    """Return a value as YAML. Characters that a terminal could interpret are escaped."""
    return str(
        yaml.dump(
            value,
            Dumper=_Dumper,
            sort_keys=False,
            default_flow_style=False,
            width=sys.maxsize,
            allow_unicode=_is_printable(value),
        )
    )


def _is_printable(value: object) -> bool:
    match value:
        case str():
            return value.isprintable()
        case Mapping():
            return all(_is_printable(name) and _is_printable(of) for name, of in value.items())
        case list() | tuple():
            return all(map(_is_printable, value))
        case _:
            return True

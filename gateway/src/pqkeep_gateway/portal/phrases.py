"""Finds the texts of templates. A template is plain HTML in English, without marks.

``mark`` changes a template's syntax tree: each text, shown attribute and string becomes a message
that is translated when the page is rendered. ``make texts`` reads the same messages for the
catalogue, so no text of a template can be forgotten.

A message is a text with its values as ``{name}`` and its inline elements without attributes:
``Or <a>add a passkey</a>, which needs no app.``
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.utils import pass_context
from markupsafe import Markup, escape

from pqkeep_gateway.languages import filled, gettext

INLINE = frozenset({"a", "bdi", "code", "em", "kbd", "span", "strong", "time"})
"""Elements that may stand within a sentence."""
UNTRANSLATED = frozenset({"code", "kbd", "script", "style"})
"""Elements that contain code, and no text to translate."""
SHOWN = frozenset({"alt", "aria-label", "data-label", "data-toast", "placeholder", "title"})
"""Attributes that visitors see or hear."""
CODE_ARGUMENTS = frozenset(
    {"autocomplete", "class", "id", "kind", "name", "pattern", "then", "type"}
)
"""Macro arguments that are no text to translate."""
CODE_FIRST = frozenset({"copy", "dialog", "opens"})
"""Macros with code as first argument."""
CODE_CALLS = frozenset({"asset", "dict", "namespace", "program", "reference", "snippets"})
"""Functions and macros without texts among their arguments."""
CODE_BLOCKS = frozenset({"body_class", "modules", "width"})
"""Blocks that contain no text to translate."""
WORD_CALLS = frozenset({"badge", "count", "when"})
"""Macros with a single word as first argument or default."""
CODE_FILTERS = frozenset({"replace", "tojson"})
"""Filters that return code, and no text to translate."""
_PARTS: Mapping[type[nodes.Node], tuple[tuple[str, ...], bool]] = {
    nodes.CondExpr: (("expr1", "expr2"), True),
    nodes.Or: (("left", "right"), True),
    nodes.And: (("left", "right"), True),
    nodes.Add: (("left", "right"), False),
    nodes.Tuple: (("items",), False),
    nodes.List: (("items",), False),
    nodes.Dict: (("items",), False),
    nodes.Pair: (("value",), False),
    nodes.Filter: (("node",), False),
    nodes.Getattr: (("node",), False),
    nodes.Getitem: (("node",), False),
}
"""The parts of an expression that can be texts, and whether a single word is one."""
_WORD = re.compile(r"(?=[^\W\d_]{2,})[A-Z]*[a-zäöüß]")
_SENTENCE = re.compile(r"[^\W\d_]{2,}.* |^\s*[A-Z][^\W\d_A-Z]| [^\W\d_]{2,}", re.DOTALL)
_CODE = re.compile(r"[=$<\n]|\w_\w|\w/|/\w|^[a-z]+:\S|^M[0-9]|^(primary|danger|quiet) whole$")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_ATTRIBUTE = re.compile(r"([a-zA-Z-]+)=\"$")
_PLACE = re.compile(r"\{(\w+)\}|</?(\w+)>")

Piece = str | nodes.Expr
"""A part of a template: HTML, or the value of an expression."""
Found = Callable[[str, int], None]
"""Takes a message and its line."""


@pass_context
def phrase(_: Context, text: str, values: Mapping[str, object]) -> Markup:
    """Return a message in HTML with its values and elements."""

    def place(found: re.Match[str]) -> str:
        name = found[1] or found[0]
        return str(escape(values[name])) if name in values else found[0]

    return Markup(_PLACE.sub(place, gettext(text)))  # noqa: S704 - templates are trusted


@pass_context
def words(_: Context, text: str, values: Mapping[str, object]) -> str:
    """Return a message that is no HTML, with its values."""
    shown = gettext(text)
    if not values:
        return shown
    if any(isinstance(value, Markup) for value in values.values()):
        escaped = {name: escape(value) for name, value in values.items()}
        return Markup(filled(str(escape(shown)), escaped))  # noqa: S704 - all of it is escaped
    return filled(shown, values)


FILTERS = {"phrase": phrase, "words": words}


@dataclass(slots=True)
class _Element:
    """An inline element, or the root of a text."""

    name: str = ""
    opening: list[Piece] = field(default_factory=list)
    closing: str = ""
    children: list["Piece | _Element"] = field(default_factory=list)

    @property
    def has_text(self) -> bool:
        """Whether it has a text that can be translated."""
        if self.name in UNTRANSLATED:
            return False
        return any(
            _WORD.search(_plain(child))
            if isinstance(child, str)
            else isinstance(child, _Element) and child.has_text
            for child in self.children
        )

    @property
    def is_code(self) -> bool:
        """True for a code element that contains only text.

        A message contains such an element unchanged.
        """
        return self.name == "code" and all(isinstance(piece, str) for piece in _flat(self))

    @property
    def has_own_text(self) -> bool:
        """Whether a text stands in it beside its elements."""
        return any(
            isinstance(child, str) and _WORD.search(_plain(child)) for child in self.children
        )


def _plain(text: str) -> str:
    return re.sub(r"&\w+;", "", text)


def mark(template: nodes.Template, found: Found | None = None) -> nodes.Template:
    """Make messages of all texts in a template, and report each."""
    _Marker(found or (lambda text, line: None)).statements(template.body)
    return template


class _Marker:
    """Walks through a template in the order of its source, inside and outside of tags."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._tag: list[Piece] | None = None  # the open tag
        self._is_quoted = False  # whether a statement stands in an attribute's value
        self._hidden = ""  # the open element with code
        self._line = 0

    def statements(self, body: Sequence[nodes.Node]) -> None:
        for node in body:
            self._line = node.lineno
            if isinstance(node, nodes.Output):
                node.nodes = self._output(node.nodes)
                continue
            if isinstance(node, nodes.Block) and node.name in CODE_BLOCKS:
                continue
            is_shown = isinstance(node, nodes.CallBlock | nodes.Assign | nodes.For)
            for name in node.fields:
                value = getattr(node, name)
                if name in {"body", "else_", "elif_"}:
                    self.statements(value)
                elif isinstance(node, nodes.Macro | nodes.CallBlock) and name == "defaults":
                    word = isinstance(node, nodes.Macro) and node.name in WORD_CALLS
                    node.defaults = [self._expression(one, word=word) for one in value]
                elif is_shown and isinstance(value, nodes.Expr) and name not in {"target", "test"}:
                    setattr(node, name, self._expression(value))

    def _output(self, pieces: Sequence[nodes.Node]) -> list[nodes.Expr]:
        """Return the pieces of an output with messages in place of texts."""
        out: list[Piece] = []
        unit: list[Piece | list[Piece]] = []  # a text, with inline tags as lists
        for piece in pieces:
            if isinstance(piece, nodes.TemplateData):
                at = 0
                while at < len(piece.data):
                    at = self._read(piece.data, at, unit, out)
            elif isinstance(piece, nodes.Expr):
                if self._tag is not None:
                    self._tag.append(piece)
                else:
                    unit.append(self._expression(piece, word=True))
        out += self._text(unit)
        if self._tag is not None:
            # The tag goes on after a statement: its beginning is no part of a text.
            out += self._attributes(self._tag, is_quoted=self._is_quoted)
            self._is_quoted ^= _quotes(self._tag)
            self._tag = []
        return [nodes.TemplateData(one) if isinstance(one, str) else one for one in out]

    def _read(self, text: str, at: int, unit: list[Any], out: list[Piece]) -> int:
        """Read a tag, code or a text from ``at`` on. Returns the place behind it."""
        if self._tag is not None:
            return self._in_tag(text, at, self._tag, unit, out)
        start = text.find(f"</{self._hidden}" if self._hidden else "<", at)
        end = len(text) if start < 0 else start
        if end > at:
            (out if self._hidden and self._hidden not in INLINE else unit).append(text[at:end])
        if start >= 0:
            self._hidden = ""
            self._tag = []
        return end

    def _in_tag(
        self, text: str, at: int, tag: list[Piece], unit: list[Any], out: list[Piece]
    ) -> int:
        """Read a tag from ``at`` on. Returns the place behind it, or behind the text."""
        quoted = self._is_quoted ^ _quotes(tag)
        end = at
        while end < len(text) and (quoted or text[end] != ">"):
            quoted ^= text[end] == '"'
            end += 1
        is_over = end < len(text)
        tag.append(text[at : end + is_over])
        if not is_over:
            return end
        self._tag = None
        first = tag[0] if isinstance(tag[0], str) else ""
        named = _TAG.match(first)
        name = named[2].lower() if named else ""
        marked = self._attributes(tag, is_quoted=self._is_quoted)
        self._is_quoted = False
        if name in INLINE:
            unit.append(marked)
        else:
            out += self._text(unit)
            unit.clear()
            out += marked
        if name in UNTRANSLATED and named and not named[1]:
            self._hidden = name
        return end + 1

    def _attributes(self, tag: Sequence[Piece], *, is_quoted: bool) -> list[Piece]:
        """Return a tag with messages in its shown attributes."""
        out: list[Piece] = []
        quotes = int(is_quoted)
        value: list[Piece] | None = None
        for piece in tag:
            if not isinstance(piece, str):
                if value is None:
                    out.append(piece)
                else:
                    value.append(self._expression(piece, word=True))
                continue
            rest = piece
            while rest:
                if value is None:
                    quote = rest.find('"')
                    if quote < 0:
                        out.append(rest)
                        break
                    out.append(rest[: quote + 1])
                    quotes += 1
                    so_far = "".join(one if isinstance(one, str) else "x" for one in out)
                    name = _ATTRIBUTE.search(so_far)
                    rest = rest[quote + 1 :]
                    if quotes % 2 and name and name[1] in SHOWN:
                        value = []
                else:
                    quote = rest.find('"')
                    value.append(rest if quote < 0 else rest[:quote])
                    if quote < 0:
                        break
                    out += self._text(value)
                    value = None
                    rest = rest[quote:]
                    out.append(rest[0])
                    quotes += 1
                    rest = rest[1:]
        if value is not None:
            out += value
        return out

    def _text(self, unit: Sequence[Any]) -> list[Piece]:
        """Return a text between block elements, as messages."""
        root = _Element()
        stack = [root]
        for part in unit:
            if not isinstance(part, list):
                stack[-1].children.append(part)
                continue
            named = _TAG.match(part[0]) if isinstance(part[0], str) else None
            if named and named[1]:
                closing = "".join(one for one in part if isinstance(one, str))
                if len(stack) > 1 and stack[-1].name == named[2].lower():
                    stack.pop().closing = closing
                else:  # its beginning is before a statement
                    stack = [root]
                    root.children = [_Element(closing=closing, children=[*root.children])]
            else:
                element = _Element(named[2].lower() if named else "", list(part))
                stack[-1].children.append(element)
                stack.append(element)
        return self._of(root)

    def _of(self, element: _Element) -> list[Piece]:
        """Return an element's pieces, as messages."""
        if not element.has_text:
            inside = _flat(element)
        elif element.has_own_text:
            inside = self._message(element.children)
        else:
            inside = []
            for child in element.children:
                inside += self._of(child) if isinstance(child, _Element) else [child]
        if not element.has_text:
            return inside
        return [*element.opening, *inside, *([element.closing] if element.closing else [])]

    def _message(self, children: Sequence["Piece | _Element"]) -> list[Piece]:
        """Return one message for a text, with the spaces around it."""
        message = _Message()
        for child in children:
            message.add(child)
        bare = " ".join(message.text.split())
        before = " " if message.text[:1].isspace() else ""
        after = " " if message.text[-1:].isspace() else ""
        self._found(bare, self._line)
        return [before, _call("phrase", bare, message.places), after]

    def _expression(self, node: nodes.Expr, *, word: bool = False) -> nodes.Expr:
        """Return an expression with messages in place of its texts. ``word``: of any string."""
        match node:
            case nodes.Const():
                return self._constant(node, word=word)
            case nodes.Concat():
                return self._concatenation(node)
            case nodes.Call():
                self._arguments(node)
            case nodes.Filter() if node.name in CODE_FILTERS:
                pass
            case _:
                names, keeps_word = _PARTS.get(type(node), ((), False))
                for name in names:
                    self._part(node, name, word=word and keeps_word)
        return node

    def _part(self, node: nodes.Node, name: str, *, word: bool) -> None:
        part = getattr(node, name)
        if isinstance(part, list):
            for index, item in enumerate(part):
                part[index] = self._expression(item, word=word)
        elif part is not None:
            setattr(node, name, self._expression(part, word=word))

    def _constant(self, node: nodes.Const, *, word: bool) -> nodes.Expr:
        text = node.value
        if not isinstance(text, str) or not _WORD.search(text) or not (word or _is_text(text)):
            return node
        return self._string([text])

    def _concatenation(self, node: nodes.Concat) -> nodes.Expr:
        consts = [one.value for one in node.nodes if isinstance(one, nodes.Const)]
        if any(_is_text(str(text)) for text in consts):
            return self._string(
                [
                    one.value if isinstance(one, nodes.Const) else self._expression(one, word=True)
                    for one in node.nodes
                ]
            )
        node.nodes = [self._expression(one) for one in node.nodes]
        return node

    def _arguments(self, node: nodes.Call) -> None:
        callee = _name(node.node)
        if callee in CODE_CALLS:
            return
        node.node = self._expression(node.node)
        for index, argument in enumerate(node.args):
            if index or callee not in CODE_FIRST:
                is_word = index == 0 and callee in WORD_CALLS
                node.args[index] = self._expression(argument, word=is_word)
        for keyword in node.kwargs:
            if keyword.key not in CODE_ARGUMENTS:
                keyword.value = self._expression(keyword.value, word=keyword.key == "otherwise")

    def _string(self, parts: Sequence[Piece]) -> nodes.Expr:
        """Return a message that is no HTML, with the spaces around it."""
        message = _Message()
        for part in parts:
            message.add(part if isinstance(part, nodes.Expr) else str(part))
        text = message.text
        bare = text.strip()
        self._found(bare, self._line)
        call = _call("words", bare, message.places)
        around = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        if not any(around):
            return call
        return nodes.Concat([nodes.Const(around[0]), call, nodes.Const(around[1])])


class _Message:
    """A message while it is put together."""

    def __init__(self) -> None:
        self.text = ""
        self.places: dict[str, nodes.Expr] = {}

    def add(self, child: "Piece | _Element") -> None:
        """Append a text, a value or an element."""
        if isinstance(child, str):
            self.text += child
        elif isinstance(child, nodes.Expr):
            self._add_value(_name(child), child)
        elif child.has_text or child.is_code:
            self._add_element(child)
        else:
            values = [one for one in child.children if isinstance(one, nodes.Expr)]
            values += [one for one in _flat(child) if isinstance(one, nodes.Expr)]
            self._add_value(_name(values[0]) if values else child.name, _joined(_flat(child)))

    def _add_value(self, name: str, value: nodes.Expr) -> None:
        used, count = name, 1
        while used in self.places and self.places[used] != value:
            count += 1
            used = f"{name}{count}"
        self.places[used] = value
        self.text += f"{{{used}}}"

    def _add_element(self, element: _Element) -> None:
        tag, count = element.name, 1
        while f"<{tag}>" in self.places:
            count += 1
            tag = f"{element.name}{count}"
        if element.opening != [f"<{tag}>"]:
            self.places[f"<{tag}>"] = _joined(element.opening)
            self.places[f"</{tag}>"] = _joined([element.closing])
        self.text += f"<{tag}>"
        for child in element.children:
            self.add(child)
        self.text += f"</{tag}>"


def _quotes(pieces: Sequence[Piece]) -> bool:
    """Return whether a part of a tag opens a value, or closes one."""
    return sum(piece.count('"') for piece in pieces if isinstance(piece, str)) % 2 == 1


def _is_text(text: str) -> bool:
    return bool(_SENTENCE.search(text)) and not _CODE.search(text)


def _call(name: str, text: str, places: Mapping[str, nodes.Expr]) -> nodes.Expr:
    pairs = [nodes.Pair(nodes.Const(key), value) for key, value in places.items()]
    return nodes.Filter(nodes.Const(text), name, [nodes.Dict(pairs)], [], None, None)


def _joined(pieces: Sequence[Piece]) -> nodes.Expr:
    """Return HTML with values. One piece stands alone: Jinja folds a constant Concat to a string."""
    parts: list[nodes.Expr] = []
    for is_html, group in groupby(pieces, key=lambda piece: isinstance(piece, str)):
        if is_html:
            parts.append(nodes.TemplateData("".join(str(piece) for piece in group)))
        else:
            parts += [piece for piece in group if isinstance(piece, nodes.Expr)]
    return parts[0] if len(parts) == 1 else nodes.Concat(parts)


def _flat(element: _Element) -> list[Piece]:
    """Return an element's pieces without messages."""
    pieces: list[Piece] = [*element.opening]
    for child in element.children:
        pieces += _flat(child) if isinstance(child, _Element) else [child]
    return [*pieces, *([element.closing] if element.closing else [])]


def _name(node: nodes.Node | None) -> str:
    """Return the name of a value in a message."""
    found: str | None = None
    match node:
        case nodes.Name():
            found = node.name
        case nodes.Getattr():
            found = node.attr
        case nodes.Getitem(arg=nodes.Const(value=str() as key)) if key.isidentifier():
            found = key
        case nodes.Getitem() | nodes.Filter() | nodes.Call():
            found = _name(node.node)
        case nodes.CondExpr(test=nodes.Name() | nodes.Getattr()):
            found = _name(node.test)
        case nodes.Concat():
            fixed = nodes.TemplateData | nodes.Const
            found = next((_name(one) for one in node.nodes if not isinstance(one, fixed)), None)
        case _:
            found = None
    return found or "value"

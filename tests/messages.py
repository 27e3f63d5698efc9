"""Lists every text that a user can meet, with file and line: ``make messages``.

The texts come from the code's syntax trees, the portal's templates and its scripts. The list misses
none, and has some that no user meets. Values in a text appear as ``{expression}``.

    make messages ARGS="--group CLI"
    make messages ARGS="--draw 20 --seed 1"

``--draw`` takes random messages, docstrings and paragraphs of the documentation. A reader then
judges whether each can be understood at once.
"""

import argparse
import ast
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.crash_recovery.random_choices import SeededRandom

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = ("protocol", "keyservice", "gateway", "server", "sdk")
LOGS = "Logs at warning and above"
GROUPS = (
    ("gateway/src/pqkeep_gateway/api/errors.py", "API error table"),
    ("gateway/src/pqkeep_gateway/http/errors.py", "API error table"),
    ("gateway/src/pqkeep_gateway/portal/", "Portal"),
    ("gateway/src/pqkeep_gateway/reference/", "API reference"),
    ("gateway/", "API"),
    ("server/src/pqkeep_server/doctor.py", "pqkeepd doctor"),
    ("server/", "pqkeepd"),
    ("protocol/", "Protocol"),
    ("keyservice/", "Key service"),
    ("sdk/src/pqkeep/cli/", "CLI"),
    ("sdk/", "Client library"),
)
"""The place of a text, by the beginning of its file's path. The first match counts."""

LOG_LEVELS = frozenset({"warning", "error", "exception", "critical"})
QUIET_LOG_LEVELS = frozenset({"debug", "info"})
HELP_CALLS = frozenset({"Option", "Argument", "Typer"})
ERROR_NAME = re.compile(r"(Error|Exception|Refusal|BadParameter)$")
PROSE = re.compile(r"[a-z]{2,}[,;:]? .*[a-z]{2,}|^[A-Z][a-z]+ [a-z]+", re.DOTALL)
CODE = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|WITH|GRANT|SET) |[\w.\[\], ]+ \| \w+$"
)
"""The beginning of a database statement, and a type in quotes."""
SPACES = re.compile(r"\s+")
TEMPLATE_CODE = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`")
SCRIPT_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'`\\])//[^\n]*", re.DOTALL)
SHOWN_ATTRIBUTES = frozenset({"alt", "aria-label", "content", "label", "placeholder", "title"})
FEWEST_WORDS = 5
"""The fewest words of a drawn text: shorter ones are names and labels."""


class Text(NamedTuple):
    """A text, its place, and its use: error, help, log, text, docstring or paragraph."""

    path: str
    line: int
    use: str
    text: str

    @property
    def group(self) -> str:
        """Return where a user meets the text."""
        if self.use == "log":
            return LOGS
        return next(group for start, group in GROUPS if self.path.startswith(start))

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.use}: {self.text}"


def one_line(text: str) -> str:
    """Return a text with one space for each run of white space."""
    return SPACES.sub(" ", text).strip()


def is_prose(text: str) -> bool:
    """Return True if a text has two words or more, and is not code."""
    return PROSE.search(text) is not None and CODE.match(text) is None


# --- Code -----------------------------------------------------------------------------------


def messages_of_module(path: str, source: str) -> Iterator[Text]:
    """Yield the texts of a Python module that users can meet."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    errors = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _returns_error(node)
    }
    for line, use, text in _texts(tree, "text", frozenset(errors)):
        yield Text(path, line, use, one_line(text))
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and _is_command(path, node):
            docstring = ast.get_docstring(node)
            if docstring:
                yield Text(path, node.body[0].lineno, "help", one_line(docstring))


def _texts(node: ast.AST, use: str, errors: frozenset[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, use and text. ``errors`` has the functions of the module that make errors."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    use = _use_of(node, errors) or use
    if use == "quiet":
        return
    text = _text_of(node)
    if text is None:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child, use, errors)
        return
    assert isinstance(node, ast.expr)
    is_wanted = any(map(str.isalpha, text)) and (use in {"error", "log"} or " " in text)
    if is_prose(text) or (use != "text" and is_wanted):
        yield node.lineno, use, text
    for part in ast.walk(node):
        if isinstance(part, ast.FormattedValue):
            yield from _texts(part.value, "text", errors)


def _use_of(node: ast.AST, errors: frozenset[str]) -> str | None:
    match node:
        case ast.Raise():
            return "error"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return "error" if _returns_error(node) else None
        case ast.Call(func=ast.Attribute(attr=name)):
            if name in QUIET_LOG_LEVELS:
                return "quiet"
            return "log" if name in LOG_LEVELS else _use_of_call(name, errors)
        case ast.Call(func=ast.Name(id=name)):
            return _use_of_call(name, errors)
        case _:
            return None


def _use_of_call(name: str, errors: frozenset[str]) -> str | None:
    if name in HELP_CALLS:
        return "help"
    return "error" if ERROR_NAME.search(name) or name in errors else None


def _returns_error(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    result = function.returns
    return result is not None and ERROR_NAME.search(ast.unparse(result)) is not None


def _is_command(path: str, function: ast.FunctionDef) -> bool:
    if path.startswith("server/src/pqkeep_server/commands/"):
        return not function.name.startswith("_")
    if path.startswith(("sdk/src/pqkeep/cli/", "server/src/pqkeep_server/")):
        decorators = " ".join(map(ast.unparse, function.decorator_list))
        return "command" in decorators or "typer" in ast.unparse(function.args)
    return False


def _text_of(node: ast.AST) -> str | None:
    """Return an expression's text with values in braces, or None if it is not a text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part) or _in_braces(part) for part in parts)
        case ast.FormattedValue(value=value):
            return _in_braces(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _text_of(left), _text_of(right)
            if first is None and second is None:
                return None
            return f"{first or _in_braces(left)}{second or _in_braces(right)}"
        case _:
            return None


def _in_braces(node: ast.AST) -> str:
    return f"{{{ast.unparse(node)}}}"


def docstrings_of_module(path: str, source: str) -> Iterator[Text]:
    """Yield the docstrings of a module, its classes, functions and values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield Text(path, node.lineno, "docstring", one_line(str(node.value.value)))


# --- Templates, scripts and documents -------------------------------------------------------


class _Template(HTMLParser):
    """Collects the texts of a template. Values are there in braces."""

    def __init__(self, path: str) -> None:
        super().__init__(convert_charrefs=True)
        self.path = path
        self.texts: list[Text] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._is_script = tag in {"script", "style"}
        for name, value in attrs:
            if name in SHOWN_ATTRIBUTES and value:
                self._add(value)

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if not self._is_script:
            self._add(data)

    def _add(self, text: str) -> None:
        if any(map(str.isalpha, re.sub(r"\{.*?\}", "", text))):
            self.texts.append(Text(self.path, self.getpos()[0], "text", one_line(text)))


def messages_of_template(path: str, source: str) -> Iterator[Text]:
    """Yield the texts of a Jinja template: between tags, in attributes, and in its code."""

    def shown(match: re.Match[str]) -> str:
        newlines = "\n" * match[0].count("\n")
        if not match[0].startswith("{{"):
            return newlines
        return re.sub(r"[<>\"'\s]+", " ", match[0][1:-1]).replace("&", "and") + newlines

    parser = _Template(path)
    parser.feed(TEMPLATE_CODE.sub(shown, source))
    parser.close()
    yield from parser.texts
    for code in TEMPLATE_CODE.finditer(source):
        if not code[0].startswith("{#"):
            yield from _strings(path, source, code.start(), code.end())


def messages_of_script(path: str, source: str) -> Iterator[Text]:
    """Yield the texts of a script."""
    without = SCRIPT_COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), source)
    yield from _strings(path, without, 0, len(without))


def _strings(path: str, source: str, start: int, end: int) -> Iterator[Text]:
    for match in STRING.finditer(source, start, end):
        text = one_line(match[0][1:-1])
        if is_prose(text):
            yield Text(path, source.count("\n", 0, match.start()) + 1, "text", text)


def paragraphs_of_document(path: str, source: str) -> Iterator[Text]:
    """Yield the paragraphs and list items of a Markdown document, without code and tables."""
    without_code = re.sub(
        r"^```.*?^```",
        lambda code: "\n" * code[0].count("\n"),
        source,
        flags=re.DOTALL | re.MULTILINE,
    )
    for match in re.finditer(r"(?:^[^\n|#<\s].*\n?)+", without_code, flags=re.MULTILINE):
        line = without_code.count("\n", 0, match.start()) + 1
        yield Text(path, line, "paragraph", one_line(match[0]))


# --- The whole tree -------------------------------------------------------------------------


def sources(*patterns: str) -> Iterator[tuple[str, str]]:
    """Yield path and content of the files that match one of the patterns."""
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            yield str(path.relative_to(ROOT)), path.read_text()


def messages() -> list[Text]:
    """Return every text that a user can meet."""
    texts: list[Text] = []
    for path, source in sources(*(f"{name}/src/**/*.py" for name in DISTRIBUTIONS)):
        texts += messages_of_module(path, source)
    for path, source in sources("gateway/src/**/*.html", "gateway/src/**/*.txt"):
        texts += messages_of_template(path, source)
    for path, source in sources("gateway/src/**/*.js"):
        texts += messages_of_script(path, source)
    return texts


def docstrings() -> list[Text]:
    """Return every docstring, of programs and tests."""
    patterns = [f"{name}/**/*.py" for name in (*DISTRIBUTIONS, "tests", "benchmarks")]
    return [
        text for path, source in sources(*patterns) for text in docstrings_of_module(path, source)
    ]


def paragraphs() -> list[Text]:
    """Return the paragraphs of the documentation."""
    return [
        text
        for path, source in sources("*.md", "docs/**/*.md", "deploy/**/*.md")
        for text in paragraphs_of_document(path, source)
    ]


def draw(kinds: Sequence[Sequence[Text]], count: int, seed: int) -> Iterator[Text]:
    """Yield texts at random: first a kind, then one of its texts."""
    random = SeededRandom(f"{seed} messages")
    long = [[text for text in kind if len(text.text.split()) >= FEWEST_WORDS] for kind in kinds]
    for _ in range(count):
        yield random.one_of(random.one_of([kind for kind in long if kind]))


def main() -> None:
    """Print the list, or what was drawn."""
    parser = argparse.ArgumentParser(prog="make messages", description="Texts that users meet.")
    parser.add_argument("--group", help="only one group: its name, or the beginning of it")
    parser.add_argument("--under", default="", help="only files whose path begins so")
    parser.add_argument("--draw", type=int, help="as many random texts, docstrings and paragraphs")
    parser.add_argument("--seed", type=int, default=1, help="decides what is drawn")
    options = parser.parse_args()
    kinds = [messages(), docstrings(), paragraphs()] if options.draw else [messages()]
    kinds = [[text for text in kind if text.path.startswith(options.under)] for kind in kinds]
    if options.draw:
        for text in draw(kinds, options.draw, options.seed):
            print(text)
        return
    ordered = sorted(kinds[0], key=lambda text: (text.group, text))
    for group, texts in groupby(ordered, key=lambda text: text.group):
        if group.startswith(options.group or ""):
            print(f"\n{group}\n")
            print(*dict.fromkeys(map(str, texts)), sep="\n")


if __name__ == "__main__":
    main()

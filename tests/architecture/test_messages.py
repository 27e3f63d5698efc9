"""The list of messages has every text that users can meet."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.messages import (
    GROUPS,
    LOGS,
    ROOT,
    Text,
    docstrings_of_module,
    draw,
    messages,
    messages_of_module,
    messages_of_script,
    messages_of_template,
    one_line,
    paragraphs,
)

from pqkeep.cli import app as pqkeep
from pqkeep_server.cli import app as pqkeepd

RAISING = (
    "gateway/src/pqkeep_gateway",
    "keyservice/src/pqkeep_keyservice",
    "sdk/src/pqkeep",
    "server/src/pqkeep_server",
)


@pytest.fixture(scope="module")
def listed() -> list[Text]:
    return messages()


def raised_strings(source: str) -> Iterator[str]:
    """Yield each literal with a letter in the statements that raise an error."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Raise):
            for literal in ast.walk(statement):
                if (
                    isinstance(literal, ast.Constant)
                    and isinstance(literal.value, str)
                    and any(map(str.isalpha, literal.value))
                    and " " in literal.value
                ):
                    yield one_line(literal.value)


@pytest.mark.parametrize("folder", RAISING)
def test_every_raised_message_is_listed(folder: str, listed: list[Text]) -> None:
    """Each literal of each raised error is part of a text of its file."""
    texts: dict[str, list[str]] = {}
    for text in listed:
        texts.setdefault(text.path, []).append(text.text)
    files = {str(path.relative_to(ROOT)): path for path in (ROOT / folder).rglob("*.py")}
    raised = [
        (name, string) for name in files for string in raised_strings(files[name].read_text())
    ]
    assert len(raised) > 50
    assert [
        (name, string)
        for name, string in raised
        if not any(string in text for text in texts.get(name, []))
    ] == []


def helps(command: object) -> Iterator[str]:
    """Yield the help of a command, its parameters and its commands."""
    for shown in (command, *getattr(command, "params", ())):
        if text := getattr(shown, "help", None):
            yield one_line(text)
    for below in getattr(command, "commands", {}).values():
        yield from helps(below)


@pytest.mark.parametrize("app", [pqkeep, pqkeepd])
def test_every_help_text_is_listed(app: typer.Typer, listed: list[Text]) -> None:
    """Each text that --help of a command prints is on the list."""
    texts = {text.text for text in listed}
    patterns = [_pattern(text) for text in texts if "{" in text]
    shown = set(helps(typer.main.get_command(app)))
    assert len(shown) > 50
    assert [
        text for text in shown - texts if not any(pattern.fullmatch(text) for pattern in patterns)
    ] == []


def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"\{.*?\}", text)
    return re.compile(".*".join(map(re.escape, parts)))


@pytest.mark.parametrize(
    ("source", "use", "text"),
    [
        ("raise ValueError('too long')", "error", "too long"),
        ("raise refused('too ' 'long')", "error", "too long"),
        ("raise ValueError(f'{name} is too long')", "error", "{name} is too long"),
        ("raise ValueError('too long' if a else 'too short')", "error", "too short"),
        ("raise ValueError(name + ' is too long')", "error", "{name} is too long"),
        ("error = TooLongError('too long')", "error", "too long"),
        ("def f() -> TooLongError:\n return g('too long')", "error", "too long"),
        ("def f() -> TooLongError: ...\nh(f('long'))", "error", "long"),
        ("message = f'{name} is too long'", "text", "{name} is too long"),
        ("TABLE = {A: 'it is too long'}", "text", "it is too long"),
        ("yield f'{name} is too long'", "text", "{name} is too long"),
        ('f\'it is {"much too long" if a else ""}\'', "text", "much too long"),
        ("_LOG.warning('lost')", "log", "lost"),
        ("typer.Option(help='So long')", "help", "So long"),
    ],
)
def test_a_message_is_noticed(source: str, use: str, text: str) -> None:
    """A text is found in each form that code gives it."""
    found = [(each.use, each.text) for each in messages_of_module("a.py", source)]
    assert (use, text) in found


@pytest.mark.parametrize(
    "source",
    [
        "'''A docstring of a module.'''",
        "text = 'SELECT name FROM tenants'",
        "_LOG.info('an event of no concern')",
        "name = 'identifier'",
    ],
)
def test_what_users_do_not_meet_is_left_out(source: str) -> None:
    """Docstrings, statements, quiet log lines and names are not on the list."""
    assert list(messages_of_module("a.py", source)) == []


def test_the_texts_of_templates_are_noticed() -> None:
    """Text between tags, in attributes and in a template's code is on the list, with its line."""
    source = '<p title="Go on">Hello {{ name }}</p>\n{# not this #}\n{{ field("Your password") }}\n'
    found = {(each.line, each.text) for each in messages_of_template("a.html", source)}
    assert {(1, "Go on"), (1, "Hello { name }"), (3, "Your password")} <= found
    assert not any("not this" in text for _, text in found)


def test_the_texts_of_scripts_are_noticed() -> None:
    """A script's texts are on the list, its comments are not."""
    source = 'show("It was sent"); // it was not\nshow(`It has ${count} rows`);\n'
    found = [(each.line, each.text) for each in messages_of_script("a.js", source)]
    assert found == [(1, "It was sent"), (2, "It has ${count} rows")]


def test_a_seed_decides_what_is_drawn(listed: list[Text]) -> None:
    """The same seed draws the same texts, another seed draws others, and each kind occurs."""
    this = Path(__file__)
    kinds = [listed, list(docstrings_of_module(this.name, this.read_text())), paragraphs()]
    first = list(draw(kinds, 30, 1))
    assert first == list(draw(kinds, 30, 1)) != list(draw(kinds, 30, 2))
    assert {"docstring", "paragraph"} < {text.use for text in first}


def test_every_place_has_texts(listed: list[Text]) -> None:
    """Each group of the list has texts: no group's path is out of date."""
    groups = {text.group for text in listed}
    assert groups == {LOGS, *(group for _, group in GROUPS)}

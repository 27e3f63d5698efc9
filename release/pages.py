"""Manual pages and shell completion of the commands, from their help texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer._completion_shared import get_completion_script

SHELLS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "zsh": "usr/share/zsh/vendor-completions/_{}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}
"""The file of each shell's completion in a Debian system."""


def completion(program: str, shell: str) -> str:
    """Return a shell's script that asks the program for completions."""
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    script = get_completion_script(prog_name=program, complete_var=variable, shell=shell) + "\n"
    if shell == "zsh":  # zsh loads the file at the first completion, which it has to answer, too
        script += f'_{program.replace("-", "_")}_completion "$@"\n'
    return script


def manual_page(command: Any, program: str, section: int, version: str, date: str) -> str:
    """Return a page in roff of a Typer command with all of its commands."""
    context = command.make_context(program, [], resilient_parsing=True)
    first = command.help.strip().split("\n")[0].removeprefix("pqkeep: ")
    parts = [
        f'.TH {program.upper()} {section} "{date}" "pqkeep {version}" "pqkeep"',
        ".ad l",
        ".SH NAME",
        f"{_text(program)} \\- {_text(first[:1].lower() + first[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(program)}",
        _text(" ".join(command.collect_usage_pieces(context))),
        *_described(command, context, ".SH DESCRIPTION", ".SH OPTIONS"),
    ]
    commands = list(_commands(command, program))
    if commands:
        parts.append(".SH COMMANDS")
    for name, child in commands:
        child_context = child.make_context(name, [], resilient_parsing=True)
        pieces = " ".join(child.collect_usage_pieces(child_context))
        parts += [f'.SS "{_text(f"{name} {pieces}")}"', *_described(child, child_context, "", "")]
    parts += [
        ".SH SEE ALSO",
        f"The documentation of pqkeep {version}, in the folder docs of its source.",
        "",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def plain_page(program: str, section: int, purpose: str, text: str, version: str, date: str) -> str:
    """Return a page in roff of a program without options."""
    return "\n".join(
        [
            f'.TH {program.upper()} {section} "{date}" "pqkeep {version}" "pqkeep"',
            ".SH NAME",
            f"{_text(program)} \\- {_text(purpose)}",
            ".SH DESCRIPTION",
            _text(text),
            "",
        ]
    )


def _commands(command: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if getattr(child, "hidden", False):
            continue
        words = f"{prefix} {name}"
        if hasattr(child, "commands"):
            yield from _commands(child, words)
        else:
            yield words, child


def _described(command: Any, context: Any, description: str, options: str) -> Iterator[str]:
    yield description
    for index, paragraph in enumerate(re.split(r"\n\s*\n", (command.help or "").strip())):
        if index:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))
    records = [parameter.get_help_record(context) for parameter in command.params]
    shown = [record for record in records if record is not None]
    if shown:
        yield options
    for names, text in shown:
        yield ".TP"
        yield f".B {_text(names)}"
        yield _text(" ".join((text or "").split())) or "\\&"


def _text(text: str) -> str:
    """Return text that roff prints as it is, on a terminal with ASCII alone too."""
    plain = text.replace("…", "...")
    escaped = (
        plain.replace("\\", "\\e").replace("-", "\\-").replace("|", "|\\:").replace('"', "\\(dq")
    )
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped

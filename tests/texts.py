"""Writes the catalogues of the portal and of mails from their texts: ``make texts``.

The texts of templates, modules, code and mails are message ids. This program finds them. It keeps
the translations in ``de.po``, adds new texts as untranslated, drops old texts, and compiles
``de.mo``. ``tests/portal/test_languages.py`` compares its result with the committed files.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import jinja2
from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from jinja2 import nodes

from pqkeep_gateway import outgoing_mail
from pqkeep_gateway.access.callers import OperatorRole, Role
from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.api.audit_data import RecordData
from pqkeep_gateway.api.inventory import NOT_SEEN
from pqkeep_gateway.api.rules import PROFILES
from pqkeep_gateway.api.search import FoundKind
from pqkeep_gateway.languages import CODE, ENGLISH, LANGUAGES, PLACE, PROBLEM, SCRIPT
from pqkeep_gateway.people.invitations import OPERATOR
from pqkeep_gateway.portal import charts, phrases
from pqkeep_gateway.portal.outcomes import OUTCOME_WORDS
from pqkeep_gateway.portal.views import api_keys
from pqkeep_protocol.keys import KeyStatus

ROOT = Path(__file__).parents[1]
GATEWAY = ROOT / "gateway/src/pqkeep_gateway"
TEMPLATES = GATEWAY / "portal/templates"
MODULES = GATEWAY / "portal/static"
FILES = (
    *("portal/app.py", "portal/lists.py", "portal/charts.py", "portal/rendering.py"),
    *("portal/views/*.py", "notices.py", "management/installation.py"),
    *("management/installation_notices.py", "people/sessions.py", "tenancy/notice_rules.py"),
)
"""Files with texts of pages, below the gateway's folder."""
ERRORS = ("api/errors.py", "http/errors.py")
"""Files with messages of the API in tables."""
RAISING = (
    *("api/*.py", "access/*.py", "http/field.py", "http/pipeline.py", "people/pass*.py"),
    "tenancy/external_keys.py",
)
"""Files with messages of the API in calls."""
RAISES = re.compile(
    r"(^(invalid|forbidden|not_found|unavailable|too_many|ApiError|FieldError|naming)"
    r"|(Error|Invalid))$"
)
"""Functions and exceptions that take a message."""
WORDS = re.compile(r"[^\W\d_]{2,}")
PROSE = re.compile(
    r"^a \w|^\d+ [a-z]|[a-z]{2,}.* |^[A-Z][a-z]+$|^[A-Z][a-z]+ |^[A-Z][a-z]+.*: |^ \w{2}", re.DOTALL
)
CODE_TEXT = re.compile(
    r"^[\w-]+:\S|^[A-Z][\w-]+-[A-Z]|^(Mozilla|attachment;|default-src|text/|camera)|^/|;\s?charset"
    r"|^Query$|^Position$|^Vary$|^Edg$|^\{minutes\} min|^\{hours\} h|^\{seconds\} s|^<span|^unknown page"
    r"|^\{\w+\}(/|\{)|^render;|^\{name\}\.|^\w+/\{|^ERR_|^\{UTC\}"
    r"|^\(\?P<|^\\d|^\{visit\}"
    r"|^[{}\s\W]*$|^\d+\.[\d./]+ |^\w+ (failed|without a frame)|^operation:|^- \{|^\{name\} is not a GET"
)
"""Texts of code that no person reads."""
NOUNS = frozenset({"many", "noun", "_many"})
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
SCRIPT_TEXT = re.compile(r"\bt`((?:[^`\\]|\\.)*)`")
SCRIPT_NOUN = re.compile(r"\bmany\([^;\n]*?, \"(\w+)\"\)")
SCRIPT_VALUE = re.compile(r"\$\{(?:[^{}]|\{[^}]*\})*\}")
TABLES: tuple[tuple[str, Iterable[str]], ...] = (
    ("outcomes.py", tuple(OUTCOME_WORDS.values())),
    ("callers.py", tuple(role.value for role in (*Role, *OperatorRole))),
    ("keys.py", tuple(status.value for status in KeyStatus)),
    ("entitlements.py", tuple(tier.value.replace("_", " ") for tier in Tier)),
    ("search.py", tuple(kind.value for kind in FoundKind)),
    ("charts.py", charts.MONTHS),
    ("views/audit.py", ("address", "key")),
    ("views/api_keys.py", tuple(api_keys.WORDS.values())),
    ("inventory.py", NOT_SEEN),
    ("rules.py", tuple(text for text, _ in PROFILES.values())),
    ("audit_data.py", tuple(name.replace("_", " ") for name in RecordData.__struct_fields__)),
    (
        "search.py",
        ("page", "action", "phone", "passkey", "everything", "none", "unlimited", "default"),
    ),
    (
        "statuses",
        (
            *("revoked", "suspended", "deleting", "deleted", "must enroll", "expired", "paid"),
            *("open", "void", "past due", "canceled", "cancelled", "trialing", "unpaid", "ended"),
            *("waiting", "executing", "executed", "failed", "refused", "interrupted", "withdrawn"),
            *("denies", "warns", "announced", "pending", "delivered", "disabled", "enabled"),
            *("running", "closed", "inactive", "sent", "given up", "incomplete"),
        ),
    ),
)
"""Words of tables that pages show."""
HEADER = """Translations of pqkeep's portal.

The terms are those of German security people:
API key: API-Schlüssel · approval: Freigabe · archive: archivieren · audit log: Audit-Log
campaign: Kampagne · canary: Probelauf · checkpoint: Prüfpunkt · credential: Zugangsschlüssel
evidence: Nachweis · fingerprint: Fingerabdruck · gateway: Gateway · key: Schlüssel
key service: Schlüsseldienst · keyring: Schlüsselbund · key version: Schlüsselversion
member: Mitglied · migration: Migration · notice: Hinweis · operator: Betreiber · owner: Inhaber
passkey: Passkey · plan: Tarif · principal: Akteur · private key: privater Schlüssel
quota: Kontingent · rate limit: Anfragelimit · recovery code: Wiederherstellungscode
refuse: ablehnen · retire: zurückziehen · revoke: widerrufen · rotate: rotieren · rule: Regel
scope: Berechtigung · second factor: zweiter Faktor · session: Sitzung · shard: Shard
signature: Signatur · step-up: Bestätigung · tenant: Mandant · use: Verwendung
webhook: Webhook · witness: Zeuge

The person is addressed as "Sie". Values in braces and elements in angle brackets stay as they are.
"""


class Text(NamedTuple):
    """A text in the source."""

    place: str
    line: int
    text: str
    context: str = ""
    plural: str = ""


def of_templates() -> Iterator[Text]:
    """Yield the messages of the templates, as the portal finds them."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=True)
    for path in sorted(TEMPLATES.rglob("*.html")):
        place = str(path.relative_to(GATEWAY))
        tree = environment.parse(path.read_text())
        for node in tree.find_all(nodes.Filter):
            if node.name in NOUNS and isinstance(node.args[0], nodes.Const):
                noun = node.args[0].value
                yield Text(place, node.lineno, noun, plural=f"{noun}s")
        found: list[Text] = []
        phrases.mark(tree, lambda text, line: found.append(Text(place, line, text)))  # noqa: B023
        yield from found


def of_modules() -> Iterator[Text]:
    """Yield the texts of the portal's modules."""
    for path in sorted(MODULES.glob("*.js")):
        source = path.read_text()
        for found in SCRIPT_TEXT.finditer(source):
            numbers = iter(range(99))
            text = SCRIPT_VALUE.sub(lambda _: f"{{{next(numbers)}}}", found[1])  # noqa: B023
            line = source.count("\n", 0, found.start()) + 1
            yield Text(f"portal/static/{path.name}", line, text, SCRIPT)
        for found in SCRIPT_NOUN.finditer(source):
            line = source.count("\n", 0, found.start()) + 1
            for form in (found[1], f"{found[1]}s"):
                yield Text(f"portal/static/{path.name}", line, form, SCRIPT)


def of_code() -> Iterator[Text]:  # noqa: C901 - one loop over each kind of node
    """Yield the texts of the portal's code, and the words of its tables."""
    for path in _files(FILES):
        place, tree = str(path.relative_to(GATEWAY)), ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in {*NOUNS, "_counted", "ngettext"}:
                yield from _nouns(place, node)
            if not (isinstance(node, ast.keyword) and node.arg == "noun"):
                continue
            if isinstance(node.value, ast.Constant):
                noun = str(node.value.value)
                yield Text(place, node.value.lineno, noun, plural=f"{noun}s")
        for name in ("_AGO", "_AHEAD"):
            if place.endswith("rendering.py"):
                yield from _pairs(place, tree, name)
        for line, text in texts_of(tree):
            if _is_shown(text) and "{count}" not in (
                text if place.endswith("rendering.py") else ""
            ):
                yield Text(place, line, text, CODE if PLACE.search(text) else "")
    for place, words in TABLES:
        yield from (Text(place, 1, word) for word in words)


def of_errors() -> Iterator[Text]:
    """Yield the messages of the API's errors."""
    for path in _files(ERRORS):
        place, tree = str(path.relative_to(GATEWAY)), ast.parse(path.read_text())
        for line, text in texts_of(tree):
            if " " in text and WORDS.search(text) and not CODE_TEXT.search(text):
                yield Text(place, line, text, PROBLEM)
    for path in _files(RAISING):
        place, tree = str(path.relative_to(GATEWAY)), ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and RAISES.search(_name(node.func)):
                for argument in node.args:
                    for line, text in texts_of(argument):
                        if " " in text and len(WORDS.findall(PLACE.sub("", text))) > 1:
                            yield Text(place, line, text, PROBLEM)


def of_mails() -> Iterator[Text]:
    """Yield the texts of mails, and the summaries of requests for approval."""
    place = "outgoing_mail.py"
    for template in outgoing_mail.TEMPLATES.values():
        if template.subject:
            yield Text(place, 1, template.subject)
            yield from (Text(place, 1, part) for part in template.parts)
    for words in (*outgoing_mail.ROLES.values(), OPERATOR):
        yield Text(place, 1, words)
    for path in _files((place, "api/*.py")):
        place, tree = str(path.relative_to(GATEWAY)), ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and node.name.startswith(("of_", "subject_of")):
                for line, text in texts_of(node):
                    if " " in text and not CODE_TEXT.search(text):
                        yield Text(place, line, text, CODE if PLACE.search(text) else "")
            if isinstance(node, ast.Assign) and _name(node.targets[0]) == "_NO_LONGER":
                yield from (Text(place, line, text) for line, text in texts_of(node.value))


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each string, without docstrings. Values stand in it as ``{name}``."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            skipped.add(id(node.format_spec))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, _joined(node)


def _joined(node: ast.JoinedStr) -> str:
    text, used = "", set[str]()
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        first = name = _name(part)
        count = 1
        while name in used:
            count += 1
            name = f"{first}{count}"
        used.add(name)
        text += f"{{{name}}}"
    return text


def _name(node: ast.AST) -> str:
    """Return the name of a value in a message, or of a function."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Subscript() | ast.FormattedValue():
            return _name(node.value)
        case ast.Call():
            return next((name for arg in node.args if (name := _name(arg)) != "value"), "value")
        case _:
            return "value"


def _nouns(place: str, node: ast.Call) -> Iterator[Text]:
    for argument in node.args[1:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield Text(place, node.lineno, argument.value, plural=f"{argument.value}s")


def _pairs(place: str, tree: ast.AST, table: str) -> Iterator[Text]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and _name(node.targets[0]) == table):
            continue
        if isinstance(node.value, ast.Dict):
            for value in node.value.values:
                one, several = ast.literal_eval(value)
                yield Text(place, value.lineno, one, plural=several)


def _is_shown(text: str) -> bool:
    without_values = PLACE.sub("", text)
    is_text = PROSE.search(text) if without_values == text else WORDS.search(without_values)
    return bool(is_text) and not CODE_TEXT.search(text)


def _files(patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(GATEWAY.glob(pattern))


SOURCES: tuple[Callable[[], Iterator[Text]], ...] = (
    of_templates,
    of_modules,
    of_code,
    of_errors,
    of_mails,
)


@cache
def texts() -> tuple[Text, ...]:
    """Return all texts."""
    return tuple(text for source in SOURCES for text in source())


def catalogue(language: str) -> Catalog:
    """Return the catalogue of a language: all texts, with the translations of its file."""
    old = read(language)
    new = Catalog(locale=language, charset="utf-8", project="pqkeep")
    plurals = {text.text: text.plural for text in texts() if text.plural}
    forms = set(plurals.values())
    for text in texts():
        is_plural = not text.context and text.text in plurals
        # A title, such as "API keys", is a text of its own.
        if not text.context and not is_plural and text.text in forms and text.text.islower():
            continue
        known = old.get(text.text, text.context or None)
        new.add(
            (text.text, plurals[text.text]) if is_plural else text.text,
            known.string if known else None,
            locations=[(text.place, 1)],
            context=text.context or None,
        )
    return new


def read(language: str) -> Catalog:
    """Return the catalogue in a language's file."""
    path = GATEWAY / f"{language}.po"
    if not path.exists():
        return Catalog(locale=language)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def po_of(new: Catalog) -> bytes:
    """Return a catalogue as a file that people edit."""
    file = BytesIO()
    header = "".join(f"# {line}".rstrip() + "\n" for line in HEADER.splitlines())
    write_po(file, new, width=100, include_lineno=False, omit_header=True, sort_output=False)
    plural_forms = f'"Plural-Forms: {new.plural_forms}\\n"\n'
    meta = f'msgid ""\nmsgstr ""\n"Language: {new.locale}\\n"\n' + plural_forms
    meta += '"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    return header.encode() + meta.encode() + file.getvalue()


def mo_of(po: bytes, language: str) -> bytes:
    """Return a catalogue in the form that programs read. Equal catalogues have equal bytes."""
    file = BytesIO()
    parsed = read_po(BytesIO(po), locale=language)
    parsed.creation_date = parsed.revision_date = datetime(2026, 1, 1, tzinfo=UTC)
    write_mo(file, parsed)
    return file.getvalue()


def main() -> int:
    """Write all catalogues. Returns 1 if a text has no translation."""
    missing = 0
    for language in LANGUAGES:
        if language == ENGLISH:
            continue
        new = catalogue(language)
        po = po_of(new)
        (GATEWAY / f"{language}.po").write_bytes(po)
        (GATEWAY / f"{language}.mo").write_bytes(mo_of(po, language))
        for message in new:
            if message.id and not all(
                message.string if isinstance(message.string, tuple) else (message.string,)
            ):
                missing += 1
                print(f"{language}: no translation: {message.id!r}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

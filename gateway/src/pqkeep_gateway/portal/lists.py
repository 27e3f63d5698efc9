"""Lists: typed filters in one text field, sorting, position, pages and export.

A page describes its list once as a ``ListKind``. ``Query.of`` reads the page's address, and gives the
API's parameters or the error of one token. The macros of ``lists.html`` show the list. Nothing here
knows what is listed.
"""

import csv
import io
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlencode

import msgspec

from pqkeep_gateway.http.errors import invalid
from pqkeep_gateway.languages import said

ROWS = 50
"""Rows on one page."""
MAX_TEXT = 500
"""Characters of a filter."""
MAX_EXPORTED = 10_000
"""Rows of one export."""
EXPORT_PAGE = 1_000
"""Rows that an export reads in one request."""
MAX_SHOWN = 40
"""Characters of a token that an error repeats."""
_MAX_POSITION_DIGITS = 9
_CUTOFF = 0.6
_TOKEN = re.compile(
    r"\s*(?P<token>(?P<minus>-(?=\S))?(?:(?P<name>[A-Za-z][A-Za-z0-9-]*):)?"
    r'(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s"]\S*)|(?P<open>".*)|(?<=:)(?=\s|$)))'
)
_AGE = re.compile(r"(?P<sign>[<>]?)(?P<count>[0-9]{1,4})(?P<unit>[hdwmy])", re.ASCII).fullmatch
_UNITS = {
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "m": timedelta(days=30),
    "y": timedelta(days=365),
}
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n])")
"""The places in a cell before what a spreadsheet would compute. Where a comma separates decimals,
it also begins a cell after a semicolon. Full-width signs count too."""


class InvalidFilterError(Exception):
    """A value of a filter is invalid. The message is a clause that follows the token."""


Parameters = Mapping[str, object]
"""Parameters of the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One typed filter: ``name:value``."""

    name: str
    about: str
    """The suggestion's text: a few words."""
    read: Callable[[Sequence[tuple[str, bool]], datetime], Parameters]
    """Converts all values of this filter in a query. The flag is True for ``-name:value``.

    Raises InvalidFilterError."""
    values: tuple[str, ...] = ()
    """The values to suggest."""
    source: str = ""
    """The address of the API that suggests values for the typed beginning, which is appended."""
    pick: str = ""
    """The path of the values in that response, such as ``keyrings.name``."""
    repeats: bool = False
    """Whether a query may have it several times."""

    def values_of(self, given: Sequence[tuple[str, bool]], now: datetime) -> Parameters:
        """Return the API's parameters for all values. Raises InvalidFilterError."""
        if len(given) > 1 and not self.repeats:
            raise InvalidFilterError("occurs twice: keep one")
        return self.read(given, now)


def choice(
    name: str,
    about: str,
    parameter: str,
    values: Sequence[str],
    aliases: Mapping[str, str] | None = None,
) -> Filter:
    """Return a filter with a closed list of values.

    Several values match any of them, and ``-name:value`` matches the others. The parameter is a
    list of values, separated by commas.
    """
    known = {text.casefold(): text for text in values}
    known |= {text.casefold(): value for text, value in (aliases or {}).items()}

    def read(given: Sequence[tuple[str, bool]], _: datetime) -> Parameters:
        wanted, unwanted = set[str](), set[str]()
        for text, is_not in given:
            value = known.get(text.casefold())
            if value is None:
                raise InvalidFilterError(_no_choice(text, list(values), known))
            (unwanted if is_not else wanted).add(value)
        left = [value for value in values if value in (wanted or known.values())]
        left = [value for value in left if value not in unwanted]
        if not left:
            raise InvalidFilterError("leaves nothing: no value matches all of these")
        return {parameter: ",".join(left)}

    return Filter(name=name, about=about, read=read, values=tuple(values), repeats=True)


def text(
    name: str,
    about: str,
    parameter: str,
    *,
    without: str = "",
    source: str = "",
    pick: str = "",
    values: Sequence[str] = (),
) -> Filter:
    """Return a filter of any text. ``without``: the parameter of ``-name:value``, if there is one."""

    def read(given: Sequence[tuple[str, bool]], _: datetime) -> Parameters:
        parameters: dict[str, object] = {}
        for value, is_not in given:
            if not value:
                raise InvalidFilterError("needs a value after the colon")
            if is_not and not without:
                raise InvalidFilterError("cannot be excluded: remove the “-”")
            if (used := without if is_not else parameter) in parameters:
                raise InvalidFilterError("occurs twice: keep one")
            parameters[used] = value
        return parameters

    return Filter(
        name=name,
        about=about,
        read=read,
        values=tuple(values),
        source=source,
        pick=pick,
        repeats=bool(without),
    )


def age(name: str, about: str, *, older: str, younger: str) -> Filter:
    """Return a filter of an age: ``>1y`` and ``1y`` mean older than a year, ``<30d`` younger.

    ``older`` is the parameter of the time before which it must be, ``younger`` of the time after.
    """

    def read(given: Sequence[tuple[str, bool]], now: datetime) -> Parameters:
        parameters: dict[str, object] = {}
        for value, is_not in given:
            sign, length = _length(value)
            is_older = (sign != "<") is not is_not
            if (used := older if is_older else younger) in parameters:
                raise InvalidFilterError("occurs twice: keep one")
            parameters[used] = _time(now - length)
        return parameters

    return Filter(
        name=name, about=about, read=read, values=(">90d", ">1y", "<30d", "<12h"), repeats=True
    )


def within(
    name: str, about: str, parameter: str, *, values: Sequence[str] = ("7d", "30d", "90d", "1y")
) -> Filter:
    """Return a filter of a past period up to now: ``30d`` gives the time 30 days ago."""
    return _period(name, about, parameter, values, -1)


def upcoming(
    name: str, about: str, parameter: str, *, values: Sequence[str] = ("7d", "30d", "90d")
) -> Filter:
    """Return a filter of a future period from now: ``30d`` gives the time in 30 days."""
    return _period(name, about, parameter, values, 1)


def _period(name: str, about: str, parameter: str, values: Sequence[str], way: int) -> Filter:
    def read(given: Sequence[tuple[str, bool]], now: datetime) -> Parameters:
        ((value, is_not),) = given
        sign, length = _length(value)
        if is_not:
            raise InvalidFilterError("cannot be excluded: remove the “-”")
        if sign == ">":
            raise InvalidFilterError("is a period up to now: write it as 30d")
        return {parameter: _time(now + way * length)}

    return Filter(name=name, about=about, read=read, values=tuple(values))


def flags(name: str, about: str, parameters: Mapping[str, str]) -> Filter:
    """Return a filter of yes and no, such as ``is:imported``: the parameter of each value.

    ``-is:imported`` gives false.
    """
    known = {value.casefold(): value for value in parameters}

    def read(given: Sequence[tuple[str, bool]], _: datetime) -> Parameters:
        found: dict[str, object] = {}
        for text_, is_not in given:
            value = known.get(text_.casefold())
            if value is None:
                raise InvalidFilterError(_no_choice(text_, list(parameters), known))
            found[parameters[value]] = not is_not
        return found

    return Filter(name=name, about=about, read=read, values=tuple(parameters), repeats=True)


def yes_or_no(name: str, about: str, parameter: str) -> Filter:
    """Return a filter with the values ``yes`` and ``no`` of one parameter."""

    def read(given: Sequence[tuple[str, bool]], _: datetime) -> Parameters:
        ((value, is_not),) = given
        if value.casefold() not in {"yes", "no"}:
            raise InvalidFilterError("must be yes or no")
        return {parameter: (value.casefold() == "yes") is not is_not}

    return Filter(name=name, about=about, read=read, values=("yes", "no"))


def _no_choice(text_: str, values: Sequence[str], known: Mapping[str, str]) -> str:
    message = f"must be one of {', '.join(values)}"
    close = get_close_matches(text_.casefold(), known, n=1, cutoff=_CUTOFF)
    return f"{message}. Did you mean “{known[close[0]]}”?" if close else message


def _length(value: str) -> tuple[str, timedelta]:
    """Return the sign and the length of an age. Raises InvalidFilterError."""
    found = _AGE(value)
    if found is None:
        raise InvalidFilterError("must be a time such as 12h, 90d, 6m, 1y or >1y")
    length = int(found["count"]) * _UNITS[found["unit"]]
    if length > timedelta(days=36_500):
        raise InvalidFilterError("must be at most 100 years")
    return found["sign"], length


def _time(at: datetime) -> str:
    """Return a time for the API. It is never before 1970."""
    return max(at, datetime(1970, 1, 1, tzinfo=UTC)).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListKind:
    """The description of one list: its filters, and the columns that sort."""

    path: str
    """The page's path, below the portal's root."""
    filters: tuple[Filter, ...]
    sorts: tuple[str, ...]
    """The API's values of ``sort``. The first is the default, ascending."""
    words: str
    """The parameter for free words. Empty: the list has none."""
    noun: str
    """One row: ``key``."""
    keeps: tuple[str, ...] = ()
    """Other parameters of the page's address, which its links keep."""
    examples: tuple[str, ...] = ()
    """Filters that the help shows."""

    def by_name(self) -> Mapping[str, Filter]:
        """Return the filters by name."""
        return {row.name: row for row in self.filters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The query of one visit: the parameters for the API, or an error."""

    kind: ListKind
    text: str
    sort: str
    """A column of the kind, with a leading ``-`` for descending."""
    offset: int
    parameters: Parameters = field(default_factory=dict)
    error: str = ""
    """The error in a token, and its correction. If set, the list is not read."""
    kept: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: ListKind, query: Mapping[str, str], now: datetime | None = None) -> "Query":
        """Return the query in a page's address: ``q``, ``sort`` and ``from`` (from 1)."""
        typed = query.get("q", "").strip()
        sort = query.get("sort", "") or kind.sorts[0]
        first = query.get("from", "")
        is_number = first.isascii() and first.isdigit() and len(first) <= _MAX_POSITION_DIGITS
        kept = {name: query[name] for name in kind.keeps if query.get(name)}
        parameters: Parameters = {}
        error = ""
        try:
            parameters = parsed(kind, typed, now or datetime.now(UTC))
        except InvalidFilterError as invalid:
            error = str(invalid)
        if sort.removeprefix("-") not in kind.sorts:
            error = f"sort must be one of {', '.join(kind.sorts)}, or one of them after “-”."
            sort = kind.sorts[0]
        return cls(
            kind=kind,
            text=typed[:MAX_TEXT],
            sort=sort,
            offset=max(int(first), 1) - 1 if is_number else 0,
            parameters=parameters,
            error=error,
            kept=kept,
        )

    @property
    def is_filtered(self) -> bool:
        """Whether the list shows only some rows."""
        return bool(self.text)

    def request(self, limit: int = ROWS, offset: int | None = None) -> Parameters:
        """Return the parameters of the API for one page."""
        return {
            **self.parameters,
            "sort": self.sort,
            "offset": self.offset if offset is None else offset,
            "limit": limit,
        }

    def address(self, **changes: object) -> str:
        """Return the page's query for a link, with some parts changed. Defaults are left out."""
        parts = {"q": self.text, "sort": self.sort, "from": self.offset + 1, **changes}
        if parts["sort"] == self.kind.sorts[0]:
            del parts["sort"]
        if parts["from"] == 1:
            del parts["from"]
        named = {**self.kept, **{name: value for name, value in parts.items() if value}}
        return f"?{urlencode(named)}"

    def sorted_by(self, column: str) -> str:
        """Return the link that sorts by a column; a second time, the other way round."""
        new = f"-{column}" if self.sort == column else column
        return self.address(**{"sort": new, "from": 1})

    def direction(self, column: str) -> str:
        """Return the value of ``aria-sort`` for a column; empty if another column sorts."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "")

    def narrowed(self, token: str) -> str:
        """Return the link with one more filter."""
        return self.address(**{"q": f"{self.text} {token}".strip(), "from": 1})

    def page(self, shown: int, total: int) -> "Position":
        """Return the position of a page of ``shown`` rows among ``total``."""
        first = self.offset + 1 if shown else 0
        last = self.offset + shown
        before = max(self.offset - ROWS, 0) if shown else max((total - 1) // ROWS * ROWS, 0)
        return Position(
            first=first,
            last=last,
            total=total,
            previous=self.address(**{"from": before + 1}) if self.offset and total else "",
            next=self.address(**{"from": last + 1}) if shown and last < total else "",
        )

    def suggestions(self) -> Sequence[Mapping[str, object]]:
        """Return the filters, for the field's suggestions."""
        return [
            {
                "name": row.name,
                "about": said(row.about),
                **({"values": row.values} if row.values else {}),
                **({"source": row.source, "pick": row.pick} if row.source else {}),
            }
            for row in self.kind.filters
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a page in its list, and its neighbours' addresses."""

    first: int
    last: int
    total: int
    previous: str
    next: str


def quoted(value: str) -> str:
    """Return a value for a filter, in quotes if it needs them."""
    return f'"{value}"' if re.search(r"\s", value) else value


def parsed(kind: ListKind, typed: str, now: datetime) -> Parameters:
    """Return the API's parameters for a typed filter. Raises InvalidFilterError with its token."""
    if len(typed) > MAX_TEXT:
        raise InvalidFilterError(f"The filter is longer than {MAX_TEXT} characters. Shorten it.")
    if not typed.isprintable():
        raise InvalidFilterError("The filter has characters that cannot be printed. Remove them.")
    given: dict[str, list[tuple[str, bool]]] = {}
    tokens: dict[str, str] = {}
    words: list[str] = []
    for token, name, value, is_not in _tokens(typed):
        shown = token if len(token) <= MAX_SHOWN else f"{token[:MAX_SHOWN]}…"
        if name:
            row = _filter_of(kind, name, shown)
            given.setdefault(row.name, []).append((value, is_not))
            tokens[row.name] = shown
        elif is_not or not kind.words:
            raise InvalidFilterError(_no_word(shown, kind, is_not=is_not))
        else:
            words.append(value)
    parameters: dict[str, object] = {kind.words: " ".join(words)} if words else {}
    for name, values in given.items():
        try:
            parameters |= kind.by_name()[name].values_of(values, now)
        except InvalidFilterError as invalid:
            problem = said(str(invalid))
            end = "" if problem.endswith("?") else "."
            raise InvalidFilterError(f"“{tokens[name]}”: {name} {problem}{end}") from None
    return parameters


def _tokens(typed: str) -> Iterator[tuple[str, str, str, bool]]:
    """Yield each token with its filter's name, its value, and True if the filter excludes."""
    place = 0
    while place < len(typed):
        found = _TOKEN.match(typed, place)
        if found is None:
            return  # only spaces are left
        if found["open"] is not None:
            shown = found["token"][:MAX_SHOWN]
            raise InvalidFilterError(f"“{shown}” has no closing quotation mark. Add one.")
        place = found.end()
        quoted_ = found["quoted"]
        value = quoted_ if quoted_ is not None else found["plain"] or ""
        yield found["token"], found["name"] or "", value, bool(found["minus"])


def _filter_of(kind: ListKind, name: str, shown: str) -> Filter:
    """Return a filter by its name. Raises InvalidFilterError, with the nearest name."""
    filters = kind.by_name()
    if (found := filters.get(name.casefold())) is not None:
        return found
    close = get_close_matches(name.casefold(), filters, n=1, cutoff=_CUTOFF)
    hint = f" Did you mean “{close[0]}:”?" if close else ""
    raise InvalidFilterError(
        f"“{shown}” is not a filter.{hint} The filters are: {', '.join(filters)}."
        " To find the text itself, put it in quotation marks."
    )


def _no_word(shown: str, kind: ListKind, *, is_not: bool) -> str:
    names = ", ".join(row.name for row in kind.filters)
    if is_not:
        return f"“{shown}”: only filters can be excluded, such as -{kind.filters[0].name}:value."
    return f"“{shown}” is not a filter. The filters are: {names}."


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Return rows as CSV (RFC 4180), with a header.

    What a spreadsheet would compute as a formula gets a leading apostrophe.
    """
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return written.getvalue().encode()


def _cell(value: object) -> object:
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The rows of a filtered list, to download."""

    name: str
    """The file's name without its ending."""
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    total: int
    """The rows that match. An export has the first MAX_EXPORTED of them."""

    def file(self, form: str) -> tuple[str, str, bytes]:
        """Return the file's name, type and content. ``form`` is ``csv`` or ``json``."""
        if form == "csv":
            return f"{self.name}.csv", "text/csv; charset=utf-8", as_csv(self.columns, self.rows)
        document: dict[str, Any] = {
            "total": self.total,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }
        return f"{self.name}.json", "application/json", msgspec.json.encode(document)


async def exported(
    query: Query,
    read: Callable[[int, int], Awaitable[tuple[Sequence[Any], int]]],
    name: str,
    columns: tuple[str, ...],
) -> Export:
    """Return the rows that match a query. Raises ApiError.

    ``read`` takes an offset and a limit, and returns rows and their total.
    """
    if query.error:
        raise invalid(query.error, "q")
    rows: list[list[object]] = []
    total = 1
    while len(rows) < min(total, MAX_EXPORTED):
        shown, total = await read(len(rows), min(EXPORT_PAGE, MAX_EXPORTED - len(rows)))
        rows += [[msgspec.to_builtins(row).get(column) for column in columns] for row in shown]
        if not shown:
            break
    return Export(name=name, columns=columns, rows=rows, total=total)


FORMS = ("csv", "json")
"""The forms of an export."""

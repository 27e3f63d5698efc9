"""Typed filters: one text becomes parameters of the API, or an error that names its token."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_gateway.portal import lists
from pqkeep_gateway.portal.lists import Export, ListKind, Query

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR, MONTH = NOW - timedelta(days=365), NOW - timedelta(days=30)
KIND = ListKind(
    path="/things",
    filters=(
        lists.choice(
            "algorithm",
            "",
            "algorithm",
            ("Kyber768", "X-Wing", "Dilithium3"),
            {"ML-KEM-768": "Kyber768"},
        ),
        lists.text("keyring", "", "keyring", without="not_keyring"),
        lists.text("used-by", "", "used_by"),
        lists.age("age", "", older="before", younger="since"),
        lists.within("used", "", "used_since"),
        lists.upcoming("due", "", "due_before"),
        lists.flags("is", "", {"imported": "imported"}),
    ),
    sorts=("name", "created"),
    words="name",
    noun="thing",
    keeps=("view",),
)
BARE = ListKind(path="/bare", filters=KIND.filters[:1], sorts=("name",), words="", noun="thing")


def query(text: str, kind: ListKind = KIND, *, first: str = "", **more: str) -> Query:
    """Return the query of an address."""
    return Query.of(kind, {"q": text, "from": first, **more}, NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("algorithm:Kyber768", {"algorithm": "Kyber768"}),
        ("Algorithm:ml-kem-768", {"algorithm": "Kyber768"}),
        ("algorithm:X-Wing algorithm:Kyber768", {"algorithm": "Kyber768,X-Wing"}),
        ("-algorithm:X-Wing", {"algorithm": "Kyber768,Dilithium3"}),
        ("keyring:a -keyring:b", {"keyring": "a", "not_keyring": "b"}),
        ('used-by:"night job"', {"used_by": "night job"}),
        ("age:>1y", {"before": YEAR.isoformat()}),
        ("age:1y age:<30d", {"before": YEAR.isoformat(), "since": MONTH.isoformat()}),
        ("-age:>1y", {"since": YEAR.isoformat()}),
        ("used:30d", {"used_since": MONTH.isoformat()}),
        ("used:<1m", {"used_since": MONTH.isoformat()}),
        ("due:1y", {"due_before": (NOW + timedelta(days=365)).isoformat()}),
        ("is:imported", {"imported": True}),
        ("-is:imported", {"imported": False}),
        ('one  two "a:b c"', {"name": "one two a:b c"}),
        (
            "age:100y used:100y",
            {"before": "1970-01-01T00:00:00+00:00", "used_since": "1970-01-01T00:00:00+00:00"},
        ),
    ],
)
def test_a_filter_becomes_parameters(text: str, expected: dict[str, object]) -> None:
    """Each form of a filter gives the API's parameters, and no error."""
    found = query(text)
    assert (found.error, dict(found.parameters)) == ("", expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("algoritm:Kyber768", ("“algoritm:Kyber768” is not a filter", "“algorithm:”")),
        ("zzz:1", ("“zzz:1” is not a filter", "algorithm, keyring")),
        ("algorithm:Kyber678", ("“algorithm:Kyber678”", "Did you mean “Kyber768”?")),
        ("algorithm:", ("“algorithm:”", "must be one of")),
        ("algorithm:X-Wing -algorithm:X-Wing", ("“-algorithm:X-Wing”", "leaves nothing")),
        ("keyring:", ("“keyring:”", "needs a value")),
        ("keyring:a keyring:b", ("“keyring:b”", "occurs twice")),
        ("used-by:a used-by:b", ("“used-by:b”", "occurs twice")),
        ("-used-by:a", ("“-used-by:a”", "cannot be excluded")),
        ("age:old", ("“age:old”", "12h, 90d, 6m, 1y")),
        ("age:>1y age:>2y", ("“age:>2y”", "occurs twice")),
        ("age:9999y", ("“age:9999y”", "at most 100 years")),
        ("used:>30d", ("“used:>30d”", "write it as 30d")),
        ("is:new", ("“is:new”", "must be one of imported")),
        ('a "b', ('“"b” has no closing quotation mark',)),
        ("-word", ("“-word”", "only filters can be excluded")),
        ("a" * 501, ("longer than 500 characters",)),
        ("a\x00b", ("cannot be printed",)),
    ],
)
def test_a_wrong_token_is_named(text: str, said: tuple[str, ...]) -> None:
    """An invalid filter gives no parameters, and its message names the token and what to do."""
    found = query(text)
    assert not found.parameters
    for part in said:
        assert part in found.error


def test_words_need_a_list_that_has_them() -> None:
    """A list without a search for words refuses them."""
    assert "“word” is not a filter" in query("word", BARE).error


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    """No text raises, and a link to the same query gives the same query again."""
    found = query(text)
    assert not (found.error and found.parameters)
    assert query(found.text).parameters == found.parameters


def test_the_address_has_everything() -> None:
    """Links keep filter, order and kept parameters, and leave out defaults."""
    found = query("is:imported", sort="-created", view="all", first="101")
    assert found.request() == {"imported": True, "sort": "-created", "offset": 100, "limit": 50}
    assert found.address() == "?view=all&q=is%3Aimported&sort=-created&from=101"
    assert found.sorted_by("created") == "?view=all&q=is%3Aimported&sort=created"
    assert found.sorted_by("name") == "?view=all&q=is%3Aimported"
    assert found.direction("created") == "descending"
    assert found.direction("name") == ""
    assert found.narrowed("used:7d") == "?view=all&q=is%3Aimported+used%3A7d&sort=-created"
    assert "sort must be one of name, created" in query("", sort="lost").error


def test_pages_go_both_ways() -> None:
    """A page names its position and its neighbours; a page beyond the end leads to the last one."""
    middle = query("", first="51").page(50, 10_000)
    assert (middle.first, middle.last, middle.total) == (51, 100, 10_000)
    assert (middle.previous, middle.next) == ("?", "?from=101")
    first, last = query("").page(50, 10_000), query("", first="9951").page(50, 10_000)
    assert (first.previous, last.next) == ("", "")
    beyond = query("", first="99999").page(0, 120)
    assert (beyond.first, beyond.previous, beyond.next) == (0, "?from=101", "")
    assert query("", first="0").offset == query("", first="x" * 99).offset == 0


def test_an_export_computes_nothing() -> None:
    """A spreadsheet does not compute a cell of CSV, and JSON has the values unchanged."""
    export = Export(
        name="things", columns=("name", "uses"), rows=[("=1+1", 3), ('a "b",', None)], total=2
    )
    name, kind, content = export.file("csv")
    assert (name, kind) == ("things.csv", "text/csv; charset=utf-8")
    assert list(csv.reader(io.StringIO(content.decode()))) == [
        ["name", "uses"],
        ["'=1+1", "3"],
        ['a "b",', ""],
    ]
    _, _, content = export.file("json")
    assert msgspec.json.decode(content)["rows"][0] == {"name": "=1+1", "uses": 3}


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("+1", "'+1"),
        ("\t=1", "'\t'=1"),
        (" =1", "' =1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("a;=1+1", "a;'=1+1"),
        ("a; -1;b", "a;' -1;b"),
        ("a-1;b=2", "a-1;b=2"),
    ],
)
def test_names_are_no_formulas(name: str, cell: str) -> None:
    """Full-width signs, and semicolons where they separate cells, begin no formula in CSV."""
    content = lists.as_csv(["name"], [[name]])
    assert list(csv.reader(io.StringIO(content.decode()))) == [["name"], [cell]]

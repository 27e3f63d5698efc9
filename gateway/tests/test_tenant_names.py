"""Names of tenants: in any script, normalised, and without look-alikes."""

import unicodedata

import pytest
from gateway.tests.world import ATTRIBUTION, World
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.storage import tenants
from pqkeep_gateway.storage.tenants import MAX_NAME, NameTakenError, name_key, normalized_name
from pqkeep_protocol.documents import is_newer


@pytest.mark.parametrize(
    "name",
    [
        "Müller & Söhne",
        "株式会社　東京",
        "می\u200cروم",
        "क्\u200dष",
        "Привет, мир! (№ 1)",
        "עברית",
        "\U0001f469\u200d\U0001f52c Labs™",
        "x" * 255,
        "\U0001fae8 Labs",
        "\U00011f02\U00011f12",
        "\U00031350\U000323af",
        "\ua7cb\ua7da",
        "\U00010d50\U00010d70",
    ],
)
def test_names_of_any_script(name: str) -> None:
    """Letters, marks, joiners, symbols and spaces of any script are accepted and unchanged."""
    assert normalized_name(name) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\u3000\u200d ",
        "x" * 256,
        "a\x00b",
        "a\nb",
        "a\n",
        "a\u202eb",
        "a\u2028b",
        "a\ue000b",
        "a\ud800b",
        "a\ufffeb",
        "a\ufdd0b",
        "a\u2065b",
        "a\ufff0b",
        "a\U0001ffffb",
        "a\U000e0000b",
        "a\U000e0fffb",
        "a\U0010ffffb",
        "a\u00adb",
    ],
)
def test_texts_that_are_no_names(text: str) -> None:
    """Names that are empty or too long, or have characters that a name may not have."""
    with pytest.raises(ValueError):  # noqa: PT011 - without a message: nothing of the text is in it
        normalized_name(text)


def test_what_this_python_does_not_know_is_compared_as_it_is() -> None:
    """A character of a later Unicode version is unchanged; neighbouring letters are folded."""
    newer = next(chr(code) for code in range(0x10D40, 0xE0000) if is_newer(chr(code)))
    name = normalized_name(f"Cafe\u0301 {newer}")
    assert name == f"Café {newer}"
    assert name_key(name) == name_key(normalized_name(f"CAFÉ {newer}"))
    assert name_key(name) != name_key("Café")


def test_marks_without_end_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is too long is refused before NFC, which takes quadratic time."""
    monkeypatch.setattr(tenants, "unicodedata", None)
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        normalized_name("a" + "\u0345\u0344\u0316" * 2600)


def test_a_name_that_is_long_before_nfc() -> None:
    """The length is counted after NFC and without surrounding spaces."""
    given = "\u03b1\u0313\u0300\u0345" * MAX_NAME
    assert normalized_name(f"{' ' * 2000}{given}\u3000") == "\u1f82" * MAX_NAME


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Acme", "ACME"),
        ("Café", "Cafe\u0301"),
        ("Straße", "STRASSE"),
        ("Acme Corp", " Acme\u00a0\u3000Corp\u200d"),
        ("Acme", "Ac\u200dme"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ],
)
def test_names_that_are_the_same(one: str, other: str) -> None:
    """Names that differ only in case, composition, joiners or spaces are equal."""
    assert name_key(normalized_name(one)) == name_key(normalized_name(other))


def test_names_that_differ() -> None:
    """Names that differ in a letter or a space within a word are different."""
    assert len({name_key(name) for name in ("Acme", "Acne", "Ac me", "Acmé")}) == 4


@given(st.text(max_size=40))
def test_a_normalized_name_is_its_own_form(text: str) -> None:
    """A normalized name is in NFC and normalizes to itself; its key ignores case."""
    try:
        name = normalized_name(text)
    except ValueError:
        return
    assert normalized_name(name) == name == unicodedata.normalize("NFC", name)
    assert name_key(name.swapcase().casefold()) == name_key(name.casefold())


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_the_database_keeps_names_apart(world: World) -> None:
    """A name that differs only in case or composition is refused."""
    await world.tenants.create("Café 株式会社", Tier.FREE, ATTRIBUTION)
    with pytest.raises(NameTakenError):
        await world.tenants.create(normalized_name("CAFE\u0301 株式会社"), Tier.FREE, ATTRIBUTION)

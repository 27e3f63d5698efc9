"""The YAML of configuration files: strict, bounded, and with the line of each error."""

from __future__ import annotations

import pytest

from pqkeep.cli.configuration_schema import declaration
from pqkeep.cli.configuration_yaml import MAX_BYTES, parsed, written
from pqkeep.cli.failures import Refusal

TENANT = "version: 1\ntenants:\n  - name: Acme\n"


def refusal(text: str | bytes) -> tuple[str, str]:
    """Return the message and the next step of the refusal of a file."""
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(Refusal) as refused:
        declaration([parsed(data, "file.yaml")])
    return str(refused.value), refused.value.next_step


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (TENANT + "    plna: free\n", 4, "write plan"),
        (TENANT + "    plan: fere\n", 4, "write free"),
        (TENANT + "    plan: free\n    plan: free\n", 5, "a second time: the first is on line 4"),
        (TENANT + "  - name: ACME\n", 4, "case does not matter"),
        (TENANT + "    keyrings:\n      - name: a\n      - name: a\n", 6, "a second time"),
        (TENANT + "    keyrings:\n      - rotation_days: 1\n", 5, "needs the field name"),
        (TENANT + "    keyrings:\n      - name: a\n        rotation_day: 1\n", 6, "rotation_days"),
        (TENANT + "    keyrings: [{name: a, rotation_days: 99999}]\n", 4, "from 0 to 3,650"),
        (TENANT + "    keyrings: [{name: a, rotation_days: 0x10}]\n", 4, "a whole number"),
        (TENANT + "    keyrings: [{name: a, archive_after_days: 1}]\n", 4, "destroys keys"),
        (TENANT + "    keyrings: [{name: a, derived: yes}]\n", 4, "true or false"),
        ("version: 1\ntenants: [{name: no}]\n", 2, "quotation marks"),
        ("version: 1\ntenants: [{name: 12}]\n", 2, "quotation marks"),
        ("version: 2\n", 1, "write version: 1"),
        ("tenants: []\n", 1, "needs the field version"),
        ("version: 1\ntenants: {}\n", 2, "must be a list"),
        (TENANT + "    members: [{email: a@b, role: root}]\n", 4, "choose one of owner"),
        (TENANT + "    members: [{email: -x@b, role: owner}]\n", 4, "e-mail"),
        (TENANT + "    api_keys: [{name: -x, scopes: everything}]\n", 4, "64 letters"),
        (TENANT + "    api_keys: [{name: a}]\n", 4, "needs the field scopes"),
        (TENANT + "    credential: x\n    api_keys: []\n", 4, "names no API key"),
        (
            TENANT + "    identity_providers:\n      - {name: a, issuer: b, client_id: c,\n"
            "         client_secret: geheim}\n",
            6,
            "client_secret_file",
        ),
        (
            TENANT + "    workload_issuers: [{name: a, url: b, audience: c, algorithms: [RS256],\n"
            "      jwks: {keys: [{kty: OKP, d: geheim}]}}]\n",
            5,
            "private key",
        ),
        ("version: 1\ntenants: &a []\n", 2, "anchors"),
        ("version: 1\ntenants: *a\n", 2, "anchors"),
        ("version: 1\n<<: {tenants: []}\n", 2, "no field <<"),
        ("version: !!python/object:os.system 1\n", 1, "tags"),
        ("version: 1\n---\nversion: 1\n", 2, "second document"),
        ("version: 1\ntenants: [\n", 3, "not YAML"),
        ("version: 1\n\ttenants: []\n", 2, "without tabs"),
        ("version: 1\ntenants:\n  - name: a\n\tplan: free\n", 4, "without tabs"),
        ("version: 1\ntenants:\n  - name: a\n      plan: free\n", 4, "align it"),
        ("version: 1\ntenants:\n  - name: a\n   plan: free\n", 4, "align it"),
        ("version: 1\ntenants:\n  - name: a\n    plan:free\n", 5, "space after the colon"),
        ("tenants: []\n", 1, "add version: 1"),
        (TENANT + "    keyrings: [{name: a, keys: [MLKEM768]}]\n", 4, "write ML-KEM-768"),
        (TENANT + "    keyrings: [{name: a, purposes: [encript]}]\n", 4, "write encrypt"),
        ("[" * 100_000, 1, "nest"),
        ("- a\n" * 150_000, 100_000, "more than"),
        ("", 1, "empty"),
        ("? [a]\n: b\n", 1, "must be a text"),
        (b"version: \xff\n", 1, "UTF-8"),
        ("version: \x07\n", 1, "not allowed"),
        (b" " * (MAX_BYTES + 1), 1, "split it"),
    ],
)
def test_every_error_has_its_line(text: str | bytes, line: int, words: str) -> None:
    """A file with an error is refused with file, line and advice, and its values are not quoted."""
    message, next_step = refusal(text)
    assert message.startswith(f"file.yaml:{line}: ")
    assert words in message + next_step
    assert "geheim" not in message + next_step


@pytest.mark.threat("hostile-configuration")
def test_a_bomb_costs_nothing() -> None:
    """Nine levels of aliases are refused at the first anchor."""
    bomb = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(9))
    assert "anchors" in refusal(bomb)[0]


@pytest.mark.parametrize(
    "text", ["é", "no", "12", "\x1b[2J", "\u202e", "a\nb", "", "'", "*a", "1e3"]
)
def test_written_texts_are_read_again(text: str) -> None:
    """A text that was written is read back unchanged. The file has no control characters."""
    shown = written({"version": "1", "text": text})
    node = parsed(shown.encode(), "file")
    assert node.members["text"][1].text == text  # type: ignore[union-attr, call-overload] # they are mappings
    assert all(character.isprintable() for line in shown.split("\n") for character in line)

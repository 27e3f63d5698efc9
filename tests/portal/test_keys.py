"""The pages of keys: listed, generated, rotated, retired, archived."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.sync_api import Locator, expect
from tests.contract.test_key_import import body, issue, pkcs8
from tests.fixtures.browser import go_to
from tests.fixtures.caller import PASSWORD
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import (
    MARKUP,
    World,
    allowed,
    assert_headings_in_order,
    get_page,
    operations_on,
    prove,
    world_of,
)

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.portal.views.algorithms import ABOUT
from pqkeep_protocol.algorithms import CURRENT, KEY_PAIRS, Algorithm

OPERATIONS = {
    *("generate_key", "rotate_key", "retire_key", "disable_key", "enable_key"),
    *("archive_key", "cancel_archive"),
}
EMAIL = "keys-owner@example.com"


@pytest.fixture(scope="module")
def world(installation: Installation) -> World:
    """Kyber768 with a retired version 1 that was used twice; Dilithium3 in every status."""
    made = world_of(installation, "Kyber768", "Dilithium3", email=EMAIL)
    for _ in range(2):
        made.tenant.post("/kem/encrypt", {"plaintext": "aGVsbG8="})
    for algorithm in ("Kyber768", "Dilithium3", "Dilithium3"):
        made.tenant.post("/kms/keys/rotate", {"algorithm": algorithm}, status=201)
    made.tenant.post("/kms/keys/disable", {"algorithm": "Dilithium3", "key_version": 1})
    scheduled = {"algorithm": "Dilithium3", "key_version": 2, "delay_days": 7}
    made.person.post_proven("/kms/keys/archive", scheduled)
    return made


def _type_days(dialog: Locator) -> None:
    """The dialog shows the day of the destruction while the days are typed."""
    days = dialog.get_by_label("Waiting time in days")
    for typed in ("30", "", "7"):
        days.fill(typed)
        day = f"{datetime.now(UTC).date() + timedelta(days=int(typed))}" if typed else "…"
        expect(dialog.get_by_role("status")).to_have_text(day)


def test_a_key_lives_and_is_archived_on_its_pages(
    installation: Installation, visit_as: SignedIn
) -> None:
    """From an empty page: generate with the keyboard alone, rotate, archive, retire."""
    tenant = installation.new_tenant()
    visitor = visit_as(installation.person(tenant.tenant_id), asks_proof=True)
    page = visitor.open("/portal/keys")
    expect(page.get_by_text("No keys yet")).to_be_visible()
    page.get_by_role("button", name="Generate a key").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("X-Wing")).to_be_checked()
    page.keyboard.press("Enter")
    row = page.get_by_role("row", name="default/X-Wing v1")
    expect(row).to_contain_text("active")

    row.get_by_role("link").click()
    page.get_by_role("button", name="Rotate", exact=True).click()
    page.locator("#rotate-X-Wing").get_by_role("button", name="Rotate", exact=True).click()
    prove(page)
    expect(page.locator("dl").first).to_contain_text("retired")

    page.get_by_role("button", name="Schedule destruction", exact=True).click()
    dialog = page.locator("#archive")
    expect(dialog).to_contain_text("Data encrypted with it can never be read again")
    expect(dialog).to_contain_text("It was never used.")
    _type_days(dialog)
    name = dialog.get_by_label("Type X-Wing v1 to confirm")
    name.fill("X-Wing v2")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("This must be exactly: X-Wing v1")
    name.fill("X-Wing v1")
    page.keyboard.press("Enter")
    prove(page)
    expect(page.get_by_role("note")).to_contain_text("Its private key is destroyed in 7 days")
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_text("X-Wing v1 stays, and can be used again.")).to_be_visible()
    expect(page.get_by_role("cell", name="cancel archive")).to_be_visible()

    page.get_by_role("button", name="Disable", exact=True).click()
    last_day = datetime.now(UTC).date() + timedelta(days=9)
    page.locator("#disable").get_by_label("Last day (UTC)").fill(last_day.isoformat())
    page.locator("#disable").get_by_role("button", name="Disable").click()
    expect(page.locator("dl").first).to_contain_text("disabled")
    expect(page.get_by_text("until it is enabled in")).to_contain_text(f"{last_day} 23:59")
    page.get_by_role("button", name="Enable", exact=True).click()
    page.locator("#enable").get_by_role("button", name="Enable").click()
    expect(page.locator("dl").first).to_contain_text("retired")

    go_to(page, "/portal/keys/X-Wing/2")
    page.get_by_role("button", name="Retire", exact=True).click()
    page.get_by_label("Type X-Wing v2 to confirm").fill("X-Wing v2")
    page.keyboard.press("Enter")
    expect(page.locator("dl").first).to_contain_text("retired")
    listed = [(each["key_version"], each["status"]) for each in tenant.get("/kms/keys")["keys"]]
    assert listed == [(1, "retired"), (2, "retired")]


def test_archiving_says_how_often_the_key_was_used(world: World) -> None:
    """The dialog shows the number of uses and the age of the last use."""
    text = get_page(world.person, "/portal/keys/Kyber768/1").text
    assert "It was used 2 times, last" in text


@pytest.mark.parametrize("kind", ["Bytes", "DER", "PEM", "JWK"])
def test_a_public_key_is_downloaded_in_standard_forms(
    world: World, visit_as: SignedIn, tmp_path: Path, kind: str
) -> None:
    """The file equals the API's response: raw bytes, SubjectPublicKeyInfo, PEM, or a JWK."""
    page = visit_as(world.person).open("/portal/keys/Dilithium3/3")
    with page.expect_download() as downloading:
        page.get_by_role("button", name=kind, exact=True).click()
    ending = {"Bytes": "pub", "JWK": "jwk.json"}.get(kind, kind.lower())
    assert downloading.value.suggested_filename == f"Dilithium3-v3.{ending}"
    downloading.value.save_as(tmp_path / "key")
    content = (tmp_path / "key").read_bytes()
    raw = b64decode(world.tenant.get("/kms/keys/active", algorithm="Dilithium3")["public_key"])
    match kind:
        case "Bytes":
            assert content == raw
        case "DER":
            assert content.endswith(raw)
        case "PEM":
            assert content.startswith(b"-----BEGIN PUBLIC KEY-----\n")
        case _:
            assert json.loads(content)["alg"] == "ML-DSA-65"


def test_the_key_set_of_a_keyring_is_downloaded(world: World) -> None:
    """The JWKS link has the verifying keys. Disabled keys and scheduled archives are not in it."""
    text = get_page(world.person, "/portal/keys").text
    (path,) = re.findall(r'href="([^"]+)" download="jwks.json"', text)
    (key,) = get_page(world.person, path).json()["keys"]
    assert key["alg"] == "ML-DSA-65"
    assert f'href="{path}"' in get_page(world.person, "/portal/keys/Dilithium3/3").text


def test_an_imported_key_says_so(installation: Installation) -> None:
    """The list and the key's page mark an imported key, and its successor is not marked."""
    tenant = installation.new_tenant()
    private = pkcs8(MLKEM768PrivateKey.generate())
    tenant.post("/kms/keys/import", body(issue(tenant), private), status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    owner = installation.person(tenant.tenant_id)
    assert get_page(owner, "/portal/keys").text.count(">imported<") == 1
    assert ">imported<" in get_page(owner, "/portal/keys/Kyber768/1").text
    assert ">imported<" not in get_page(owner, "/portal/keys/Kyber768/2").text


def test_only_algorithms_with_a_jwk_are_offered_as_one(world: World) -> None:
    """A KEM key has no such link."""
    assert 'data-format="jwk"' not in get_page(world.person, "/portal/keys/Kyber768/1").text


def test_what_was_typed_outlives_the_session(
    installation: Installation, visit_as: SignedIn
) -> None:
    """After a sign-in over the page, the action continues with the typed values."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    visitor = visit_as(installation.person(tenant.tenant_id))
    visitor.expected.append("401")
    page = visitor.open("/portal/keys/Kyber768/1")
    page.get_by_role("button", name="Retire", exact=True).click()
    page.get_by_label("Type Kyber768 v1 to confirm").fill("Kyber768 v1")
    visitor.context.clear_cookies()
    page.keyboard.press("Enter")
    page.locator("#sign-in-password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("dl").first).to_contain_text("retired")


def test_filters_find_nothing_something_and_errors(world: World) -> None:
    """A filter without matches shows a message, and an invalid filter shows its error."""
    filtered = get_page(world.person, "/portal/keys?q=algorithm:ML-KEM-768 status:active").text
    assert "Kyber768 v2<" in filtered
    assert "Kyber768 v1<" not in filtered
    rest = get_page(world.person, "/portal/keys?from=2&sort=-name").text
    assert "Kyber768 v1<" in rest
    assert "Kyber768 v2<" not in rest
    for status, said in (("archived", "No key matches"), ("lost", "status must be one of")):
        page = get_page(world.person, f"/portal/keys?q=status:{status}")
        assert said in page.text
        assert_headings_in_order(page.text)
    history = get_page(world.person, "/portal/keys/Kyber768/1?operation=encrypt").text
    assert history.count('data-label="Outcome"') == 2
    for key in ("Kyber768/3", "Kyber768/0", "Kyber768/x", "Kyber768/99999999999", "Nonsense/1"):
        assert get_page(world.person, f"/portal/keys/{key}").status_code == HTTPStatus.NOT_FOUND


def test_a_key_that_is_to_be_destroyed_is_not_said_to_work(world: World) -> None:
    """A retired key can still verify. After its destruction is scheduled, it can do nothing."""
    works, refused = "It verifies old signatures", "Every use is refused, unless you keep it"
    page = get_page(world.person, "/portal/keys/Dilithium3/2").text
    assert (refused in page, works in page) == (True, False)


@pytest.mark.parametrize("markup", MARKUP)
def test_markup_in_a_query_is_text(world: World, markup: str) -> None:
    """No query text becomes markup on these pages."""
    for name in ("q", "sort", "from", "format"):
        assert markup not in get_page(world.person, f"/portal/keys?{name}={markup}").text
    for name in ("operation", "after"):
        page = get_page(world.person, f"/portal/keys/Kyber768/1?{name}={markup}")
        assert markup not in page.text


@pytest.mark.parametrize("role", Role)
def test_a_role_sees_the_forms_that_it_may_send(world: World, role: Role) -> None:
    """These pages have exactly the forms that the access table allows."""
    person = world.installation.person(world.tenant.tenant_id, role)
    found = set[str]()
    for path in ("", "/Kyber768/1", "/Kyber768/2", "/Dilithium3/1", "/Dilithium3/2"):
        page = get_page(person, f"/portal/keys{path}")
        assert page.status_code == HTTPStatus.OK
        found |= operations_on(page.text)
    assert found == allowed(role, OPERATIONS)


def test_algorithms_beyond_the_plan_name_the_plan_that_has_them(installation: Installation) -> None:
    """On the free plan five algorithms can be selected; the others name their first plan."""
    tenant = installation.new_tenant(plan="free")
    text = get_page(installation.person(tenant.tenant_id), "/portal/keys").text
    choices = text[text.index('id="generate"') :]
    assert choices.count('type="radio"') == len(CURRENT)
    symmetric = len(CURRENT) - len(KEY_PAIRS)
    assert choices.count(" disabled>") == len(KEY_PAIRS) - 2
    assert symmetric == 3
    assert choices.count("from the plan starter") == 6
    assert choices.count("from the plan enterprise") == 2


def test_every_algorithm_is_explained() -> None:
    """Each algorithm has a sentence.

    Current algorithms have their own sentence and a NIST category.
    """
    assert ABOUT.keys() == set(Algorithm)
    assert len({ABOUT[name].purpose for name in CURRENT}) == len(CURRENT)
    assert all(ABOUT[name].strength for name in CURRENT)


def test_the_keys_of_every_keyring_are_listed(
    installation: Installation, visit_as: SignedIn
) -> None:
    """Each row names its keyring. A filter shows one keyring. A key can be rotated in the list."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
    for keyring in ("default", "payments"):
        named = {"algorithm": "Kyber768", "keyring": keyring}
        tenant.post("/kms/keys/generate", named, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD", "keyring": "payments"})
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, asks_proof=True).open("/portal/keys")
    expect(page.get_by_role("row", name="default/Kyber768 v1")).to_contain_text("never")
    expect(page.get_by_role("row", name="payments/Kyber768 v1")).to_contain_text("active")
    expect(page.get_by_role("status").first).to_have_text("1 to 2 of 2 key versions")
    page.get_by_label("Filter Keys").fill("keyring:payments")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Keys in payments")).to_be_visible()
    expect(page.get_by_role("row", name="default/Kyber768 v1")).to_have_count(0)
    page.get_by_role("link", name="payments/Kyber768 v1").click()
    page.get_by_role("button", name="Rotate", exact=True).click()
    page.locator("dialog[open]").get_by_role("button", name="Rotate", exact=True).click()
    prove(page)
    expect(page.locator("dl").first).to_contain_text("retired")
    assert owner.get("/kms/keys", keyring="payments")["total"] == 2
    assert owner.get("/kms/keys")["total"] == 1


@pytest.mark.parametrize("algorithm", CURRENT[len(KEY_PAIRS) :])
def test_a_symmetric_key_has_a_fingerprint(installation: Installation, algorithm: str) -> None:
    """List and page name a symmetric key; its page has the fingerprint and no public key."""
    tenant = installation.new_tenant()
    made = tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    person = installation.person(tenant.tenant_id)
    assert f"<wbr>{algorithm} v1</a>" in get_page(person, "/portal/keys").text
    page = get_page(person, f"/portal/keys/{algorithm}/1").text
    assert made["fingerprint"] in page
    assert 'id="public-key"' not in page


def test_a_legacy_key_is_listed_with_the_others(installation: Installation) -> None:
    """A filter excludes it; it retires and is archived, and is never rotated."""
    tenant = installation.new_tenant()
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    document = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    issued = issue(tenant, "ECDSA-P-256")
    tenant.post("/kms/keys/import", body(issued, document), status=201)
    person = installation.person(tenant.tenant_id)
    name = "<wbr>ECDSA-P-256 v1</a>"
    assert name not in get_page(person, "/portal/keys?q=-is:legacy").text
    listed = get_page(person, "/portal/keys").text
    page = get_page(person, "/portal/keys/ECDSA-P-256/1").text
    assert name in listed
    assert "Only verifies old signatures" in page
    for text in (listed, page):
        assert "rotate-ECDSA-P-256" not in text
    assert 'id="retire"' in page
    tenant.post("/kms/keys/retire", {"algorithm": "ECDSA-P-256", "key_version": 1})
    assert 'id="archive"' in get_page(person, "/portal/keys/ECDSA-P-256/1").text

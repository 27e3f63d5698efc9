"""The portal's languages: complete catalogues, no English in German pages, and the choice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from http import HTTPStatus

import httpx2
import pytest
from msgspec import structs
from playwright.sync_api import expect
from tests import texts
from tests.fixtures.browser import assert_accessible
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.conftest import SignedIn
from tests.portal.example import migrate, trust
from tests.portal.visitors import assert_fits, assert_well_formed

from pqkeep_gateway.languages import (
    CODE,
    ENGLISH,
    LANGUAGES,
    PLACE,
    chosen,
    filled,
    said,
    speaking,
    translated,
)
from pqkeep_gateway.notices import KINDS, Details
from pqkeep_gateway.portal.app import PAGES
from pqkeep_gateway.portal.pages import ROOT
from pqkeep_gateway.portal.views.audit import OPERATIONS as OPERATION_CODES
from pqkeep_protocol.keyrings import KeyPurpose
from pqkeep_protocol.rules import RuleUse

OTHERS = sorted(LANGUAGES.keys() - {ENGLISH})
ELEMENT = re.compile(r"</?[a-z]+>")
SHOWN = {"alt", "aria-label", "data-label", "data-toast", "placeholder", "title"}
HIDDEN = {"script", "style", "code", "pre", "template", "kbd"}
WORD = re.compile(r"[a-z]{3,}")
SAME = re.compile(
    r"""[\w.+-]*@|^[\w.-]+:[\w<>.-]|^-?[\w./*:-]*[-_/.*:][\w./*:-]*$|^ERR_|^:?\s?https?://
    |^[\w-]{4}$|^tenant\s[0-9a-f]|^default[/:]|^[0-9a-f]{16,}$|^192\.|^cnsa-|^\d+\smin$|\d\s·\spqkeep$
    |^(API|CycloneDX|JSON|JWK|NIST|SHA|Kyber|Dilithium|ML-|SLH-|X-Wing|XAES|HMAC|Composite)
    |^(English|Deutsch|Export|pqkeep|Python|curl|demo|languages|success|operator|refused|Standard\ Webhooks|Cards\ to\ ML-KEM-1024)$
    |^(Free|Starter|Growth|Professional|Enterprise|Enterprise\ Plus)$""",
    re.VERBOSE,
)
"""Texts that are the same in all languages: addresses, filters, codes, names of algorithms."""


OPERATIONS = {
    form
    for code in (*OPERATION_CODES, *KeyPurpose, *RuleUse)
    for form in (code, code.replace("-", " "))
}
"""Codes of operations, which pages show as they are in the API."""


class _Shown(HTMLParser):
    """Collects the texts and attributes that a visitor sees or hears."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the shown attributes."""
        self._hidden += tag in HIDDEN
        self.found |= {value.strip() for name, value in attrs if name in SHOWN and value}

    def handle_endtag(self, tag: str) -> None:
        """Note the end of code."""
        self._hidden -= tag in HIDDEN

    def handle_data(self, data: str) -> None:
        """Note a text."""
        if not self._hidden:
            self.found.add(" ".join(data.split()))


@pytest.mark.parametrize("language", OTHERS)
def test_each_text_has_a_translation_with_the_same_values(language: str) -> None:
    """Templates, modules, code and the API's errors: every text is in the catalogue, translated."""
    for message in texts.catalogue(language):
        ids, strings = _forms(message.id), _forms(message.string)
        if not message.id:
            continue
        assert all(strings), f"{message.id!r} has no translation: run make texts"
        wanted = set(PLACE.findall(ids[-1])), sorted(ELEMENT.findall(ids[-1]))
        for string in strings:
            found = set(PLACE.findall(string)), sorted(ELEMENT.findall(string))
            is_shorter = found[0] < wanted[0] and isinstance(message.id, tuple)
            assert found == wanted or is_shorter, message.id


def _forms(text: object) -> tuple[str, ...]:
    return tuple(map(str, text)) if isinstance(text, tuple | list) else (str(text or ""),)


@pytest.mark.parametrize("language", OTHERS)
def test_the_committed_catalogue_is_current(language: str) -> None:
    """`make texts` writes exactly the committed files."""
    po = texts.po_of(texts.catalogue(language))
    assert (texts.GATEWAY / f"{language}.po").read_bytes() == po, "run make texts"
    assert (texts.GATEWAY / f"{language}.mo").read_bytes() == texts.mo_of(po, language)


@pytest.mark.parametrize(
    ("preference", "accepted", "language"),
    [
        (None, "", "en"),
        (None, "de-CH, en;q=0.5", "de"),
        (None, "en, de", "en"),
        (None, "fr, de;q=0.3, en;q=0.2", "de"),
        (None, "de;q=0, en", "en"),
        ("de", "en", "de"),
        ("en", "de", "en"),
        ("xx", "de", "de"),
        (None, "de;q=nan", "en"),
        (None, "," * 10_000 + "de", "en"),
    ],
)
def test_the_choice_counts_before_the_browser(
    preference: str | None, accepted: str, language: str
) -> None:
    """A person's choice counts, then Accept-Language by weight, then English."""
    assert chosen(preference, accepted) == language


def test_errors_of_the_api_keep_their_values() -> None:
    """A message with values is translated by its pattern; an unknown text stays."""
    with speaking("de"):
        assert said("password must have 12 to 1024 characters") == (
            "password muss 12 bis 1024 Zeichen haben"
        )
        assert said("3 requests wait for the approval of a second person.").startswith("3 Anträge")
        assert said("no such thing as this text") == "no such thing as this text"
    assert said("no such keyring") == "no such keyring"


@pytest.mark.parametrize("language", OTHERS)
def test_what_mails_announce_is_translated(language: str) -> None:
    """Each notice, each announcement and each request for approval has a translation."""
    details = Details(
        count=1, names=("a-name",), at=datetime.now(UTC), used=7, limit=9, source_address="::1"
    )
    sentences = {
        kind.sentence(structs.replace(details, count=count))
        for kind in KINDS.values()
        for count in (1, 3)
    }
    missing = []
    with speaking(language):
        missing += [text for text in sentences if translated(text) is None]
        for message in texts.of_mails():
            values = {name: f"x{number}" for number, name in enumerate(PLACE.findall(message.text))}
            if message.context == CODE and translated(filled(message.text, values)) is None:
                missing.append(message.text)
    assert missing == []


def test_a_person_gets_mail_in_the_language_of_their_last_page(installation: Installation) -> None:
    """A German page makes mails German: to the person, and to the people that they invite."""
    owner = installation.person(installation.new_tenant().tenant_id, email="mails@example.com")
    with httpx2.Client(timeout=PATIENCE) as client:
        for accepted in ("en", "de"):
            assert _page(client, owner, f"{ROOT}/team", accepted).status_code == HTTPStatus.OK
    invited = {"email": "mails-invited@example.com", "role": "viewer"}
    owner.post_proven(f"/tenants/{owner.tenant_id}/invitations", invited, status=201)
    (mail,) = installation.mailbox.messages("mails-invited@example.com", "invitation", 1)
    assert mail["Subject"] == "Sie sind zu pqkeep eingeladen"
    assert "mails@example.com lädt Sie" in mail.get_content()
    assert "als Betrachter: darf lesen" in mail.get_content()


def test_a_stranger_gets_mail_in_the_language_of_the_request(installation: Installation) -> None:
    """A sign-up has no account with a language yet."""
    url = f"{installation.base_url}/api/v1/auth/register"
    body = {"email": "stranger-mails@example.com"}
    headers = {"Accept-Language": "de"}
    response = httpx2.post(url, json=body, headers=headers, timeout=PATIENCE)
    assert response.is_success
    (mail,) = installation.mailbox.messages("stranger-mails@example.com", "registration", 1)
    assert mail["Subject"] == "Schließen Sie Ihre Registrierung bei pqkeep ab"


@pytest.fixture(scope="module")
def people(installation: Installation) -> dict[str, Caller]:
    """An owner with content on every page, an operator, and an anonymous visitor."""
    tenant = installation.new_tenant()
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    owner = installation.person(tenant.tenant_id, email="languages@example.com")
    invited = {"email": "invited-languages@example.com", "role": "viewer"}
    owner.post_proven(f"/tenants/{tenant.tenant_id}/invitations", invited, status=201)
    migrate(tenant, owner, "default")
    trust(owner)
    hook = {"name": "on-call", "url": "https://hooks.example.com/"}
    owner.post_proven("/webhooks", hook, status=201)
    operator = installation.caller(None, tenant.tenant_id)
    operator.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    return {"owner": owner, "operator": operator, "": installation.caller(None, tenant.tenant_id)}


def _addresses(people: dict[str, Caller]) -> Iterator[tuple[Caller, str]]:
    owner = people["owner"]
    record = owner.get("/audit/records", operation="encrypt")["records"][0]["id"]
    webhook = owner.get("/webhooks")["webhooks"][0]["id"]
    for page in PAGES:
        whose = "" if page.is_public else "operator" if page.is_operators else "owner"
        id_ = owner.tenant_id if page.is_operators else str(record)
        values = {"algorithm": "Kyber768", "version": "1", "id": id_, "webhook": webhook}
        values["name"] = "default"
        path = re.sub(r"{(\w+)}", lambda name: values[name[1]], page.path)  # noqa: B023
        if page.path != "/components":
            yield people[whose], ROOT + path
    for query in ("/keys?q=color:red", "/keys?q=age:soon", "/team?q=rol:owner", "/search?q=zzz"):
        yield owner, ROOT + query
    for query in ("/keys?q=nothing", "/audit?key_version=x", "/no/such/page", "/operator"):
        yield owner, ROOT + query


def _page(client: httpx2.Client, caller: Caller, path: str, accepted: str) -> httpx2.Response:
    cookies = "; ".join(f"{each.name}={each.value}" for each in caller.client.cookies.jar)
    url = f"{caller.client.base_url}".split("/api/")[0].rstrip("/") + path
    headers = {"Accept-Language": accepted, **({"Cookie": cookies} if cookies else {})}
    return client.get(url, headers=headers)


def test_german_pages_have_no_english_text(people: dict[str, Caller]) -> None:
    """No text and no shown attribute of any page is the same as in the English page."""
    left: dict[str, set[str]] = {}
    with httpx2.Client(timeout=PATIENCE) as client:
        _compare(client, people, left)
    assert left == {}, "\n".join(f"{path}: {sorted(found)}" for path, found in left.items())


def _compare(client: httpx2.Client, people: dict[str, Caller], left: dict[str, set[str]]) -> None:
    operator = people["operator"]
    names = {each["name"] for each in operator.get("/tenants", limit=500)["tenants"]}
    for caller, path in _addresses(people):
        german, english = _page(client, caller, path, "de"), _page(client, caller, path, "en")
        if german.is_redirect:
            continue
        assert '<html lang="de">' in german.text, path
        assert_well_formed(german.text)
        assert_well_formed(english.text)
        assert "Cookie" in german.headers["vary"]
        both = _Shown(german.text).found & _Shown(english.text).found
        same = {text.removesuffix(" · pqkeep") for text in both if not SAME.search(text)}
        same = {text for text in same if WORD.search(text)} - _unchanged() - OPERATIONS - names
        if same:
            left[path] = same


@cache
def _unchanged() -> frozenset[str]:
    """Return the texts with the same words in both languages."""
    return frozenset(
        str(message.id)
        for message in texts.read("de")
        if message.id and message.id == message.string
    )


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "de", {"Referer": "http://x/portal/keys?q=a%20b"}, HTTPStatus.SEE_OTHER),
        ("POST", "de", {"Referer": "https://evil.example//evil"}, HTTPStatus.SEE_OTHER),
        ("POST", "de", {"Sec-Fetch-Site": "cross-site"}, HTTPStatus.FORBIDDEN),
        ("GET", "de", {}, HTTPStatus.METHOD_NOT_ALLOWED),
        ("POST", "xx", {}, HTTPStatus.NOT_FOUND),
    ],
)
def test_a_choice_is_a_post_of_the_portal_itself(
    installation: Installation, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """A choice sets a cookie and leads back to a page of the portal, never elsewhere."""
    url = f"{installation.base_url}{ROOT}/language/{path}"
    response = httpx2.request(method, url, headers=headers, timeout=PATIENCE)
    assert response.status_code == status
    assert ("pqkeep_language=de" in response.headers.get("set-cookie", "")) == (status == 303)
    if status == HTTPStatus.SEE_OTHER:
        is_portal = "/portal/keys" in headers["Referer"]
        assert response.headers["location"] == (f"{ROOT}/keys?q=a%20b" if is_portal else ROOT)


def test_a_person_chooses_german_and_uses_a_form(
    visit_as: SignedIn, people: dict[str, Caller]
) -> None:
    """The choice stays, scripts and errors are German, and pages fit a phone without findings."""
    visitor = visit_as(people["owner"], phone=True)
    visitor.expected.append("4(0|2)")
    tab = visitor.context.new_page()
    tab.goto(f"{ROOT}/security")
    tab.get_by_role("button", name="Menu").click()
    tab.get_by_role("button", name="Deutsch").click()
    expect(tab.get_by_role("heading", name="Sicherheit")).to_be_visible()
    assert_fits(tab)
    assert_accessible(tab)
    for path in ("/keyrings", "/migration"):
        tab.goto(ROOT + path)
        assert_fits(tab)
    tab.goto(f"{ROOT}/keyrings#create")
    dialog = tab.locator("dialog[open]")
    dialog.get_by_role("button", name="Erstellen").click()
    expect(dialog).to_contain_text("Dieses Feld muss ausgefüllt werden.")
    dialog.get_by_label("Name", exact=True).fill("default")
    dialog.get_by_role("button", name="Erstellen").click()
    expect(dialog).to_contain_text("einen Schlüsselbund mit diesem Namen gibt es schon")
    assert_fits(tab)

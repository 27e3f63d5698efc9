"""The search: a page, and the dialog that every page of the frame has.

The API finds things. Pages and actions are found here: the dialog has all of the visitor's, and the
page without JavaScript filters them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from pqkeep_gateway.access.callers import OPERATORS, Caller, Permission
from pqkeep_gateway.api.search import MAX_TEXT, FoundKind
from pqkeep_gateway.portal.pages import OPERATOR_HOME, ROOT, Content, Page, Visit
from pqkeep_gateway.portal.reading import Section

ADDRESSES: Mapping[str, str] = {
    FoundKind.KEYRING: f"{ROOT}/keys?q=keyring:{{id}}",
    FoundKind.API_KEY: f"{ROOT}/api-keys/{{id}}",
    FoundKind.MEMBER: f"{ROOT}/team?q={{name}}",
    FoundKind.TENANT: f"{ROOT}{OPERATOR_HOME}/tenants/{{id}}",
    FoundKind.RECORD: f"{ROOT}/audit/{{id}}",
}
"""The address of each kind of thing, with its id or its name."""
WORDS: Mapping[str, str] = {FoundKind.API_KEY: "API key"}
"""The words for kinds, where they differ from the kind."""
ACTIONS = (
    ("Generate a key", "/keys#generate", "generate_key"),
    ("Import a key", "/keys/import", "import_key"),
    ("Create a keyring", "/keyrings#create", "create_keyring"),
    ("Show deleted keyrings", "/keyrings?q=is:deleted", "restore_keyring"),
    ("Create an API key", "/api-keys#create", "create_api_key"),
    ("Add an issuer of workloads' tokens", "/workloads#put-issuer", "put_workload_issuer"),
    ("Add a role for workloads", "/workloads#put-role", "put_workload_role"),
    ("Invite a member", "/team#invite", "invite"),
    ("Make a rule", "/migration#new-rule", "put_rules"),
    ("Keep checkpoints elsewhere", "/audit#keep", "list_audit_checkpoints"),
    ("Change your password", "/security#change-password", "change_password"),
    ("Set up an authenticator app", "/security/enroll", "enroll_mfa"),
    ("Create a tenant", f"{OPERATOR_HOME}/tenants#create", "change_tenant"),
)
"""Actions with their address, and the operation that the visitor must be allowed to call."""


class Place(NamedTuple):
    """A page or an action."""

    kind: str
    name: str
    url: str


def places(
    caller: Caller, pages: Iterable[Page], allows: Callable[[str], bool]
) -> tuple[Place, ...]:
    """Return the pages and actions of a visitor."""
    shown = [page for page in pages if page.is_listed and page.admits(caller)]
    is_operator = caller in OPERATORS
    return (
        *(Place("page", page.title, ROOT + page.path) for page in shown if page.path != PATH),
        *(
            Place("action", name, ROOT + path)
            for name, path, operation in ACTIONS
            if allows(operation) and (path.startswith((OPERATOR_HOME, "/audit")) or not is_operator)
        ),
    )


def address(kind: str, identifier: str, name: str) -> str:
    """Return the address of a found thing."""
    return ADDRESSES[kind].format(id=quote(identifier, safe=""), name=quote(name, safe=""))


async def _read(visit: Visit) -> Content:
    text = visit.query.get("q", "").strip()
    found = Section()
    if text:
        found = await visit.reader.section("search", text=text[:MAX_TEXT])
    return {"text": text, "found": found, "address": address, "words": WORDS}


PATH = "/search"
PAGES: tuple[Page, ...] = (
    Page(
        path=PATH,
        title="Search",
        template="search.html",
        permission=Permission.SEARCH,
        read=_read,
        icon="search",
        for_operators=True,
    ),
)

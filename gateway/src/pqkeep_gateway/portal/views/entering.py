"""Pages that need no sign-in."""

from collections.abc import Mapping

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.portal.pages import Content, Page, Visit, nothing
from pqkeep_gateway.storage.identities import Refusal

_REFUSALS: Mapping[str, str] = {
    Refusal.TOO_MANY: "Too many sign-in attempts from your network. Try again in a few minutes.",
    Refusal.UNAVAILABLE: "Your organization's sign-in is unavailable. Try again in a moment.",
    Refusal.COOKIES: "Your browser sent one of this service's cookies twice. They are deleted now."
    " Sign in again.",
    Refusal.EXPIRED: "The sign-in took too long, or began in another browser. Sign in again.",
    Refusal.CANCELLED: "Your organization did not sign you in. Try again.",
    Refusal.PROVIDER: "Your organization's sign-in sent an invalid response. Tell your"
    " administrators.",
    Refusal.EMAIL: "Your organization's sign-in sent no confirmed e-mail address that is allowed"
    " here. Tell your administrators.",
    Refusal.NO_MEMBER: "You are not a member here. Ask an owner of your organization for an"
    " invitation.",
    Refusal.NO_ROLE: "None of your groups has a role here. Ask your organization's administrators.",
}
"""The sign-in page's message for a refused single sign-on."""


async def _read_sign_in(visit: Visit) -> Content:
    return {
        "providers": await visit.reader.section("list_providers"),
        "refusal": _REFUSALS.get(visit.query.get("error", ""), ""),
    }


_PAGES = (
    ("/sign-in", "Sign in", "sign_in"),
    ("/resume", "One moment", "resume"),
    ("/sign-up", "Create an organization", "sign_up"),
    ("/registration", "Finish signing up", "registration"),
    ("/invitation", "Join your organization", "invitation"),
    ("/confirmed", "Confirmed", "confirmed"),
    ("/forgot-password", "Forgotten password", "forgot_password"),
    ("/reset-password", "Choose a new password", "reset_password"),
    ("/components", "Components", "components"),
)
"""Path, title, template. The links in e-mails have the paths of the forms with a token."""

_READ = {"/sign-in": _read_sign_in}

PAGES = tuple(
    Page(
        path=path,
        title=title,
        template=f"entering/{template}.html",
        permission=Permission.PUBLIC,
        read=_READ.get(path, nothing),
    )
    for path, title, template in _PAGES
)

NEEDS_JAVASCRIPT = Page(
    path="/needs-javascript",
    title="This form needs JavaScript",
    template="entering/needs_javascript.html",
    permission=Permission.PUBLIC,
    takes_forms=True,
)
"""The target of forms that are sent without JavaScript."""

DEMO = Page(
    path="/demo",
    title="Demo",
    template="entering/demo.html",
    permission=Permission.PUBLIC,
)
"""Signs the demo tenant's owner in by a link. Only for development."""

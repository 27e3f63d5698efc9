"""The members of a tenant, its invitations, and the operators' search.

All calls need the operator's credential. People use the portal, and API keys are refused.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from pqkeep._call import Call, Page, Pages, change, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Operation, WholeListing
from pqkeep.models import Invitation, Member, SearchResult, SearchResults

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Team(Generic[T_co]):
    """Members and invitations of a tenant, by the operator."""

    _transport: T_co

    @WholeListing
    def members(
        self,
        tenant_id: str,
        *,
        email: str | None = None,
        role: str | None = None,
        has_mfa: bool | None = None,
        not_signed_in_since: datetime | None = None,
    ) -> Pages[Member]:
        """Return the members that match every filter, the first to join first.

        ``email`` is a part of the address. ``role`` can be several, separated by commas.
        The time has an offset from UTC.
        """
        since = not_signed_in_since
        query = {
            "tenant_id": tenant_id,
            "email": email,
            "role": role,
            "mfa": None if has_mfa is None else str(has_mfa).lower(),
            "not_signed_in_since": None if since is None else since.isoformat(),
        }
        return lambda place: get("/team/members", _members, {**query, "after": place})

    @WholeListing
    def invitations(
        self, tenant_id: str, *, email: str | None = None, role: str | None = None
    ) -> Pages[Invitation]:
        """Return the valid invitations that match every filter, without their tokens."""
        query = {"tenant_id": tenant_id, "email": email, "role": role}
        return lambda place: get("/team/invitations", _invitations, {**query, "after": place})

    @Operation
    def invite(self, tenant_id: str, email: str, *, role: str) -> Call[Invitation]:
        """Invite a person. The token is in this response only, and valid for a week.

        An earlier invitation to the same address is replaced. Raises ConflictError for an address
        with an account.
        """
        path = f"/tenants/{in_path(tenant_id)}/invitations"
        return change(path, _invitation, {"email": email, "role": role})

    @Operation
    def withdraw(self, tenant_id: str, invitation_id: str) -> Call[None]:
        """Withdraw an invitation. Raises NotFoundError."""
        path = f"/team/invitations/{in_path(invitation_id)}"
        return change(path, _nothing, method="DELETE", query={"tenant_id": tenant_id})

    @Operation
    def change_role(self, tenant_id: str, member_id: str, *, role: str) -> Call[Member]:
        """Change a member's role. Raises NotFoundError, and ConflictError for the last owner."""
        body = {"tenant_id": tenant_id, "role": role}
        return change(f"/team/members/{in_path(member_id)}", _member, body, method="PATCH")

    @Operation
    def remove(self, tenant_id: str, member_id: str) -> Call[None]:
        """Remove a member, with all sessions. Raises NotFoundError, and ConflictError as above."""
        path = f"/team/members/{in_path(member_id)}"
        return change(path, _nothing, method="DELETE", query={"tenant_id": tenant_id})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Search(Generic[T_co]):
    """The search of the installation, by the operator."""

    _transport: T_co

    @Operation
    def find(self, text: str) -> Call[SearchResults]:
        """Return tenants with a text in their name, and the record of a number or request id."""
        return get("/search", _results, {"text": text})


def _nothing(_: Data) -> None:
    return None


def _members(data: Data) -> Page[Member]:
    return Page(items=tuple(map(_member, data.objects("members"))), next=data.text_or_none("next"))


def _member(data: Data) -> Member:
    return Member(
        id=data.text("id"),
        email=data.text("email"),
        role=data.text("role"),
        status=data.text("status"),
        has_mfa=data.flag("mfa_enabled"),
        last_sign_in_at=data.time_or_none("last_sign_in_at"),
        created_at=data.time("created_at"),
    )


def _invitations(data: Data) -> Page[Invitation]:
    invitations = tuple(map(_invitation, data.objects("invitations")))
    return Page(items=invitations, next=data.text_or_none("next"))


def _invitation(data: Data) -> Invitation:
    return Invitation(
        id=data.text("id"),
        email=data.text("email"),
        role=data.text("role"),
        expires_at=data.time("expires_at"),
        token=data.text_or_none("invitation_token"),
    )


def _results(data: Data) -> SearchResults:
    return SearchResults(
        results=tuple(
            SearchResult(
                kind=result.text("kind"),
                id=result.text("id"),
                name=result.text("name"),
                detail=result.text_or_none("detail"),
            )
            for result in data.objects("results")
        ),
        unavailable=data.texts_or_none("unavailable") or (),
    )

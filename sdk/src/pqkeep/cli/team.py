"""``pqkeep team`` and ``pqkeep search``, for the operator."""

from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import one_of

COLUMNS = {
    "id": "ID",
    "email": "E-MAIL",
    "role": "ROLE",
    "status": "STATUS",
    "has_mfa": "SECOND FACTOR",
    "last_sign_in_at": "LAST SIGN-IN",
}
INVITATION_COLUMNS = {"id": "ID", "email": "E-MAIL", "role": "ROLE", "expires_at": "EXPIRES"}
RESULT_COLUMNS = {"kind": "KIND", "id": "ID", "name": "NAME", "detail": "DETAIL"}
ROLES = ("owner", "admin", "developer", "viewer")

app = typer.Typer(
    name="team",
    help="As the operator, manage the members and invitations of a tenant.",
    no_args_is_help=True,
)

_Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="The tenant's id.")]
_Member = Annotated[str, typer.Argument(metavar="ID", help="The member's id.")]
_Role = Annotated[str, one_of(ROLES, metavar="ROLE", help="owner, admin, developer or viewer.")]
_EMAIL = typer.Option(
    metavar="TEXT", help="List only addresses with this text, ignoring case.", show_default=False
)
_PartOfEmail = Annotated[str | None, _EMAIL]
_AnyRole = Annotated[
    str | None, one_of(ROLES, metavar="ROLE", help="List only this role; several with commas.")
]


@command(app, "list")
def list_members(
    invocation: Invocation, *, tenant: _Tenant, email: _PartOfEmail = None, role: _AnyRole = None
) -> None:
    """List members, the first to join first."""
    with invocation.connect() as client:
        members = client.team.members(tenant, email=email, role=role)
    show_rows(invocation, "members", members, COLUMNS)


@command(app, "invitations")
def list_invitations(
    invocation: Invocation, *, tenant: _Tenant, email: _PartOfEmail = None, role: _AnyRole = None
) -> None:
    """List the valid invitations."""
    with invocation.connect() as client:
        invitations = client.team.invitations(tenant, email=email, role=role)
    show_rows(invocation, "invitations", invitations, INVITATION_COLUMNS)


@command(app, "invite")
def invite(
    invocation: Invocation,
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The person's address.")],
    *,
    role: _Role,
    tenant: _Tenant,
) -> None:
    """Invite a person. Shows the token, once; it is valid for a week."""
    with invocation.connect() as client:
        invitation = client.team.invite(tenant, email, role=role)
        page = f"{client.url}/portal/invitation"
    show_facts(invocation, invitation)
    invocation.note(f"pass this link on: {page}#{invitation.token}")


@command(app, "withdraw")
def withdraw(
    invocation: Invocation,
    invitation: Annotated[str, typer.Argument(metavar="ID", help="The invitation's id.")],
    *,
    tenant: _Tenant,
) -> None:
    """Withdraw an invitation. Its link stops working."""
    with invocation.connect() as client:
        client.team.withdraw(tenant, invitation)
    show_facts(invocation, {"invitation": invitation, "removed": True})


@command(app, "change-role")
def change_role(invocation: Invocation, member: _Member, *, role: _Role, tenant: _Tenant) -> None:
    """Change a member's role, from the member's next request on."""
    with invocation.connect() as client:
        show_facts(invocation, client.team.change_role(tenant, member, role=role))


@command(app, "remove")
def remove(invocation: Invocation, member: _Member, *, tenant: _Tenant) -> None:
    """Remove a member. All sessions of the member end."""
    with invocation.connect() as client:
        client.team.remove(tenant, member)
    show_facts(invocation, {"member": member, "removed": True})


def add_to(program: typer.Typer) -> None:
    """Add ``pqkeep search``."""

    @command(program, "search")
    def search(
        invocation: Invocation,
        text: Annotated[
            str,
            typer.Argument(
                metavar="TEXT", help="A part of a tenant's name, a record's number or a request id."
            ),
        ],
    ) -> None:
        """Find tenants and records, as the operator. A search leaves no record."""
        with invocation.connect() as client:
            results = client.search.find(text)
        show_rows(invocation, "results", results.results, RESULT_COLUMNS)
        if results.unavailable:
            invocation.note(f"not searched, because unavailable: {', '.join(results.unavailable)}")

"""/api/v1/tenants/{tenant_id}/invitations: letting people in."""

from pqkeep_gateway.access.principals import OperatorPrincipal, SessionPrincipal
from pqkeep_gateway.access.roles import PERMISSIONS, Permission, Role
from pqkeep_gateway.api.person_data import (
    EMAIL,
    INVITATION,
    ROLE,
    InvitationData,
    email_in,
    role_in,
)
from pqkeep_gateway.api.tenants import TENANT, visible_tenant
from pqkeep_gateway.http.about import About, Caller
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.people.sign_in import SignIn
from pqkeep_gateway.people.team import OwnersOnlyError
from pqkeep_gateway.people.users import EmailTakenError
from pqkeep_gateway.tenancy.tenants import Tenants


def endpoints(tenants: Tenants, sign_in: SignIn) -> tuple[Endpoint, ...]:
    """Return the endpoint of invitations."""

    async def invite(call: ApiCall) -> InvitationData:
        """Invite somebody by an e-mail address. The token is shown this once; pass it on.

        They get it by e-mail too, where the service sends any. It is good for a week. An earlier
        invitation to the same address is over. Owners are invited by owners and by the operator,
        who alone invite somebody again who was to be one.
        """
        tenant = await visible_tenant(call, tenants)
        if not isinstance(call.principal, OperatorPrincipal | SessionPrincipal):
            raise ApiError(Code.FORBIDDEN_001, "programs invite nobody")
        email, role = email_in(call.body), role_in(call.body)
        decides = _decides(call.principal)
        inviter = call.principal.user if isinstance(call.principal, SessionPrincipal) else None
        try:
            made = await sign_in.invite(tenant.id, email, role, call.attribution, inviter, decides)
        except OwnersOnlyError:
            raise ApiError(Code.FORBIDDEN_001, "only owners decide about owners") from None
        except EmailTakenError:
            raise ApiError(Code.CONFLICT_001, "somebody has this e-mail address", "email") from None
        return InvitationData(
            id=str(made.id),
            invitation_token=made.token,
            email=made.email,
            role=made.role,
            expires_at=timestamp(made.expires_at),
        )

    return (
        Endpoint(
            "POST",
            "/tenants/{tenant_id}/invitations",
            invite,
            201,
            takes_body=True,
            permission=Permission.TEAM,
            about=About(
                name="invite",
                caller=Caller.PEOPLE,
                parameters=(TENANT, EMAIL, ROLE),
                example=INVITATION,
                codes=frozenset({Code.CONFLICT_001}),
            ),
        ),
    )


def _decides(principal: OperatorPrincipal | SessionPrincipal) -> frozenset[Role]:
    """Return about whom somebody decides: about owners only owners and the operator."""
    if isinstance(principal, OperatorPrincipal):
        return frozenset(Role)
    decides_about_owners = Permission.OWNERS in PERMISSIONS[principal.role]
    return frozenset(Role) if decides_about_owners else frozenset(Role) - {Role.OWNER}

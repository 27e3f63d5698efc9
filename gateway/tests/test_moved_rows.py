"""An attacker with write access to the accounts database, but without the pepper, gains nothing.

Each test is one UPDATE that would give the attacker's own credential to another owner.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from gateway.tests.test_single_sign_on import SUBJECT, Sso, sso
from gateway.tests.world import (
    ATTRIBUTION,
    EMAIL,
    HERE,
    NEW_PASSWORD,
    OTHER_EMAIL,
    PASSWORD,
    World,
    add_tenant,
    new_tenant,
)

from pqkeep_gateway.access.api_key_limits import ApiKeyLimits
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credentials import CredentialKind
from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError, idempotency_key
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.access.scopes import scopes_in
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, mailed_token
from pqkeep_gateway.people.challenges import InvalidChallengeError, SecondFactorRequiredError
from pqkeep_gateway.people.second_factors import WrongCodeError
from pqkeep_gateway.people.sessions import Tokens
from pqkeep_gateway.people.sign_in import WrongPasswordError
from pqkeep_gateway.people.step_up import StepUpRequiredError
from pqkeep_gateway.signed_tokens import Condition
from pqkeep_gateway.storage.api_keys import AlreadyRotatedError, SqlApiKeys
from pqkeep_gateway.storage.database import microseconds, transaction
from pqkeep_gateway.storage.identities import Refusal
from pqkeep_gateway.storage.invitations import InvalidInvitationTokenError
from pqkeep_gateway.storage.operators import OperatorSession, SqlOperators, SqlOperatorSessions
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.storage.registrations import InvalidRegistrationTokenError
from pqkeep_gateway.storage.schema import (
    API_KEYS,
    CHALLENGES,
    IDEMPOTENCY_KEYS,
    IDENTITIES,
    INVITATIONS,
    OPERATOR_SESSIONS,
    OPERATORS,
    OUTGOING_MAIL,
    PASSWORD_RESETS,
    RECOVERY_CODES,
    REGISTRATIONS,
    SESSIONS,
    STEP_UP_TOKENS,
    TENANTS,
    USERS,
    WORKLOAD_ISSUERS,
    WORKLOAD_KEYS,
    WORKLOAD_ROLES,
)
from pqkeep_gateway.storage.sessions import InvalidRefreshTokenError
from pqkeep_gateway.storage.team import lock_team
from pqkeep_gateway.storage.tenant_status import change_under_mac
from pqkeep_gateway.storage.tenants import Tenant
from pqkeep_gateway.storage.users import Account, change_user
from pqkeep_gateway.storage.workloads import Exchange, Issuer, RoleNotFoundError, SqlWorkloads
from pqkeep_gateway.storage.workloads import Role as WorkloadRole
from pqkeep_gateway.tenancy.operators import Operators
from pqkeep_protocol.algorithms import GivenKeyAlgorithm
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION

__all__ = ["sso"]

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY_US = 86_400_000_000
SCOPES = '[{"operations":["sign"]}]'

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def change(world: World, table: sa.Table, **values: object) -> None:
    """Change every row of a table."""
    async with world.engine.begin() as connection:
        assert (await connection.execute(sa.update(table).values(**values))).rowcount


async def change_where(
    world: World, condition: sa.ColumnElement[bool], table: sa.Table, **values: object
) -> None:
    """Change the only matching row."""
    async with world.engine.begin() as connection:
        update = sa.update(table).where(condition).values(**values)
        assert (await connection.execute(update)).rowcount == 1


async def two_people(world: World) -> tuple[Tokens, Account, Account]:
    """Return the tokens and account of a viewer, the attacker, and the account of an owner."""
    await world.join(Role.OWNER, OTHER_EMAIL)
    tokens = await world.join(Role.VIEWER, EMAIL)
    return tokens, await world.account(EMAIL), await world.account(OTHER_EMAIL)


async def other_tenant(world: World) -> Tenant:
    """Return a tenant with an API key."""
    tenant = await add_tenant(world.engine, new_tenant())
    await world.api_keys.create(tenant, ATTRIBUTION)
    return tenant


async def test_an_api_key_is_its_tenant_s(world: World) -> None:
    """An API key in another tenant's row, or without its scopes, is invalid."""
    limits = ApiKeyLimits(scopes=scopes_in(SCOPES))
    made = await world.api_keys.create(world.tenant, ATTRIBUTION, limits=limits)
    store, digest = SqlApiKeys(world.engine), world.pepper.digest(made.plaintext)
    assert await store.find(digest) is not None
    await change(world, API_KEYS, scopes=None)
    assert await store.find(digest) is None
    await change(world, API_KEYS, scopes=SCOPES)
    assert await store.find(digest) is not None
    other = await add_tenant(world.engine, new_tenant())
    await change(world, API_KEYS, tenant_id=other.id)
    assert await store.find(digest) is None


@pytest.mark.threat("accounts-database-writer")
async def test_a_digest_put_into_another_api_key_s_row_opens_nothing(world: World) -> None:
    """The attacker's API key digest is invalid in another tenant's row."""
    tenant = await other_tenant(world)
    made = await world.api_keys.create(world.tenant, ATTRIBUTION)
    digest = world.pepper.digest(made.plaintext)
    await change_where(world, API_KEYS.c.tenant_id == world.tenant.id, API_KEYS, digest=b"\0" * 32)
    await change_where(world, API_KEYS.c.tenant_id == tenant.id, API_KEYS, digest=digest)
    assert await SqlApiKeys(world.engine).find(digest) is None


async def _deploy(store: SqlWorkloads, tenant: Tenant, url: str) -> tuple[Issuer, WorkloadRole]:
    """Store an issuer and a role of a tenant; return both."""
    common: dict[str, Any] = {"tenant": tenant.id, "changed_at": NOW, "changed_by": "user:x"}
    issuer = Issuer(
        name="ci", issuer=url, audience="a", algorithms=(GivenKeyAlgorithm.ES256,), **common
    )
    scopes = scopes_in(SCOPES)
    assert scopes is not None
    role = WorkloadRole(
        issuer="ci",
        name="deploy",
        conditions=(Condition("sub", ("x",)),),
        scopes=scopes,
        lifetime=timedelta(hours=1),
        **common,
    )
    await store.put_issuer(issuer, event(ATTRIBUTION, tenant.id, AuditEvent.PUT_WORKLOAD_ISSUER))
    await store.put_role(role, event(ATTRIBUTION, tenant.id, AuditEvent.PUT_WORKLOAD_ROLE))
    return await store.find_role(tenant.id, "deploy")


@pytest.mark.threat("accounts-database-writer")
async def test_a_workload_s_key_is_its_role_s(world: World) -> None:
    """No change of an issuer, a role or a key's row gives a token or a key more."""
    store = SqlWorkloads(world.engine)
    own_issuer, own = await _deploy(store, world.tenant, "https://own.example")
    other = await add_tenant(world.engine, new_tenant())
    other_issuer, theirs = await _deploy(store, other, "https://theirs.example")
    made = Exchange(b"d" * 32, b"t" * 32, NOW + timedelta(hours=1), NOW + timedelta(hours=1))
    exchanged = event(ATTRIBUTION, world.tenant.id, AuditEvent.EXCHANGE_TOKEN)
    await store.add_key(own_issuer, own, made, NOW, exchanged)
    found = await store.find(made.digest)
    assert found is not None
    assert found.principal.tenant == world.tenant.id
    own_role, their_role = (WORKLOAD_ROLES.c.id == role.id for role in (own, theirs))
    keys: tuple[tuple[sa.ColumnElement[bool], sa.Table, str, object, object], ...] = (
        (sa.true(), WORKLOAD_KEYS, "role_id", theirs.id, own.id),
        (sa.true(), WORKLOAD_KEYS, "digest", b"e" * 32, made.digest),
        (sa.true(), WORKLOAD_KEYS, "expires_at_us", 2**52, microseconds(made.expires_at)),
        (own_role, WORKLOAD_ROLES, "scopes", '[{"operations":["*"]}]', SCOPES),
    )
    for where, table, column, value, before in keys:
        await change_where(world, where, table, **{column: value})
        assert await store.find(made.digest) is None
        assert await store.find(b"e" * 32) is None
        await change_where(world, where, table, **{column: before})
    assert await store.find(made.digest) == found
    their_issuer = WORKLOAD_ISSUERS.c.id == other_issuer.id
    roles: tuple[tuple[sa.ColumnElement[bool], sa.Table, str, object, object], ...] = (
        (their_role, WORKLOAD_ROLES, "issuer_id", own_issuer.id, other_issuer.id),
        (their_role, WORKLOAD_ROLES, "conditions", "[]", '[["sub",["x"]]]'),
        (their_role, WORKLOAD_ROLES, "lifetime_seconds", 9_999, 3_600),
        (their_issuer, WORKLOAD_ISSUERS, "issuer", own_issuer.issuer, other_issuer.issuer),
        (their_issuer, WORKLOAD_ISSUERS, "audience", "b", "a"),
        (their_issuer, WORKLOAD_ISSUERS, "keys", "{}", None),
        (their_issuer, WORKLOAD_ISSUERS, "algorithms", '["RS256"]', '["ES256"]'),
    )
    for where, table, column, value, before in roles:
        await change_where(world, where, table, **{column: value})
        with pytest.raises(RoleNotFoundError):
            await store.find_role(other.id, "deploy")
        await change_where(world, where, table, **{column: before})
    assert await store.find_role(other.id, "deploy") == (other_issuer, theirs)


async def test_a_session_is_its_user_s(world: World) -> None:
    """A session in another user's row is invalid: both its tokens are refused."""
    tokens, attacker, victim = await two_people(world)
    await change_where(
        world, SESSIONS.c.user_id == attacker.user.id, SESSIONS, user_id=victim.user.id
    )
    assert await world.sessions.find(tokens.access, HERE) is None
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(tokens.refresh, b"", ATTRIBUTION)


@pytest.mark.threat("accounts-database-writer")
async def test_digests_put_into_another_session_open_nothing(world: World) -> None:
    """The digests of the attacker's tokens are invalid in another user's session."""
    tokens, attacker, victim = await two_people(world)
    async with world.engine.begin() as connection:
        is_own = SESSIONS.c.user_id == attacker.user.id
        await connection.execute(sa.delete(SESSIONS).where(is_own))
    await change(
        world,
        SESSIONS,
        access_digest=world.pepper.digest(tokens.access),
        refresh_digest=world.pepper.digest(tokens.refresh),
    )
    assert await world.sessions.find(tokens.access, HERE) is None
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(tokens.refresh, b"", ATTRIBUTION)
    assert victim.user.role is Role.OWNER


@pytest.mark.parametrize("column", ["access_expires_at_us", "refresh_expires_at_us"])
async def test_a_session_lasts_no_longer(world: World, column: str) -> None:
    """A session with a changed end is invalid."""
    tokens = await world.join()
    await change(world, SESSIONS, **{column: 2**62})
    assert await world.sessions.find(tokens.access, HERE) is None
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(tokens.refresh, b"", ATTRIBUTION)


async def test_a_value_of_another_type_is_not_the_gateway_s(world: World) -> None:
    """A row with a value of another type, which SQLite accepts, is ignored without a crash."""
    if world.engine.dialect.name == "postgresql":
        return  # its columns take nothing else
    tokens = await world.join()
    later = SESSIONS.c.access_expires_at_us + 0.5
    await change(world, SESSIONS, access_expires_at_us=later)
    assert await world.sessions.find(tokens.access, HERE) is None


async def test_a_refreshed_session_is_still_its_user_s(world: World) -> None:
    """The new tokens after a refresh are bound to the user: they are refused in another row."""
    tokens, attacker, victim = await two_people(world)
    tokens = await world.sessions.refresh(tokens.refresh, b"", ATTRIBUTION)
    assert (await world.principal(tokens)).user == attacker.user.id
    is_own = SESSIONS.c.user_id == attacker.user.id
    await change_where(world, is_own, SESSIONS, user_id=victim.user.id)
    assert await world.sessions.find(tokens.access, HERE) is None


@pytest.mark.threat("accounts-database-writer")
@pytest.mark.parametrize("column", ["role", "tenant_id", "email", "email_key"])
async def test_a_user_is_their_tenant_s(world: World, column: str) -> None:
    """A user with a changed role, tenant or address has no session and cannot sign in."""
    tokens = await world.join(Role.VIEWER)
    other = await add_tenant(world.engine, new_tenant())
    values = {"role": Role.OWNER, "tenant_id": other.id, "email": "x@y.z", "email_key": "x@y.z"}
    await change(world, USERS, **{column: values[column]})
    assert await world.sessions.find(tokens.access, HERE) is None
    for email in (EMAIL, "x@y.z"):
        with pytest.raises(WrongPasswordError):
            await world.sign_in.with_password(email, PASSWORD, ATTRIBUTION)


async def test_a_changed_role_is_bound_again(world: World) -> None:
    """After an owner changes a role, the member's row is valid and the session continues."""
    tokens, attacker, victim = await two_people(world)
    owner = await world.sign_in.with_password(OTHER_EMAIL, PASSWORD, ATTRIBUTION)
    by = await world.principal(owner)
    await world.members.change_role(world.tenant.id, attacker.user.id, Role.ADMIN, by, ATTRIBUTION)
    assert (await world.principal(tokens)).role is Role.ADMIN
    assert by.user == victim.user.id


@pytest.mark.threat("accounts-database-writer")
async def test_a_password_hash_is_its_user_s(world: World) -> None:
    """The attacker's password hash is invalid for another user."""
    _, attacker, victim = await two_people(world)
    await world.password_change.change(
        await world.principal(await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)),
        NEW_PASSWORD,
        ATTRIBUTION,
    )
    known = (await world.account(EMAIL)).password_hash
    is_victim = USERS.c.id == victim.user.id
    await change_where(world, is_victim, USERS, password_hash=known)
    with pytest.raises(WrongPasswordError):
        await world.sign_in.with_password(OTHER_EMAIL, NEW_PASSWORD, ATTRIBUTION)
    assert attacker.user.id != victim.user.id


async def test_factors_are_their_user_s(world: World) -> None:
    """An authenticator and recovery codes in another user's rows are invalid."""
    tokens, attacker, victim = await two_people(world)
    person = await world.principal(tokens)
    totp, codes = await world.enroll(person)
    salt = (await world.account(EMAIL)).totp_salt
    is_victim = USERS.c.id == victim.user.id
    async with world.engine.begin() as connection:
        await change_user(connection, victim.user.id, has_mfa=True)
    await change_where(world, is_victim, USERS, totp_salt=salt, last_totp_step=None)
    await change(world, RECOVERY_CODES, user_id=victim.user.id)
    world.now += 60
    account = await world.account(OTHER_EMAIL)
    for code in (totp.at(int(world.now)), codes[0]):
        with pytest.raises(WrongCodeError):
            await world.factors.check(account, code, ATTRIBUTION)
    assert attacker.user.id == person.user


@pytest.mark.threat("accounts-database-writer")
@pytest.mark.parametrize("column", ["has_mfa", "email_codes", "passkeys"])
async def test_a_second_factor_is_not_switched_off(world: World, column: str) -> None:
    """Without its factor in the row, a user has no session, and no sign-in by password alone."""
    tokens = await world.join(Role.OWNER)
    user = (await world.account(EMAIL)).user.id
    async with world.engine.begin() as connection:
        await change_user(connection, user, **{column: 1 if column == "passkeys" else True})
    assert await world.sessions.find(tokens.access, HERE) is not None
    await change(world, USERS, **{column: 0})
    assert await world.sessions.find(tokens.access, HERE) is None
    with pytest.raises(WrongPasswordError):
        await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)


@pytest.mark.threat("accounts-database-writer")
async def test_deleted_passkeys_leave_the_second_factor_required(world: World) -> None:
    """The number of passkeys is in the user's row, so a password alone is still not enough."""
    await world.join(Role.OWNER)
    user = (await world.account(EMAIL)).user.id
    async with world.engine.begin() as connection:
        await change_user(connection, user, passkeys=1)
    assert (await world.account(EMAIL)).has_second_factor
    with pytest.raises(SecondFactorRequiredError):
        await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)


async def test_a_step_up_token_is_its_user_s(world: World) -> None:
    """The attacker's step-up token is invalid in a stolen session."""
    tokens, attacker, victim = await two_people(world)
    token = (await world.step_up.issue(await world.principal(tokens), PASSWORD, ATTRIBUTION)).token
    stolen = await world.principal(
        await world.sign_in.with_password(OTHER_EMAIL, PASSWORD, ATTRIBUTION)
    )
    await change(world, STEP_UP_TOKENS, user_id=victim.user.id)

    async def act() -> None:
        raise AssertionError

    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(stolen, token, act, lambda _: True)
    assert attacker.user.id != stolen.user


@pytest.mark.threat("accounts-database-writer")
async def test_a_proof_lasts_no_longer(world: World) -> None:
    """A proof with a changed stored end is invalid, before and after its original end."""
    person = await world.person()
    given = await world.step_up.issue(person, PASSWORD, ATTRIBUTION, for_session=True)
    assert given.proof is not None
    assert await world.step_up.covers(person, given.proof)
    await change(world, SESSIONS, proof_until_us=SESSIONS.c.proof_until_us + DAY_US)
    assert not await world.step_up.covers(person, given.proof)
    world.now += 301
    assert not await world.step_up.covers(person, given.proof)


@pytest.mark.threat("accounts-database-writer")
async def test_a_reauthentication_lasts_no_longer(sso: Sso) -> None:
    """A reauthentication with a later end is invalid."""
    person = await sso.person()
    sso.fake.claims["auth_time"] = sso.world.now
    await sso.arrive(person)
    until_us = SESSIONS.c.reauthenticated_until_us
    await change(sso.world, SESSIONS, reauthenticated_until_us=until_us + DAY_US)
    assert await sso.step_up(person) is None
    await change(sso.world, SESSIONS, reauthenticated_until_us=until_us - DAY_US)
    assert await sso.step_up(person) is not None


async def test_a_challenge_is_its_user_s(world: World) -> None:
    """The attacker's challenge is invalid for another account."""
    tokens, attacker, victim = await two_people(world)
    await world.enroll(await world.principal(tokens))
    token = await world.challenge(EMAIL)
    await change(world, CHALLENGES, user_id=victim.user.id)
    with pytest.raises(InvalidChallengeError):
        await world.challenges.find(token, HERE)
    assert attacker.user.id != victim.user.id


@pytest.mark.parametrize("column", ["role", "tenant_id", "email_key", "expires_at_us"])
async def test_an_invitation_is_as_it_was_written(world: World, column: str) -> None:
    """An invitation with a changed tenant, role, address or end is invalid."""
    invited = await world.invite(EMAIL, Role.VIEWER)
    other = await add_tenant(world.engine, new_tenant())
    values = {
        "role": Role.OWNER,
        "tenant_id": other.id,
        "email_key": "x@y.z",
        "expires_at_us": 2**62,
    }
    await change(world, INVITATIONS, **{column: values[column]})
    with pytest.raises(InvalidInvitationTokenError):
        await world.invitations.accept(invited.token, PASSWORD, ATTRIBUTION)


async def test_a_registration_is_its_address_s(world: World) -> None:
    """A registration is invalid for another address."""
    token = await world.registration_token()
    await change(world, REGISTRATIONS, email=EMAIL, email_key=EMAIL)
    with pytest.raises(InvalidRegistrationTokenError):
        await world.registration.complete(token, "x", PASSWORD, ATTRIBUTION)


async def test_a_password_reset_is_its_address_s(world: World) -> None:
    """A reset is invalid for another person."""
    await two_people(world)
    token = await world.reset_token(EMAIL)
    await change(world, PASSWORD_RESETS, email_key=OTHER_EMAIL)
    with pytest.raises(InvalidPasswordResetTokenError):
        await world.resets.complete(token, NEW_PASSWORD, ATTRIBUTION)


@pytest.mark.threat("accounts-database-writer")
async def test_a_mail_to_another_recipient_has_another_token(world: World) -> None:
    """A redirected reset mail has a token that resets nothing."""
    await two_people(world)
    await world.resets.begin(OTHER_EMAIL, ATTRIBUTION)
    is_reset = OUTGOING_MAIL.c.kind == MailKind.PASSWORD_RESET
    await change_where(world, is_reset, OUTGOING_MAIL, recipient=EMAIL)
    mail = await world.mail(MailKind.PASSWORD_RESET)
    assert mail.to == EMAIL
    token = mailed_token(mail, CredentialKind.PASSWORD_RESET, world.pepper)
    with pytest.raises(InvalidPasswordResetTokenError):
        await world.resets.complete(token, NEW_PASSWORD, ATTRIBUTION)


async def test_an_identity_is_its_member_s(sso: Sso) -> None:
    """An identity is invalid for another member."""
    world = sso.world
    await world.join(Role.OWNER, OTHER_EMAIL)
    await sso.person()
    owner = await world.account(OTHER_EMAIL)
    await change_where(world, IDENTITIES.c.subject == SUBJECT, IDENTITIES, user_id=owner.user.id)
    assert await sso.refusal() is Refusal.NO_MEMBER


async def test_an_operator_s_credential_is_that_operator_s(world: World) -> None:
    """A credential is invalid under another operator's name; a rotation makes it valid again."""
    operators, store = (
        Operators(SqlOperators(world.engine), world.pepper),
        SqlOperators(world.engine),
    )
    await operators.add("ada")
    digest = world.pepper.digest(await operators.rotate("ada"))
    assert await store.find(digest) == OperatorPrincipal("ada")
    await change(world, OPERATORS, name="root")
    assert await store.find(digest) is None


ADA = OperatorPrincipal("ada", is_read_only=True)


async def test_an_operator_s_session_is_that_operator_s(world: World) -> None:
    """A session is invalid for another operator."""
    operators, store = (
        Operators(SqlOperators(world.engine), world.pepper),
        SqlOperators(world.engine),
    )
    first, second = [world.pepper.digest(await operators.add(name)) for name in ("ada", "grace")]
    assert await store.find(second) == OperatorPrincipal("grace")
    sessions = SqlOperatorSessions(world.engine)
    now = (await operators.list())[0].added_at
    begun = event(ATTRIBUTION, INSTALLATION, AuditEvent.OPERATOR_SIGN_IN)
    await sessions.add(b"s" * 32, OperatorSession(first, now, now, HERE), begun)
    found = await sessions.find(b"s" * 32)
    assert found is not None
    assert found.operator == ADA
    await change(world, OPERATOR_SESSIONS, operator_digest=second)
    assert await sessions.find(b"s" * 32) is None


async def test_an_idempotency_key_is_its_tenant_s(world: World) -> None:
    """A repetition with another tenant's stored response is refused."""
    key = idempotency_key("once", OperatorPrincipal(), HERE, ["create"])
    await world.api_keys.create(world.tenant, ATTRIBUTION, idempotency_key=key)
    other = await other_tenant(world)
    is_key = IDEMPOTENCY_KEYS.c.key == key.idempotency.key
    await change_where(world, is_key, IDEMPOTENCY_KEYS, tenant_id=other.id)
    with pytest.raises(IdempotencyKeyReusedError):
        await world.api_keys.create(world.tenant, ATTRIBUTION, idempotency_key=key)


async def test_a_changed_api_key_is_not_rotated_into_a_good_one(world: World) -> None:
    """The rotation of an API key does not copy limits that no gateway wrote."""
    limits = ApiKeyLimits(scopes=scopes_in(SCOPES))
    await world.api_keys.create(world.tenant, ATTRIBUTION, limits=limits)
    await change(world, API_KEYS, scopes=None)
    with pytest.raises(AlreadyRotatedError):
        await world.api_keys.rotate(world.tenant.id, 1, ATTRIBUTION)


@pytest.mark.threat("accounts-database-writer")
@pytest.mark.parametrize(
    "changed",
    [
        {"requires_approval": False},
        {"requires_mfa": False},
        {"tier": "free"},
        {"subscription": "ended"},
        {"mac": bytes(32)},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_a_tenant_s_requirements_are_not_switched_off(
    world: World, changed: dict[str, object]
) -> None:
    """With a changed row, a second factor and an approval are required, on every plan."""
    person = await world.person()
    tenant = world.tenant.id
    required = {"requires_mfa": True, "requires_approval": True, "tier": "professional"}
    async with transaction(world.engine) as connection:
        await change_under_mac(connection, tenant, required)
    assert await world.stored_tenants.list_forged() == []
    await change(world, TENANTS, **changed)
    stored = await world.stored_tenants.get(tenant)
    assert stored.requires_mfa
    assert stored.requires_approval
    begun = await world.sessions.begin(await world.account(), ATTRIBUTION)
    assert (await world.principal(begun)).must_enroll
    async with transaction(world.engine) as connection:
        assert (await lock_team(connection, tenant)).requires_approval
    assert await world.stored_tenants.list_forged() == [tenant]
    await world.stored_tenants.save_mfa_requirement(
        tenant, event(ATTRIBUTION, tenant, AuditEvent.CHANGE_ORGANIZATION), required=False
    )
    assert await world.stored_tenants.list_forged() == []
    stored = await world.stored_tenants.get(tenant)
    assert (stored.requires_mfa, stored.requires_approval) == (False, True)
    assert person.tenant == tenant


async def test_a_tenant_s_row_is_not_another_one_s(world: World) -> None:
    """The requirements and the MAC of another tenant's row count as switched on."""
    other = await add_tenant(world.engine, new_tenant())
    async with world.engine.begin() as connection:
        query = sa.select(TENANTS.c.mac).where(TENANTS.c.id == other.id)
        mac = (await connection.execute(query)).scalar_one()
    assert not (await world.stored_tenants.get(world.tenant.id)).requires_approval
    await change_where(world, TENANTS.c.id == world.tenant.id, TENANTS, mac=mac)
    assert (await world.stored_tenants.get(world.tenant.id)).requires_approval

"""Operators sign in at a provider: groups become roles, and a change needs a new sign-in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from gateway.tests.test_moved_rows import change
from gateway.tests.test_single_sign_on import CALLBACK, ISSUER, SUBJECT, FakeProvider
from gateway.tests.world import ATTRIBUTION, HERE, World
from sqlalchemy import select

from pqkeep_gateway.access.admission import Authenticator
from pqkeep_gateway.access.callers import OperatorRole
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.principals import OperatorPerson, OperatorPrincipal
from pqkeep_gateway.access.rate_limit import Limit, MemoryRateLimiter
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.people.single_sign_on import (
    Beginning,
    CallbackQuery,
    OperatorArrived,
    OperatorSignOn,
    ProviderRequests,
    SingleSignOn,
)
from pqkeep_gateway.storage.identities import Provider, Refusal, RefusedError, SqlIdentities
from pqkeep_gateway.storage.last_uses import SqlLastUses
from pqkeep_gateway.storage.operators import SqlOperators, SqlOperatorSessions
from pqkeep_gateway.storage.schema import OPERATOR_SESSIONS
from pqkeep_gateway.storage.sessions import SessionNotFoundError
from pqkeep_gateway.tenancy.operators import NotAgainError, Operators, OperatorSessions
from pqkeep_protocol.keys import INSTALLATION

ON_BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
HOUR = 3600
PROVIDER = Provider(
    name="corp",
    label="Corp",
    tenant=INSTALLATION,
    issuer=ISSUER,
    client_id="pqkeep",
    scopes=("openid", "email"),
    groups_claim="groups",
    roles={},
    default_role=None,
    creates_members=False,
    email_domains=frozenset(),
    operator_roles={
        "root": OperatorRole.ADMIN,
        "desk": OperatorRole.TENANT_ADMIN,
        "audit": OperatorRole.READ_ONLY,
    },
)


class Desk:
    """A provider of operators, and a browser."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.provider = PROVIDER
        self.fake = FakeProvider(world)
        self.fake.claims = {
            "sub": SUBJECT,
            "email": "ada@example.com",
            "email_verified": True,
            "groups": ["staff", "desk"],
        }
        self.budget = SourceBudget(Limit(1000, 60), world.clock)

    @property
    def sessions(self) -> OperatorSessions:
        """The sessions under test, with the present settings."""
        world = self.world
        lookups = CredentialLookups(world.clock)
        authenticator = Authenticator(
            {},
            SqlOperators(world.engine).find,
            lookups,
            MemoryRateLimiter(world.clock),
            world.pepper,
            None,
            LastUses(SqlLastUses(world.engine)),
            world.clock,
        )
        return OperatorSessions(
            SqlOperatorSessions(world.engine),
            authenticator,
            lookups,
            world.pepper,
            world.audit_delivery,
            None,
            world.clock,
            [self.provider],
        )

    @property
    def sign_on(self) -> OperatorSignOn:
        """The single sign-on under test."""
        requests = ProviderRequests(self.fake.metadata, self.fake.exchange)
        world = self.world
        return OperatorSignOn(
            self.provider,
            requests,
            self.sessions,
            self.budget,
            world.pepper,
            world.audit_delivery,
            world.clock,
        )

    @property
    def tenants(self) -> SingleSignOn:
        """A tenant's single sign-on at the same client of the same provider."""
        world = self.world
        return SingleSignOn(
            replace(self.provider, name="acme", tenant=world.tenant.id, operator_roles={}),
            ProviderRequests(self.fake.metadata, self.fake.exchange),
            SqlIdentities(world.engine),
            world.sessions,
            self.budget,
            world.pepper,
            world.audit_delivery,
            world.clock,
        )

    async def begin(self, step_up: OperatorPrincipal | None = None) -> tuple[Beginning, str]:
        """Begin a sign-in; return the browser's cookie and the state."""
        begun = await self.sign_on.begin("/portal", CALLBACK, HERE, step_up=step_up)
        query = dict(part.split("=", 1) for part in begun.url.partition("?")[2].split("&"))
        self.fake.nonce = query["nonce"]
        return begun, query["state"]

    async def finish(self, begun: Beginning, state: str) -> OperatorArrived:
        """Finish a sign-in."""
        query = CallbackQuery(state, "a code", "", "")
        return await self.sign_on.finish(begun.cookie, query, CALLBACK, ATTRIBUTION)

    async def arrive(self, step_up: OperatorPrincipal | None = None) -> OperatorArrived:
        """Begin and finish a sign-in."""
        return await self.finish(*await self.begin(step_up))

    async def token(self, *groups: str) -> str:
        """Sign in, with these groups if any; return the session's token."""
        if groups:
            self.fake.claims["groups"] = list(groups)
        token = (await self.arrive()).token
        assert token is not None
        return token

    async def find(self, token: str) -> OperatorPrincipal | None:
        """Return the operator of a session token."""
        return await self.sessions.find(token, HERE)

    async def person(self, *groups: str) -> OperatorPrincipal:
        """Sign in; return the session's operator."""
        found = await self.find(await self.token(*groups))
        assert found is not None
        return found

    async def refusal(self, step_up: OperatorPrincipal | None = None, **claims: Any) -> Refusal:
        """Return the reason of a refused sign-in."""
        self.fake.claims |= claims
        with pytest.raises(RefusedError) as refused:
            await self.arrive(step_up)
        return refused.value.reason

    @property
    def recorded(self) -> list[tuple[str, str, str]]:
        """Return operation, principal and policy of the operators' events, in order."""
        return [
            (entry.operation, entry.principal, entry.policy)
            for entry in self.world.log.recorded.values()
            if entry.tenant == INSTALLATION
        ]


@pytest.fixture
def desk(world: World) -> Desk:
    """A provider that signs in a tenant admin."""
    return Desk(world)


@ON_BOTH
async def test_a_person_signs_in_with_the_role_of_the_groups(desk: Desk) -> None:
    """The session is the person's, with issuer, subject, address and role in session and log."""
    found = await desk.person()
    assert found == OperatorPrincipal(
        None,
        is_read_only=True,
        role=OperatorRole.TENANT_ADMIN,
        person=OperatorPerson("corp", SUBJECT),
    )
    assert found.person is not None
    assert found.person.email == "ada@example.com"
    assert desk.recorded == [
        (
            "operator-sign-in",
            f"operator:corp:{SUBJECT}/tenant-admin",
            "provider-corp ada@example.com",
        )
    ]


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["root", "desk", "audit"], OperatorRole.ADMIN),
        (["audit", "desk"], OperatorRole.TENANT_ADMIN),
        (["audit", 7, None, ["root"]], OperatorRole.READ_ONLY),
        ("audit", OperatorRole.READ_ONLY),
        ([f"group-{number}" for number in range(2000)] + ["audit"], OperatorRole.READ_ONLY),
    ],
)
async def test_the_most_powerful_group_counts(
    desk: Desk, groups: object, role: OperatorRole
) -> None:
    """A list, a single text and a very long list of groups give the role that they name."""
    desk.fake.claims["groups"] = groups
    assert (await desk.person()).role is role


@pytest.mark.threat("operator-sign-on")
@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([], Refusal.NO_GROUPS),
        (None, Refusal.NO_GROUPS),
        ({"root": True}, Refusal.NO_GROUPS),
        ("", Refusal.NO_ROLE),
        ("root,desk", Refusal.NO_ROLE),
        (["ROOT", "Root", " root", "root\u0000", "admin", "r\u043eot"], Refusal.NO_ROLE),
    ],
)
async def test_a_person_without_a_mapped_group_is_refused(
    desk: Desk, groups: object, reason: Refusal
) -> None:
    """Another case, a joined text or no group gives no role; the log has the refused person."""
    assert await desk.refusal(groups=groups) is reason
    assert desk.recorded == [
        ("operator-sign-in", f"operator:corp:{SUBJECT}", f"provider-corp-{reason}")
    ]


@pytest.mark.threat("operator-sign-on")
@ON_BOTH
async def test_a_person_who_left_the_group_loses_every_session(desk: Desk) -> None:
    """At the next sign-in without a group, or with another role, the earlier sessions end."""
    token = await desk.token()
    other = await desk.token("audit")
    assert await desk.find(token) is None
    assert await desk.find(other) is not None
    assert await desk.refusal(groups=["staff"]) is Refusal.NO_ROLE
    assert await desk.find(other) is None


@pytest.mark.threat("stolen-operator-cookie")
async def test_a_session_ends_after_an_hour(desk: Desk) -> None:
    """A person's session ends an hour after its start, however often it is used."""
    token = await desk.token()
    for _ in range(3):
        desk.world.now += HOUR / 4
        assert await desk.find(token) is not None
    desk.world.now += HOUR / 4
    assert await desk.find(token) is None


@pytest.mark.threat("operator-sign-on")
@pytest.mark.parametrize(
    "changed",
    [
        {"operator_roles": {"desk": OperatorRole.READ_ONLY}},
        {"name": "other"},
        {"issuer": "https://other.example"},
        {"client_id": "other"},
        {"email_domains": frozenset({"example.org"})},
    ],
)
async def test_a_change_of_the_settings_ends_sessions(desk: Desk, changed: dict[str, Any]) -> None:
    """After a change of the provider or its roles in the settings, no earlier session is valid."""
    token = await desk.token()
    desk.provider = replace(desk.provider, **changed)
    assert await desk.find(token) is None


async def test_all_sessions_can_be_listed_and_ended(desk: Desk) -> None:
    """The command lists people's sessions and ends all; the log has it."""
    token = await desk.token()
    operators = Operators(SqlOperators(desk.world.engine), desk.world.pepper)
    (listed,) = await SqlOperators(desk.world.engine).list_sessions(date_of(desk.world.now))
    assert listed.operator == await desk.find(token)
    assert await operators.end_sessions() == 1
    assert await desk.find(token) is None
    await desk.world.audit_delivery.empty()
    assert desk.recorded[-1] == ("end-operator-sessions", "pqkeepd", "")


async def test_one_session_is_listed_and_ended(desk: Desk) -> None:
    """A session is ended by its identifier, once. Other sessions stay; the log has both people."""
    ended, kept = await desk.token(), await desk.token()
    listed = {session.digest: name for name, session in await desk.sessions.list()}
    name = listed[desk.world.pepper.digest(ended)]
    by_ada = ATTRIBUTION.by("operator:ada")
    await desk.sessions.end_listed(name, by_ada)
    assert await desk.find(ended) is None
    assert await desk.find(kept)
    assert name not in dict(await desk.sessions.list())
    assert desk.recorded[-1] == (
        *("end-operator-session", "operator:ada"),
        f"session of operator:corp:{SUBJECT}/tenant-admin",
    )
    with pytest.raises(SessionNotFoundError):
        await desk.sessions.end_listed(name, by_ada)


async def test_sessions_that_are_not_valid_are_not_listed(desk: Desk) -> None:
    """A session is not listed if the settings ended it, or if it is too old."""
    await desk.token()
    assert len(await desk.sessions.list()) == 1
    desk.provider = replace(desk.provider, client_id="other")
    assert not await desk.sessions.list()
    desk.provider = PROVIDER
    desk.world.now += HOUR
    assert not await desk.sessions.list()


@pytest.mark.threat("accounts-database-writer")
@ON_BOTH
@pytest.mark.parametrize(
    "changes", [{"role": "admin"}, {"subject": "grace"}, {"provider": "root"}, {"email": "x@y.z"}]
)
async def test_a_changed_row_is_ignored(desk: Desk, changes: dict[str, str]) -> None:
    """A session with another role or person in the database is not a session."""
    token = await desk.token()
    await change(desk.world, OPERATOR_SESSIONS, **changes)
    assert await desk.find(token) is None


@pytest.mark.threat("operator-sign-on")
async def test_a_sign_in_of_a_tenant_is_not_an_operators(desk: Desk) -> None:
    """State, nonce and ID token of a tenant's sign-in are refused for an operator, and reversed."""
    begun = await desk.tenants.begin("/portal", CALLBACK, HERE)
    query = dict(part.split("=", 1) for part in begun.url.partition("?")[2].split("&"))
    desk.fake.nonce = query["nonce"]
    with pytest.raises(RefusedError) as refused:
        await desk.finish(begun, query["state"])
    assert refused.value.reason is Refusal.EXPIRED
    own, state = await desk.begin()
    desk.fake.nonce = query["nonce"]  # an ID token for the tenant's sign-in
    with pytest.raises(RefusedError) as refused:
        await desk.finish(own, state)
    assert refused.value.reason is Refusal.PROVIDER
    own, state = await desk.begin()
    with pytest.raises(RefusedError) as refused:
        await desk.tenants.finish(own.cookie, CallbackQuery(state, "code"), CALLBACK, ATTRIBUTION)
    assert refused.value.reason is Refusal.EXPIRED


@pytest.mark.threat("operator-sign-on")
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example"},
        {"aud": "other"},
        {"aud": ["pqkeep", "other"]},
        {"nonce": "x"},
        {"exp": 1},
        {"sub": ""},
        {"sub": "ad\u0430"},
    ],
)
async def test_a_token_for_another_client_is_refused(desk: Desk, claims: dict[str, Any]) -> None:
    """A token with a wrong issuer, audience, nonce, time or subject signs no operator in."""
    assert await desk.refusal(**claims) is Refusal.PROVIDER
    async with desk.world.engine.connect() as connection:
        assert (await connection.execute(select(OPERATOR_SESSIONS))).all() == []


@pytest.mark.threat("operator-sign-on")
@ON_BOTH
async def test_a_callback_is_used_once(desk: Desk) -> None:
    """Of 8 callbacks at once with one state exactly one signs in; a later one does not."""
    begun, state = await desk.begin()
    outcomes = await asyncio.gather(
        *(desk.finish(begun, state) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(outcome, OperatorArrived) for outcome in outcomes) == 1
    with pytest.raises(RefusedError):
        await desk.finish(begun, state)


@pytest.mark.parametrize("cookie", ["", "x", "e30", "W10"])
async def test_a_callback_needs_the_browsers_own_cookie(desk: Desk, cookie: str) -> None:
    """Without the cookie of this sign-in, its state is refused, so an attacker cannot sign a victim in."""
    _, state = await desk.begin()
    with pytest.raises(RefusedError) as refused:
        await desk.finish(Beginning("", cookie), state)
    assert refused.value.reason is Refusal.EXPIRED
    assert desk.recorded == []


async def test_an_unverified_address_is_not_shown(desk: Desk) -> None:
    """An address without email_verified is ignored, and refused where a domain is required."""
    desk.fake.claims["email_verified"] = False
    found = await desk.person()
    assert found.person is not None
    assert found.person.email is None
    desk.provider = replace(desk.provider, email_domains=frozenset({"example.com"}))
    assert await desk.refusal() is Refusal.EMAIL
    assert await desk.refusal(email_verified=True, email="ada@evil.example") is Refusal.EMAIL


async def test_long_and_strange_subjects_have_distinct_names(desk: Desk) -> None:
    """No subject ends the name in the log early, or is longer than the log's field."""
    subjects = ["a/admin", "a/read-only", "a b", "a%2Fadmin", "x" * 255, "x" * 254, "auth0|1"]
    names = {
        str(OperatorPrincipal(None, person=OperatorPerson("c" * 32, item))) for item in subjects
    }
    assert len(names) == len(subjects)
    assert all(len(name) <= 128 and name.count("/") == 1 for name in names)


async def _steps(desk: Desk, person: OperatorPrincipal) -> str:
    """Sign in again; return the cookie's token."""
    desk.fake.claims["auth_time"] = desk.world.now
    return (await desk.arrive(person)).reauthentication


async def _done() -> str:
    return "done"


async def _conflict() -> str:
    raise ValueError("conflict")


def _spend(
    desk: Desk,
    person: OperatorPrincipal,
    cookie: str,
    *,
    is_covered: bool = True,
    action: Callable[[], Awaitable[str]] = _done,
) -> Awaitable[str]:
    return desk.sessions.spend(
        person, cookie, action, lambda error: isinstance(error, ValueError), is_covered=is_covered
    )


@pytest.mark.threat("stolen-operator-cookie")
@ON_BOTH
async def test_a_change_needs_a_new_sign_in(desk: Desk) -> None:
    """The first change may be any; others are covered until five minutes later."""
    person = await desk.person()
    for cookie in ("", "x", new_credential(CredentialKind.REAUTHENTICATION)):
        with pytest.raises(NotAgainError):
            await _spend(desk, person, cookie)
    cookie = await _steps(desk, person)
    assert await _spend(desk, person, cookie, is_covered=False) == "done"
    assert await _spend(desk, person, cookie) == "done"
    with pytest.raises(NotAgainError):
        await _spend(desk, person, cookie, is_covered=False)
    desk.world.now += 300
    with pytest.raises(NotAgainError):
        await _spend(desk, person, cookie)


@ON_BOTH
async def test_a_change_without_effect_may_be_tried_again(desk: Desk) -> None:
    """A refused request leaves the new sign-in unused. Of concurrent requests only one acts."""
    person = await desk.person()
    cookie = await _steps(desk, person)
    with pytest.raises(ValueError, match="conflict"):
        await _spend(desk, person, cookie, is_covered=False, action=_conflict)
    outcomes = await asyncio.gather(
        *(_spend(desk, person, cookie, is_covered=False) for _ in range(8)),
        return_exceptions=True,
    )
    assert outcomes.count("done") == 1


@pytest.mark.threat("stolen-operator-cookie")
async def test_another_session_or_person_cannot_use_it(desk: Desk) -> None:
    """The proof belongs to one session; another person cannot confirm it."""
    first, second = await desk.person(), await desk.person()
    cookie = await _steps(desk, first)
    with pytest.raises(NotAgainError):
        await _spend(desk, second, cookie)
    assert await desk.refusal(first, sub="grace") is Refusal.OTHER_PERSON
    assert await _spend(desk, first, cookie) == "done"


async def test_a_new_sign_in_must_be_new_and_with_the_same_role(desk: Desk) -> None:
    """An old auth_time is refused; a changed role ends the session."""
    token = await desk.token()
    person = await desk.find(token)
    desk.fake.claims["auth_time"] = desk.world.now - 3600
    assert await desk.refusal(person) is Refusal.NOT_AGAIN
    desk.fake.claims["auth_time"] = desk.world.now
    assert await desk.refusal(person, groups=["root"]) is Refusal.OTHER_PERSON
    assert await desk.find(token) is None


async def test_without_the_provider_nobody_new_signs_in(desk: Desk) -> None:
    """While the provider is away sign-ins are refused; sessions and credentials go on."""
    token = await desk.token()
    operators = Operators(SqlOperators(desk.world.engine), desk.world.pepper)
    credential = await operators.add("break-glass", OperatorRole.READ_ONLY)
    desk.fake.is_unavailable = True
    assert await desk.refusal() is Refusal.UNAVAILABLE
    assert await desk.find(token) is not None
    principal, _ = await desk.sessions.begin(credential, ATTRIBUTION)
    assert (principal.name, principal.role) == ("break-glass", OperatorRole.READ_ONLY)

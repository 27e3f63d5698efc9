"""Single sign-on: sign-ins, new members, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, urlsplit

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    EMAIL,
    HERE,
    NEW_PASSWORD,
    OPERATOR,
    OTHER_EMAIL,
    PASSWORD,
    World,
    add_tenant,
    new_tenant,
)

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.outgoing_mail import MailKind
from pqkeep_gateway.people.identity_providers import Metadata
from pqkeep_gateway.people.passwords import PasswordsDisabledError
from pqkeep_gateway.people.second_factors import WrongCodeError
from pqkeep_gateway.people.sign_in import WrongPasswordError
from pqkeep_gateway.people.single_sign_on import (
    Arrived,
    Beginning,
    CallbackQuery,
    ProviderRequests,
    SingleSignOn,
)
from pqkeep_gateway.people.step_up import SteppedUp, StepUpMethod, StepUpMethods
from pqkeep_gateway.storage.identities import Provider, Refusal, RefusedError, SqlIdentities
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.storage.schema import USED_SIGN_INS
from pqkeep_gateway.storage.tenants import Tenant
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent

ON_BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ISSUER = "https://login.example.org"
CALLBACK = "https://keys.example.org/portal/sso/example/callback"
SUBJECT = "subject-1"


@dataclass
class FakeProvider:
    """A provider with claims that a test sets."""

    world: World
    claims: dict[str, object] = field(default_factory=dict)
    nonce: str = ""
    is_unavailable: bool = False
    names_itself: bool = False

    async def metadata(self) -> Metadata:
        """Return fixed endpoints."""
        if self.is_unavailable:
            raise UnavailableError
        return Metadata(
            issuer=ISSUER,
            authorization_endpoint=f"{ISSUER}/authorize?tenant=1",
            token_endpoint=f"{ISSUER}/token",
            authorization_response_iss_parameter_supported=self.names_itself,
        )

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> Mapping[str, object]:
        """Return the claims, with current times unless the test sets them."""
        now = self.world.now
        fresh = {"iss": ISSUER, "aud": "pqkeep", "exp": now + 60, "iat": now, "nonce": self.nonce}
        return {**fresh, **self.claims}


@dataclass
class Sso:
    """A provider of the world's tenant, and a browser."""

    world: World
    provider: Provider
    fake: FakeProvider
    cookie: str = ""
    """The browser's cookies after the last step-up's callback."""

    @property
    def sign_on(self) -> SingleSignOn:
        """The single sign-on under test."""
        world = self.world
        return SingleSignOn(
            self.provider,
            ProviderRequests(self.fake.metadata, self.fake.exchange),
            SqlIdentities(world.engine),
            world.sessions,
            SourceBudget(Limit(1000, 60), world.clock),
            world.pepper,
            world.audit_delivery,
            world.clock,
        )

    async def begin(self, step_up: SessionPrincipal | None = None) -> tuple[Beginning, str]:
        """Begin a sign-in; return the browser's cookie and the state."""
        begun = await self.sign_on.begin("/portal/keys", CALLBACK, HERE, step_up=step_up)
        query = parse_qs(urlsplit(begun.url).query)
        self.fake.nonce = query["nonce"][0]
        return begun, query["state"][0]

    async def finish(self, begun: Beginning, state: str, issuer: str = "") -> Arrived:
        """Finish a sign-in."""
        query = CallbackQuery(state, "a code", "", issuer)
        arrived = await self.sign_on.finish(begun.cookie, query, CALLBACK, ATTRIBUTION)
        self.cookie = arrived.reauthentication
        return arrived

    async def arrive(self, step_up: SessionPrincipal | None = None) -> Arrived:
        """Begin and finish a sign-in."""
        return await self.finish(*await self.begin(step_up))

    async def person(self) -> SessionPrincipal:
        """Sign in; return the session."""
        arrived = await self.arrive()
        assert arrived.tokens is not None
        return await self.world.principal(arrived.tokens)

    async def step_up(
        self, person: SessionPrincipal, cookie: str | None = None
    ) -> SteppedUp | None:
        """Step up with the browser's cookie or another one."""
        shown = self.cookie if cookie is None else cookie
        return await self.world.step_up.issue_after_reauthentication(person, shown, ATTRIBUTION)

    async def refusal(self, step_up: SessionPrincipal | None = None) -> Refusal:
        """Return the reason of a refused sign-in."""
        with pytest.raises(RefusedError) as refused:
            await self.arrive(step_up)
        return refused.value.reason

    @property
    def policies(self) -> list[tuple[str, str]]:
        """Return the recorded events of the provider with their policies, in order."""
        recorded = self.world.log.recorded.values()
        return [(entry.operation, entry.policy) for entry in recorded if "provider" in entry.policy]


@pytest.fixture
async def sso(world: World) -> Sso:
    """A provider that creates members for everybody at example.com."""
    provider = Provider(
        name="example",
        label="Example",
        tenant=world.tenant.id,
        issuer=ISSUER,
        client_id="pqkeep",
        scopes=("openid", "email"),
        groups_claim="groups",
        roles={"owners": Role.OWNER, "keys": Role.ADMIN, "staff": Role.VIEWER},
        default_role=None,
        creates_members=True,
        email_domains=frozenset({"example.com"}),
    )
    fake = FakeProvider(world)
    fake.claims = {
        "sub": SUBJECT,
        "email": EMAIL,
        "email_verified": True,
        "groups": ["staff"],
    }
    return Sso(world, provider, fake)


async def test_the_browser_is_sent_with_state_nonce_and_pkce(sso: Sso) -> None:
    """Each sign-in has its own state, nonce and challenge, and none reveals another."""
    first, second = (await sso.begin())[0], (await sso.begin())[0]
    queries = [parse_qs(urlsplit(item.url).query) for item in (first, second)]
    assert queries[0]["tenant"] == ["1"]
    assert queries[0]["code_challenge_method"] == ["S256"]
    values = [query[name][0] for query in queries for name in ("state", "nonce", "code_challenge")]
    assert len(set(values)) == 6
    assert all(len(value) == 43 for value in values)
    assert "prompt" not in queries[0]


@ON_BOTH
async def test_a_new_person_becomes_a_member_and_is_signed_in(sso: Sso) -> None:
    """A new member has the role of their groups, no password, and events in the log."""
    person = await sso.person()
    assert (person.tenant, person.role) == (sso.world.tenant.id, Role.VIEWER)
    assert not person.must_enroll
    assert (await sso.world.account()).password_hash is None
    assert sso.policies == [
        (AuditEvent.CREATE_MEMBER, "provider-example"),
        (AuditEvent.ROLE_IS_VIEWER, "provider-example"),
        (AuditEvent.LINK_IDENTITY, "provider-example"),
        (AuditEvent.SINGLE_SIGN_ON, "provider-example"),
    ]
    with pytest.raises(WrongPasswordError):
        await sso.world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)


@ON_BOTH
async def test_a_member_is_linked_by_a_verified_address(sso: Sso) -> None:
    """The first sign-in links a member by the verified address; later ones need no address."""
    sso.provider = replace(sso.provider, creates_members=False, email_domains=frozenset())
    member = await sso.world.person()
    await sso.world.join(email=OTHER_EMAIL)
    assert (await sso.person()).user == member.user
    del sso.fake.claims["email"]
    assert (await sso.person()).user == member.user


async def test_an_unverified_address_links_nobody(sso: Sso) -> None:
    """An unverified address does not lead to the member with that address."""
    await sso.world.join()
    sso.provider = replace(sso.provider, email_domains=frozenset())
    sso.fake.claims["email_verified"] = False
    assert await sso.refusal() is Refusal.EMAIL
    assert sso.policies == [(AuditEvent.SINGLE_SIGN_ON, "provider-example-email")]


async def test_an_address_of_another_domain_is_refused(sso: Sso) -> None:
    """At every sign-in an address outside the provider's domains is refused."""
    await sso.person()
    sso.fake.claims["email"] = "ada@example.net"
    assert await sso.refusal() is Refusal.EMAIL


@pytest.mark.threat("hostile-identity-provider")
async def test_nobody_of_another_tenant_is_signed_in(sso: Sso) -> None:
    """A person of another tenant is refused, by address and by identity."""
    other: Tenant = await add_tenant(sso.world.engine, new_tenant())
    invited = await sso.world.invitations.invite(other.id, EMAIL, Role.OWNER, OPERATOR, ATTRIBUTION)
    await sso.world.invitations.accept(invited.token, PASSWORD, ATTRIBUTION)
    assert await sso.refusal() is Refusal.NO_MEMBER
    elsewhere = replace(sso, provider=replace(sso.provider, tenant=other.id))
    person = await elsewhere.person()
    assert person.tenant == other.id
    assert await sso.refusal() is Refusal.NO_MEMBER


async def test_members_are_made_only_where_the_operator_says_so(sso: Sso) -> None:
    """Without create_members an unknown person is refused, and nothing is stored."""
    sso.provider = replace(sso.provider, creates_members=False)
    assert await sso.refusal() is Refusal.NO_MEMBER
    assert await sso.world.users.find_by_email(EMAIL) is None


@pytest.mark.threat("hostile-identity-provider")
@ON_BOTH
async def test_an_address_given_to_somebody_else_signs_them_in_nowhere(sso: Sso) -> None:
    """A member's address with another subject is refused as another person."""
    await sso.person()
    sso.fake.claims["sub"] = "subject-2"
    assert await sso.refusal() is Refusal.OTHER_IDENTITY


async def test_each_sign_in_brings_the_role_up_to_date(sso: Sso) -> None:
    """A change of groups changes the role at the next sign-in; the log names the provider."""
    await sso.person()
    sso.fake.claims["groups"] = ["keys", "staff"]
    assert (await sso.person()).role is Role.ADMIN
    changes = [(AuditEvent.ASSIGN_ROLE, "provider-example")]
    changes += [(AuditEvent.ROLE_IS_ADMIN, "provider-example")]
    assert sso.policies[4:6] == changes


@ON_BOTH
async def test_who_is_in_no_group_any_more_is_signed_out(sso: Sso) -> None:
    """A member without a group is refused and all sessions end; the membership stays."""
    person = await sso.person()
    again = await sso.person()
    sso.fake.claims["groups"] = ["<script>alert(1)</script>"]
    assert await sso.refusal() is Refusal.NO_ROLE
    assert (await sso.world.sessions.list(person.user)).entries == ()
    assert again.session != person.session
    assert (await sso.world.account()).user.role is Role.VIEWER
    assert sso.policies[-1] == (AuditEvent.SINGLE_SIGN_ON, "provider-example-no-role")
    assert next(reversed(sso.world.log.recorded.values())).principal == f"user:{person.user}"


@pytest.mark.threat("hostile-identity-provider")
@ON_BOTH
async def test_the_last_owner_stays_owner(sso: Sso) -> None:
    """Groups cannot remove the last owner's role, but another owner's."""
    sso.fake.claims["groups"] = ["owners"]
    assert (await sso.person()).role is Role.OWNER
    sso.fake.claims["groups"] = ["staff"]
    assert (await sso.person()).role is Role.OWNER
    await sso.world.join(email=OTHER_EMAIL)
    assert (await sso.person()).role is Role.VIEWER


@ON_BOTH
async def test_a_state_signs_in_once(sso: Sso) -> None:
    """Of many uses of one callback, one begins a session."""
    begun, state = await sso.begin()
    uses = [sso.finish(begun, state) for _ in range(CONCURRENCY)]
    outcomes = await asyncio.gather(*uses, return_exceptions=True)
    assert sum(isinstance(outcome, Arrived) for outcome in outcomes) == 1
    reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, RefusedError)}
    assert reasons <= {Refusal.EXPIRED, Refusal.NO_MEMBER}
    account = await sso.world.account()
    assert len((await sso.world.sessions.list(account.user.id)).entries) == 1


async def test_a_state_belongs_to_its_browser(sso: Sso) -> None:
    """A callback without the cookie, or with another browser's, is refused."""
    begun, state = await sso.begin()
    other, other_state = await sso.begin()
    for cookie, sent in (
        ("", state),
        (other.cookie, state),
        (begun.cookie, other_state),
        (begun.cookie, ""),
        (begun.cookie, "\ud800"),
        (begun.cookie + "A", state),
        ("x" * 5000, state),
    ):
        with pytest.raises(RefusedError) as refused:
            await sso.finish(Beginning("", cookie), sent)
        assert refused.value.reason is Refusal.EXPIRED
    assert sso.policies == []


async def test_a_state_is_good_for_ten_minutes(sso: Sso) -> None:
    """A state is refused after ten minutes."""
    begun, state = await sso.begin()
    sso.world.now += 600
    with pytest.raises(RefusedError) as refused:
        await sso.finish(begun, state)
    assert refused.value.reason is Refusal.EXPIRED


async def test_a_callback_of_another_provider_is_refused(sso: Sso) -> None:
    """A sign-in cannot be finished at another provider."""
    begun, state = await sso.begin()
    other = replace(sso, provider=replace(sso.provider, name="other"))
    with pytest.raises(RefusedError) as refused:
        await other.finish(begun, state)
    assert refused.value.reason is Refusal.EXPIRED


@pytest.mark.parametrize(
    ("names_itself", "issuer"),
    [(True, ""), (True, "https://login.example.net"), (False, "https://login.example.net")],
)
async def test_an_answer_in_anothers_name_is_refused(
    sso: Sso, *, names_itself: bool, issuer: str
) -> None:
    """An issuer in the callback must be the provider's."""
    sso.fake.names_itself = names_itself
    begun, state = await sso.begin()
    with pytest.raises(RefusedError) as refused:
        await sso.finish(begun, state, issuer)
    assert refused.value.reason is Refusal.PROVIDER
    assert (await sso.finish(begun, state, ISSUER)).tokens


async def test_a_token_of_another_sign_in_is_refused(sso: Sso) -> None:
    """An ID token with another nonce is refused and recorded."""
    begun, state = await sso.begin()
    await sso.begin()
    with pytest.raises(RefusedError) as refused:
        await sso.finish(begun, state)
    assert refused.value.reason is Refusal.PROVIDER
    assert sso.policies == [(AuditEvent.SINGLE_SIGN_ON, "provider-example-provider")]


@ON_BOTH
async def test_starts_store_nothing(sso: Sso) -> None:
    """Begun sign-ins store nothing, and used states are deleted."""
    for _ in range(50):
        await sso.begin()
    assert await count(sso.world) == 0
    await sso.arrive()
    sso.world.now += 601
    await sso.arrive()
    assert await count(sso.world) == 1


async def count(world: World) -> int:
    """Return the number of stored used states."""
    async with world.engine.connect() as connection:
        return len((await connection.execute(USED_SIGN_INS.select())).all())


async def test_attempts_from_one_address_are_limited(sso: Sso) -> None:
    """Beyond the budget, the provider gets no request."""
    sso.fake.is_unavailable = True
    sign_on = sso.sign_on
    sign_on._flow._budget = SourceBudget(Limit(2, 60), sso.world.clock)
    reasons = []
    for _ in range(3):
        with pytest.raises(RefusedError) as refused:
            await sign_on.begin("/portal", CALLBACK, HERE)
        reasons.append(refused.value.reason)
    assert reasons == [Refusal.UNAVAILABLE, Refusal.UNAVAILABLE, Refusal.TOO_MANY]


@ON_BOTH
async def test_a_session_steps_up_by_its_provider_once(sso: Sso) -> None:
    """After a reauthentication, the session gets one step-up token without a password."""
    person, elsewhere = await sso.person(), await sso.person()
    now = sso.world.now
    assert await sso.step_up(person) is None
    begun, state = await sso.begin(person)
    query = parse_qs(urlsplit(begun.url).query)
    assert (query["prompt"], query["max_age"]) == (["login"], ["0"])
    sso.fake.claims["auth_time"] = now
    assert (await sso.finish(begun, state)).tokens is None
    assert await sso.step_up(elsewhere) is None
    for stolen in ("", new_credential(CredentialKind.REAUTHENTICATION), sso.cookie[:-1]):
        assert await sso.step_up(person, stolen) is None
    uses = [sso.step_up(person) for _ in range(CONCURRENCY)]
    assert sum(outcome is not None for outcome in await asyncio.gather(*uses)) == 1
    assert sso.policies[-1] == (AuditEvent.REAUTHENTICATE, "provider-example")


async def test_a_reauthentication_is_good_for_five_minutes(sso: Sso) -> None:
    """After five minutes another reauthentication is needed."""
    person = await sso.person()
    sso.fake.claims["auth_time"] = sso.world.now
    await sso.arrive(person)
    sso.world.now += 300
    assert await sso.step_up(person) is None


@pytest.mark.parametrize("age", [None, 61])
async def test_a_provider_that_did_not_ask_again_steps_nobody_up(sso: Sso, age: int | None) -> None:
    """Without a recent auth_time the session cannot step up."""
    person = await sso.person()
    if age is not None:
        sso.fake.claims["auth_time"] = sso.world.now - age
    assert await sso.refusal(person) is Refusal.NOT_AGAIN
    assert await sso.step_up(person) is None


async def test_another_person_steps_nobody_up(sso: Sso) -> None:
    """A step-up by another person is refused, and creates no member."""
    person = await sso.person()
    sso.fake.claims |= {"auth_time": sso.world.now, "sub": "subject-2", "email": OTHER_EMAIL}
    assert await sso.refusal(person) is Refusal.NO_MEMBER
    await sso.person()
    assert await sso.refusal(person) is Refusal.OTHER_PERSON
    assert await sso.step_up(person) is None


async def test_with_an_app_the_app_steps_up(sso: Sso) -> None:
    """A person with an authenticator app needs its code, even after a reauthentication."""
    person = await sso.person()
    methods = StepUpMethods(
        sso.world.users, sso.world.passwords, SqlIdentities(sso.world.engine), [sso.provider]
    )
    assert await methods.of(person) == ((StepUpMethod.SINGLE_SIGN_ON,), "example")
    await sso.world.enroll(person)
    sso.fake.claims["auth_time"] = sso.world.now
    await sso.arrive(person)
    assert await sso.step_up(person) is None
    assert await methods.of(person) == ((StepUpMethod.APP,), None)


async def test_a_change_of_factors_ends_a_reauthentication(sso: Sso) -> None:
    """A reauthentication ends with a change of factors, like a step-up token."""
    person = await sso.person()
    sso.fake.claims["auth_time"] = sso.world.now
    await sso.arrive(person)
    _, (code, *_) = await sso.world.enroll(person)
    await sso.world.factors.disable(person, code, ATTRIBUTION)
    assert await sso.step_up(person) is None


async def test_a_tenant_may_do_without_passwords(world: World) -> None:
    """Without local passwords, a correct password is useless and cannot be set."""
    person = await world.person()
    invited = await world.invite(OTHER_EMAIL, Role.OWNER)
    reset = await world.reset_token()
    without = world.restarted(has_passwords=False)
    with pytest.raises(WrongPasswordError):
        await without.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)
    with pytest.raises(WrongCodeError):
        await without.step_up.issue(person, PASSWORD, ATTRIBUTION)
    with pytest.raises(PasswordsDisabledError):
        await without.password_change.change(person, NEW_PASSWORD, ATTRIBUTION)
    with pytest.raises(PasswordsDisabledError):
        await without.invitations.accept(invited.token, PASSWORD, ATTRIBUTION)
    with pytest.raises(InvalidPasswordResetTokenError):
        await without.resets.complete(reset, NEW_PASSWORD, ATTRIBUTION)
    await without.resets.begin(EMAIL, ATTRIBUTION)
    assert (await without.mail(MailKind.DISCARDED)).to == EMAIL
    await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)

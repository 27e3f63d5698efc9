"""Passkeys on either database: adding, signing in, stepping up, removing, and every refusal."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from gateway.tests.test_moved_rows import change_where
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    EMAIL,
    OTHER_EMAIL,
    PARTY,
    PASSWORD,
    World,
    count_successes,
)
from tests.fixtures.authenticator import BE, BS, UP, UV, Authenticator

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.outgoing_mail import MailKind
from pqkeep_gateway.people.attempt_limits import ATTEMPTS
from pqkeep_gateway.people.challenges import Factor, SecondFactorRequiredError
from pqkeep_gateway.people.passkeys import (
    LIFETIME,
    NO_ADDRESS,
    NO_HOST_NAME,
    TRIAL,
    Assertion,
    InvalidPasskeyError,
    InvalidRegistrationError,
    NewerFactorError,
    PasskeyProblem,
    Registration,
    RelyingParty,
    WrongPasskeyError,
    relying_party,
)
from pqkeep_gateway.people.passwords import PasswordsDisabledError
from pqkeep_gateway.people.second_factors import (
    NotEnrolledError,
    WrongCodeError,
    WrongPresentPasswordError,
)
from pqkeep_gateway.people.sessions import Tokens
from pqkeep_gateway.people.step_up import StepUpMethod, StepUpMethods
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.identities import SqlIdentities
from pqkeep_gateway.storage.passkeys import (
    MAX_PASSKEYS,
    Passkey,
    PasskeyExistsError,
    PasskeyNotFoundError,
    SqlPasskeys,
    TooManyPasskeysError,
)
from pqkeep_gateway.storage.schema import PASSKEYS
from pqkeep_gateway.storage.tenant_status import change_under_mac
from pqkeep_gateway.storage.users import AccountChangedError, LastFactorError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
BROWSER, OTHER_BROWSER = "pqw_one", "pqw_other"


def _authenticator(person: SessionPrincipal, **options: Any) -> Authenticator:
    return Authenticator(PARTY.id, PARTY.origin, person.user.bytes, **options)


def _registration(made: dict[str, Any]) -> Registration:
    return Registration(**{**made, "transports": tuple(made["transports"])})


async def _add(
    world: World, person: SessionPrincipal, device: Authenticator
) -> tuple[Passkey, tuple[str, ...]]:
    begun = await world.passkeys.begin(person)
    registration = _registration(device.make(begun.challenge))
    return await world.passkeys.add(person, registration, "My phone", ATTRIBUTION)


async def _with_passkey(
    world: World, **options: Any
) -> tuple[SessionPrincipal, Authenticator, Passkey, tuple[str, ...]]:
    """Return a person with one passkey, the authenticator, and the recovery codes."""
    person = await world.person()
    device = _authenticator(person, **options)
    passkey, codes = await _add(world, person, device)
    return person, device, passkey, codes


def _challenge(world: World, browser: str = BROWSER) -> bytes:
    return world.passkeys.begin_sign_in(browser, ATTRIBUTION.source_address).challenge


async def _sign_in(world: World, device: Authenticator, **changes: Any) -> Tokens:
    used = Assertion(**device.use(_challenge(world), **changes))
    return await world.sign_in.with_passkey(BROWSER, used, ATTRIBUTION)


async def _refused(world: World, browser: str, used: dict[str, Any]) -> PasskeyProblem:
    """Return why a sign-in is refused."""
    with pytest.raises(InvalidPasskeyError) as refused:
        await world.sign_in.with_passkey(browser, Assertion(**used), ATTRIBUTION)
    return refused.value.problem


async def _step_up(world: World, person: SessionPrincipal, device: Authenticator) -> str:
    begun = await world.passkeys.begin_step_up(person)
    used = Assertion(**device.use(begun.challenge))
    return (await world.step_up.issue(person, used, ATTRIBUTION)).token


async def test_a_passkey_signs_in_as_both_factors(world: World) -> None:
    """A session begins without a password, with a second factor, and is recorded by its name."""
    person, device, passkey, _ = await _with_passkey(world, counter=5)
    signed_in = await world.principal(await _sign_in(world, device))
    assert signed_in.user == person.user
    (session,) = [
        session
        for session in (await world.sessions.list(person.user)).entries
        if session.id == signed_in.session
    ]
    assert session.used_second_factor
    (stored,) = await world.passkeys.list(person.user)
    assert (stored.counter, stored.last_used_at) == (device.counter, date_of(world.now))
    assert stored.id == passkey.id
    assert world.log.operations[-1] == AuditEvent.SIGN_IN_WITH_PASSKEY


async def test_the_password_alone_is_not_enough(world: World) -> None:
    """With a passkey, a correct password gives a challenge, which takes a recovery code once."""
    _, _, _, codes = await _with_passkey(world)
    with pytest.raises(SecondFactorRequiredError) as required:
        await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)
    assert required.value.factor is Factor.PASSKEY
    await world.sign_in.answer_challenge(required.value.token, codes[0], ATTRIBUTION)
    with pytest.raises(WrongCodeError):
        await world.sign_in.answer_challenge(await world.challenge(), codes[0], ATTRIBUTION)


async def test_the_first_factor_gives_recovery_codes(world: World) -> None:
    """A second passkey gives no recovery codes.

    A new authenticator does. Without factors all codes end.
    """
    person, device, passkey, codes = await _with_passkey(world)
    assert len(codes) == 10
    other, more = await _add(world, person, _authenticator(person))
    assert more == ()
    totp, fresh = await world.enroll(person)
    with pytest.raises(WrongCodeError):
        await world.factors.check(await world.account(), codes[0], ATTRIBUTION)
    await world.passkeys.remove(person, other.id, None, ATTRIBUTION)
    world.now += 60
    await world.factors.disable(person, totp.at(int(world.now)), ATTRIBUTION)
    await world.factors.check(await world.account(), fresh[0], ATTRIBUTION)
    await world.passkeys.remove(person, passkey.id, None, ATTRIBUTION)
    with pytest.raises(NotEnrolledError):
        await world.factors.check(await world.account(), fresh[1], ATTRIBUTION)
    with pytest.raises(InvalidPasskeyError):
        await _sign_in(world, device)
    await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)


async def test_changes_end_the_other_sessions(world: World) -> None:
    """Adding and removing a passkey ends the other sessions and step-ups, and sends a mail."""
    person = await world.person()
    other = await world.principal(await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION))
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token
    device = _authenticator(person)
    passkey, _ = await _add(world, person, device)
    assert other.session not in {
        session.id for session in (await world.sessions.list(person.user)).entries
    }
    assert await world.step_up.factor_at(person, token) is None
    await world.mail(MailKind.PASSKEY_ADDED)
    other = await world.principal(await _sign_in(world, device))
    await world.passkeys.remove(person, passkey.id, None, ATTRIBUTION)
    assert [session.id for session in (await world.sessions.list(person.user)).entries] == [
        person.session
    ]
    await world.mail(MailKind.PASSKEY_REMOVED)


@pytest.mark.threat("stolen-passkey")
async def test_a_cloned_counter_is_refused_recorded_and_mailed(world: World) -> None:
    """A counter that is lower or equal is refused, and the original goes on with a higher one."""
    person, device, _, _ = await _with_passkey(world, counter=7)
    clone = replace(device)
    await _sign_in(world, device)
    for counter in (clone.counter, clone.counter - 1, 0):
        clone.counter = counter
        problem = await _refused(world, BROWSER, clone.use(_challenge(world)))
        assert problem is PasskeyProblem.COUNTER
        await world.mail(MailKind.PASSKEY_CLONED)
    assert world.log.operations.count(AuditEvent.PASSKEY_CLONED) == 3
    begun = await world.passkeys.begin_step_up(person)
    clone.counter = 1
    with pytest.raises(WrongPasskeyError):
        await world.step_up.issue(person, Assertion(**clone.use(begun.challenge)), ATTRIBUTION)
    await _sign_in(world, device)


async def test_an_authenticator_without_a_counter_is_accepted_again(world: World) -> None:
    """A counter of 0 counts as no counter. Synced passkeys always have 0."""
    _, device, _, _ = await _with_passkey(world, flags=UP | UV | BE | BS)
    for _ in range(2):
        await _sign_in(world, device)


FALSE_RESPONSES: tuple[tuple[dict[str, Any], dict[str, Any], PasskeyProblem], ...] = (
    ({}, {"origin": "https://keys.example.org"}, PasskeyProblem.ORIGIN),
    ({}, {"origin": "http://keys.example.com"}, PasskeyProblem.ORIGIN),
    ({}, {"origin": "https://keys.example.com:8443"}, PasskeyProblem.ORIGIN),
    ({}, {"origin": "https://www.keys.example.com"}, PasskeyProblem.ORIGIN),
    ({}, {"crossOrigin": True}, PasskeyProblem.ORIGIN),
    ({}, {"topOrigin": PARTY.origin}, PasskeyProblem.ORIGIN),
    ({}, {"type": "webauthn.create"}, PasskeyProblem.CLIENT_DATA),
    ({}, {"challenge": "AAAA"}, PasskeyProblem.CHALLENGE),
    ({}, {"challenge": "no base64!"}, PasskeyProblem.CHALLENGE),
    ({}, {"challenge": 7}, PasskeyProblem.CLIENT_DATA),
    ({"rp_id": "example.com"}, {}, PasskeyProblem.RELYING_PARTY),
    ({"flags": UP}, {}, PasskeyProblem.USER_VERIFICATION),
    ({"flags": UV}, {}, PasskeyProblem.USER_PRESENCE),
    ({"flags": UP | UV | BS}, {}, PasskeyProblem.FLAGS),
    ({"flags": UP | UV | BE}, {}, PasskeyProblem.FLAGS),
    ({"user_handle": bytes(16)}, {}, PasskeyProblem.PERSON),
    ({"user_handle": None}, {}, PasskeyProblem.PERSON),
    ({"credential_id": bytes(16)}, {}, PasskeyProblem.UNKNOWN),
    ({"private": ec.generate_private_key(ec.SECP256R1())}, {}, PasskeyProblem.SIGNATURE),
)
"""Changes of the authenticator, and of the client data."""


@pytest.mark.threat("stolen-passkey")
async def test_false_responses_do_not_sign_in(world: World) -> None:
    """A wrong origin, service, kind, challenge, flag, person or signature is refused."""
    _, device, _, _ = await _with_passkey(world)
    for own, changes, problem in FALSE_RESPONSES:
        used = replace(device, **own).use(_challenge(world), **changes)
        assert await _refused(world, BROWSER, used) is problem, (own, changes)
    used = device.use(_challenge(world))
    for size in (0, 36, 38):
        data = (used["authenticator_data"] + b"\0")[:size]
        cut = {**used, "authenticator_data": data}
        assert await _refused(world, BROWSER, cut) is PasskeyProblem.FORM
    await world.sign_in.with_passkey(BROWSER, Assertion(**used), ATTRIBUTION)


@pytest.mark.threat("stolen-passkey")
async def test_a_challenge_is_for_one_use_browser_purpose_and_time(world: World) -> None:
    """A replay, another browser, another purpose, another session and an old one are refused."""
    person, device, _, _ = await _with_passkey(world)
    used = device.use(_challenge(world))
    assert await _refused(world, OTHER_BROWSER, used) is PasskeyProblem.CHALLENGE
    assert await _refused(world, "", used) is PasskeyProblem.CHALLENGE
    await world.sign_in.with_passkey(BROWSER, Assertion(**used), ATTRIBUTION)
    assert await _refused(world, BROWSER, used) is PasskeyProblem.CHALLENGE
    for begun in (await world.passkeys.begin_step_up(person), await world.passkeys.begin(person)):
        stepped = device.use(begun.challenge)
        assert await _refused(world, BROWSER, stepped) is PasskeyProblem.CHALLENGE
    other = await world.principal(await _sign_in(world, device))
    begun = await world.passkeys.begin_step_up(person)
    for session, challenge in ((other, begun.challenge), (person, _challenge(world))):
        stepping = Assertion(**device.use(challenge))
        with pytest.raises(WrongPasskeyError):
            await world.step_up.issue(session, stepping, ATTRIBUTION)
    late = device.use(_challenge(world))
    world.now += LIFETIME.total_seconds()
    assert await _refused(world, BROWSER, late) is PasskeyProblem.CHALLENGE


async def test_of_concurrent_replays_one_counts(world: World) -> None:
    """One response, sent many times at once, begins one session."""
    _, device, _, _ = await _with_passkey(world)
    used = Assertion(**device.use(_challenge(world)))
    attempts = [world.sign_in.with_passkey(BROWSER, used, ATTRIBUTION) for _ in range(CONCURRENCY)]
    assert await count_successes(attempts, InvalidPasskeyError) == 1


async def test_another_persons_passkey_proves_nothing(world: World) -> None:
    """A step-up takes the session's own person only."""
    person, _, _, _ = await _with_passkey(world)
    other = await world.person(OTHER_EMAIL)
    device = _authenticator(other)
    await _add(world, other, device)
    with pytest.raises(WrongPasskeyError):
        await _step_up(world, person, device)


async def test_a_step_up_takes_a_passkey_or_a_recovery_code(world: World) -> None:
    """The password is then refused, and the methods name the passkey."""
    person, device, _, codes = await _with_passkey(world)
    methods = StepUpMethods(world.users, world.passwords, SqlIdentities(world.engine), ())
    assert (await methods.of(person)).methods == (StepUpMethod.PASSKEY,)
    assert await _step_up(world, person, device)
    assert (await world.step_up.issue(person, codes[0], ATTRIBUTION)).token
    with pytest.raises(WrongCodeError) as refused:
        await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
    assert not isinstance(refused.value, WrongPresentPasswordError)


@pytest.mark.threat("stolen-passkey")
async def test_a_new_factor_does_not_remove_an_older_passkey(world: World) -> None:
    """The passkey itself and an older factor do; a newer one only after its trial."""
    person, device, passkey, _ = await _with_passkey(world)
    world.now += 60
    newer = _authenticator(person)
    added, _ = await _add(world, person, newer)
    by_newer = await world.step_up.factor_at(person, await _step_up(world, person, newer))
    with pytest.raises(NewerFactorError):
        await world.passkeys.remove(person, passkey.id, by_newer, ATTRIBUTION)
    by_older = await world.step_up.factor_at(person, await _step_up(world, person, device))
    await world.passkeys.remove(person, added.id, by_older, ATTRIBUTION)
    added, _ = await _add(world, person, newer)
    world.now += TRIAL.total_seconds()
    by_newer = await world.step_up.factor_at(person, await _step_up(world, person, newer))
    await world.passkeys.remove(person, passkey.id, by_newer, ATTRIBUTION)
    by_itself = await world.step_up.factor_at(person, await _step_up(world, person, newer))
    await world.passkeys.remove(person, added.id, by_itself, ATTRIBUTION)
    assert await world.passkeys.list(person.user) == ()


async def test_the_app_of_an_intruder_does_not_remove_a_passkey(world: World) -> None:
    """An app that was added later, and its recovery codes, are newer factors."""
    person, _, passkey, _ = await _with_passkey(world)
    world.now += 60
    totp, codes = await world.enroll(person)
    world.now += 60
    for code in (totp.at(int(world.now)), codes[0]):
        token = (await world.step_up.issue(person, code, ATTRIBUTION)).token
        added_at = await world.step_up.factor_at(person, token)
        with pytest.raises(NewerFactorError):
            await world.passkeys.remove(person, passkey.id, added_at, ATTRIBUTION)


async def test_the_last_required_factor_stays(world: World) -> None:
    """Where the tenant requires a second factor, the last one cannot be removed, of any kind."""
    person, _, passkey, _ = await _with_passkey(world)
    required = {"requires_mfa": True, "tier": "professional"}
    async with transaction(world.engine) as connection:
        await change_under_mac(connection, world.tenant.id, required)
    with pytest.raises(LastFactorError):
        await world.passkeys.remove(person, passkey.id, None, ATTRIBUTION)
    assert len(await world.passkeys.list(person.user)) == 1
    totp, _ = await world.enroll(person)
    await world.passkeys.remove(person, passkey.id, None, ATTRIBUTION)
    world.now += 60
    with pytest.raises(LastFactorError):
        await world.factors.disable(person, totp.at(int(world.now)), ATTRIBUTION)
    assert (await world.account()).has_mfa


async def test_a_passkey_meets_the_requirement(world: World) -> None:
    """A session without a second factor must enroll one, and a passkey is one."""
    person = await world.person()
    required = {"requires_mfa": True, "tier": "professional"}
    async with transaction(world.engine) as connection:
        await change_under_mac(connection, world.tenant.id, required)
    tokens = await world.sessions.begin(await world.account(), ATTRIBUTION)
    begun = await world.principal(tokens)
    assert begun.must_enroll
    await _add(world, begun, _authenticator(person))
    assert not (await world.principal(tokens)).must_enroll


P_384 = ec.generate_private_key(ec.SECP384R1()).public_key()
FALSE_REGISTRATIONS: tuple[tuple[dict[str, Any], PasskeyProblem], ...] = (
    ({"algorithm": -35}, PasskeyProblem.ALGORITHM),
    ({"algorithm": 0}, PasskeyProblem.ALGORITHM),
    ({"algorithm": -257}, PasskeyProblem.PUBLIC_KEY),
    ({"public_key": b""}, PasskeyProblem.PUBLIC_KEY),
    (
        {"public_key": P_384.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)},
        PasskeyProblem.PUBLIC_KEY,
    ),
    ({"credential_id": bytes(16)}, PasskeyProblem.FORM),
    ({"credential_id": b""}, PasskeyProblem.FORM),
    ({"authenticator_data": bytes(37)}, PasskeyProblem.RELYING_PARTY),
    ({"client_data": b"{}"}, PasskeyProblem.CLIENT_DATA),
)
"""Changes of a report, such as ES384 (-35) or a key of another curve."""


async def test_false_registrations_are_refused(world: World) -> None:
    """Other algorithms, keys and ids than the credential's are refused."""
    person = await world.person()
    begun = await world.passkeys.begin(person)
    made = _authenticator(person).make(begun.challenge)
    for changes, problem in FALSE_REGISTRATIONS:
        with pytest.raises(InvalidRegistrationError) as refused:
            await world.passkeys.add(person, _registration({**made, **changes}), "x", ATTRIBUTION)
        assert refused.value.problem is problem, changes
    await world.passkeys.add(person, _registration(made), "x", ATTRIBUTION)


async def test_a_registration_is_bound_to_its_session(world: World) -> None:
    """A challenge of another session, a used one, and one of a sign-in add nothing."""
    person = await world.person()
    other = await world.principal(await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION))
    for challenge in ((await world.passkeys.begin(other)).challenge, _challenge(world)):
        with pytest.raises(InvalidRegistrationError):
            await world.passkeys.add(
                person, _registration(_authenticator(person).make(challenge)), "x", ATTRIBUTION
            )
    begun = await world.passkeys.begin(person)
    for is_first in (True, False):
        made = _registration(_authenticator(person).make(begun.challenge))
        if is_first:
            await world.passkeys.add(person, made, "x", ATTRIBUTION)
        else:
            with pytest.raises(InvalidRegistrationError):
                await world.passkeys.add(person, made, "x", ATTRIBUTION)


async def test_a_credential_has_one_owner(world: World) -> None:
    """A credential id that exists is refused, for its owner and for others."""
    person, device, _, _ = await _with_passkey(world)
    with pytest.raises(PasskeyExistsError):
        await _add(world, person, device)
    other = await world.person(OTHER_EMAIL)
    with pytest.raises(PasskeyExistsError):
        await _add(world, other, device)


async def test_the_number_of_passkeys_is_bounded(world: World) -> None:
    """A person has at most MAX_PASSKEYS, even if ceremonies began before."""
    person = await world.person()
    begun = await world.passkeys.begin(person)
    for _ in range(MAX_PASSKEYS):
        await _add(world, person, _authenticator(person))
    with pytest.raises(TooManyPasskeysError):
        await world.passkeys.begin(person)
    made = _registration(_authenticator(person).make(begun.challenge))
    with pytest.raises(TooManyPasskeysError):
        await world.passkeys.add(person, made, "x", ATTRIBUTION)


async def test_only_the_owner_renames_and_removes(world: World) -> None:
    """Another person's passkey is not found."""
    person, _, passkey, _ = await _with_passkey(world)
    other = await world.person(OTHER_EMAIL)
    with pytest.raises(PasskeyNotFoundError):
        await world.passkeys.rename(other, passkey.id, "mine", ATTRIBUTION)
    with pytest.raises(PasskeyNotFoundError):
        await world.passkeys.remove(other, passkey.id, None, ATTRIBUTION)
    renamed = await world.passkeys.rename(person, passkey.id, "Work laptop", ATTRIBUTION)
    assert renamed.name == "Work laptop"


@pytest.mark.threat("stolen-passkey")
async def test_a_changed_row_is_ignored(world: World) -> None:
    """A row that no gateway wrote identifies no person."""
    _, device, passkey, _ = await _with_passkey(world, counter=5)
    other = await world.person(OTHER_EMAIL)
    changes: dict[str, tuple[object, object]] = {
        "user_id": (other.user, passkey.user),
        "public_key": (_authenticator(other).public_key, passkey.public_key),
        "counter": (0, passkey.counter),
        "algorithm": ("EdDSA", passkey.algorithm),
    }
    is_passkey = PASSKEYS.c.id == passkey.id
    store = SqlPasskeys(world.engine)
    for column, (changed, stored) in changes.items():
        await change_where(world, is_passkey, PASSKEYS, **{column: changed})
        assert await store.find(device.credential_id) is None
        await change_where(world, is_passkey, PASSKEYS, **{column: stored})
        assert await store.find(device.credential_id) is not None


async def test_attempts_are_limited_by_place(world: World) -> None:
    """Wrong signatures from one network are limited, and do not stop the person elsewhere."""
    limited = world.restarted(has_limits=True)
    _, device, _, _ = await _with_passkey(limited)
    stranger = replace(device, private=ec.generate_private_key(ec.SECP256R1()))
    elsewhere = Attribution("request-2", "anonymous", "198.51.100.9")
    for _ in range(ATTEMPTS.events):
        used = Assertion(**stranger.use(_challenge(limited)))
        with pytest.raises(InvalidPasskeyError):
            await limited.sign_in.with_passkey(BROWSER, used, elsewhere)
    used = Assertion(**device.use(_challenge(limited)))
    with pytest.raises(TooManyAttemptsError):
        await limited.sign_in.with_passkey(BROWSER, used, elsewhere)
    await _sign_in(limited, device)


async def test_a_tenant_with_its_provider_only_has_no_passkeys(world: World) -> None:
    """Where people sign in at their provider only, a passkey is no way around it."""
    person, device, _, _ = await _with_passkey(world)
    without = world.restarted(has_passwords=False)
    with pytest.raises(PasswordsDisabledError):
        await without.passkeys.begin(person)
    used = device.use(_challenge(without))
    assert await _refused(without, BROWSER, used) is PasskeyProblem.PERSON


async def test_a_sign_in_that_began_before_the_passkey_needs_it(world: World) -> None:
    """A password that was checked before the first passkey was added begins no session."""
    person = await world.person()
    account = await world.account()
    await _add(world, person, _authenticator(person))
    with pytest.raises(AccountChangedError):
        await world.sessions.begin(account, ATTRIBUTION)


@pytest.mark.parametrize(
    ("url", "here", "is_development", "expected"),
    [
        ("https://keys.example.com", "", False, PARTY),
        (
            "https://Keys.example.com:8443/pq/",
            "",
            False,
            RelyingParty("keys.example.com", "https://keys.example.com:8443"),
        ),
        ("https://keys.example.com:443", "", False, PARTY),
        (None, "https://0.0.0.0:8080", False, NO_ADDRESS),
        ("https://192.0.2.7", "", False, NO_HOST_NAME),
        ("https://[2001:db8::7]:8443", "", False, NO_HOST_NAME),
        (
            None,
            "http://127.0.0.1:8080",
            True,
            RelyingParty("localhost", "http://localhost:8080"),
        ),
    ],
)
def test_the_relying_party_is_the_portals_name(
    url: str | None,
    here: str,
    is_development: bool,  # noqa: FBT001 - a case
    expected: RelyingParty | str,
    backend: str,
) -> None:
    """Only a setting gives the name, IP addresses give no name, and development uses localhost."""
    assert relying_party(url, here, is_development=is_development) == expected


async def test_the_time_of_a_password_is_before_every_factor(world: World) -> None:
    """A step-up by the password has the oldest factor."""
    person = await world.person()
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token
    added_at = await world.step_up.factor_at(person, token)
    assert added_at is not None
    assert added_at < date_of(world.now) - timedelta(days=365)

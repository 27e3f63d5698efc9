"""Passkeys: credentials of Web Authentication, Level 3, with user verification.

A passkey counts as both factors. It is registered without attestation, so the gateway believes the
public key that the browser reports, and needs no CBOR. The key service verifies the signatures.

A challenge is not stored. It has a time, random bytes, and a MAC under the pepper. The MAC covers
both, the purpose and the owner: a session, or the browser of a sign-in. A used challenge is stored
as a digest until it expires, in the transaction that stores the signature counter.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from msgspec import Struct

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import Pepper, Purpose
from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.access.rate_limit import MINUTE, Limit, TooManyAttemptsError
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail, new_mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.second_factors import SecondFactors, WrongCodeError
from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.signed_tokens import base64url
from pqkeep_gateway.storage.passkeys import (
    MAX_PASSKEYS,
    Passkey,
    PasskeyNotFoundError,
    SqlPasskeys,
    TooManyPasskeysError,
    Use,
    UsedChallenge,
)
from pqkeep_gateway.storage.users import Account, SqlUsers
from pqkeep_protocol.algorithms import GivenKeyAlgorithm
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.documents import MalformedDocumentError, decode_json
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, RedactedRepr, VerifySignature

LIFETIME = timedelta(minutes=5)
BROWSER_LIFETIME = timedelta(hours=12)
"""The age of the cookie that binds challenges to a browser. The tabs of a browser share it."""
BEGINNINGS = Limit(120, MINUTE)
"""Challenges for a sign-in from one address, on each gateway."""
TRIAL = timedelta(days=7)
"""The time in which a new factor cannot remove an older one. The person gets a mail when a factor is
added, so a stranger's factor does not lock the person out."""
MAX_CREDENTIAL_ID = 1023
MAX_CLIENT_DATA = 4096
MAX_AUTHENTICATOR_DATA = 8192

COSE_ALGORITHMS: Mapping[int, GivenKeyAlgorithm] = {
    -48: GivenKeyAlgorithm.ML_DSA_44,
    -49: GivenKeyAlgorithm.ML_DSA_65,
    -50: GivenKeyAlgorithm.ML_DSA_87,
    -8: GivenKeyAlgorithm.EDDSA,
    -7: GivenKeyAlgorithm.ES256,
    -37: GivenKeyAlgorithm.PS256,
    -257: GivenKeyAlgorithm.RS256,
}
"""The accepted algorithms by their COSE identifier (RFC 9053, RFC 8812, draft-ietf-cose-dilithium).
The preferred one is first."""
TRANSPORTS = ("usb", "nfc", "ble", "smart-card", "hybrid", "internal")

_RANDOM = 16
_TIME = 8
_MAC = 32
_HEADER = 37
"""Bytes of authenticator data before the attested credential: digest, flags, counter."""
_ATTESTED = 18
"""Bytes before the credential id: AAGUID, and the length of the id."""
_UP, _UV, _BE, _BS, _AT, _ED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80


class RelyingParty(NamedTuple):
    """The service's identity for browsers."""

    id: str
    """The identifier of the relying party: a host name."""
    origin: str
    """The only origin with pages that use passkeys."""


NO_ADDRESS = "passkeys need public_url (or portal_url) in the gateway's settings"
NO_HOST_NAME = (
    "passkeys need a host name, and the portal's address is an IP address: "
    "set public_url in the gateway's settings to an address with a name"
)


def relying_party(url: str | None, here: str, *, is_development: bool) -> RelyingParty | str:
    """Return the relying party, or the reason why there are no passkeys.

    ``url``: the portal's address in the settings. In development, the name of this machine is
    localhost, because browsers accept no IP address.
    """
    if url is None and not is_development:
        return NO_ADDRESS
    parts = urlsplit(url or here)
    host, port = (parts.hostname or "").lower(), parts.port
    if is_development and _is_loopback(host):
        host = "localhost"
    if _is_address(host):
        return NO_HOST_NAME
    is_default = port is None or port == {"http": 80, "https": 443}.get(parts.scheme)
    return RelyingParty(host, f"{parts.scheme}://{host}" + ("" if is_default else f":{port}"))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_loopback


class PasskeyProblem(StrEnum):
    """Why a response of an authenticator is refused, as the audit log's policy names it."""

    CLIENT_DATA = "client-data"
    ORIGIN = "origin"
    CHALLENGE = "challenge"
    RELYING_PARTY = "relying-party"
    USER_PRESENCE = "user-presence"
    USER_VERIFICATION = "user-verification"
    FLAGS = "flags"
    FORM = "form"
    ALGORITHM = "algorithm"
    PUBLIC_KEY = "public-key"
    PERSON = "person"
    UNKNOWN = "unknown"
    SIGNATURE = "signature"
    COUNTER = "counter"


class InvalidPasskeyError(Exception):
    """A response of an authenticator is refused at a sign-in. It does not say why."""

    def __init__(self, problem: PasskeyProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class WrongPasskeyError(WrongCodeError):
    """A response of an authenticator is refused at a step-up."""


class InvalidRegistrationError(Exception):
    """A new passkey is refused. The message has the reason, which is shown to the owner."""

    def __init__(self, problem: PasskeyProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class NewerFactorError(Exception):
    """The step-up used a factor that is newer than the one to remove."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A browser's report of a new passkey."""

    credential_id: bytes
    client_data: bytes = field(repr=False)
    authenticator_data: bytes = field(repr=False)
    public_key: bytes = field(repr=False)
    """SubjectPublicKeyInfo in DER."""
    algorithm: int
    """The COSE identifier."""
    transports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assertion:
    """A browser's report of a use of a passkey."""

    credential_id: bytes
    client_data: bytes = field(repr=False)
    authenticator_data: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    user_handle: bytes | None = field(default=None, repr=False)
    """The user's id; None if the authenticator sent none."""


class Ceremony(NamedTuple):
    """The values for a browser to begin."""

    challenge: bytes
    relying_party: RelyingParty
    passkeys: tuple[Passkey, ...] = ()
    """The user's passkeys: excluded from a registration, allowed for a step-up."""
    email: str = ""
    """The address of the user who adds a passkey."""


class CeremonyPurpose(StrEnum):
    """The purpose of a challenge."""

    ADD = "add"
    SIGN_IN = "sign-in"
    STEP_UP = "step-up"


class _ClientData(RedactedRepr, Struct, frozen=True):
    """The part of the client data that is checked (section 5.8.1)."""

    type: str
    challenge: str
    origin: str
    crossOrigin: bool = False  # noqa: N815 - the standard's name
    topOrigin: str | None = None  # noqa: N815


class AuthenticatorData(NamedTuple):
    """The checked part of authenticator data."""

    counter: int
    is_syncable: bool
    is_synced: bool


class Ceremonies:
    """Makes challenges, and checks the responses of authenticators."""

    def __init__(
        self, party: RelyingParty | str, keys: TenantKeyService, pepper: Pepper, clock: Clock
    ) -> None:
        """Take the relying party, or the reason why this installation has no passkeys."""
        self.party = party if isinstance(party, RelyingParty) else RelyingParty("", "")
        self.disabled = party if isinstance(party, str) else ""
        """The reason why this installation has no passkeys; empty: it has."""
        self._keys = keys
        self._pepper = pepper
        self._clock = clock
        self._budget = SourceBudget(BEGINNINGS, clock)

    @property
    def now(self) -> datetime:
        """The present time, UTC."""
        return date_of(self._clock())

    def count_beginning(self, source_address: str) -> None:
        """Count the beginning of a sign-in. Raises TooManyAttemptsError."""
        wait = self._budget.spend(source_address)
        if wait is not None:
            raise TooManyAttemptsError(BEGINNINGS, wait)

    def new_challenge(self, purpose: CeremonyPurpose, owner: bytes) -> bytes:
        """Return a challenge (56 bytes) for a purpose, and for a session or a browser."""
        text = int(self._clock()).to_bytes(_TIME, "big") + secrets.token_bytes(_RANDOM)
        return text + self._mac(purpose, owner, text)

    def challenge_in(self, client_data: bytes, purpose: CeremonyPurpose, owner: bytes) -> bytes:
        """Return the challenge in client data.

        Raises InvalidPasskeyError if the challenge belongs to another owner.

        This check comes first and needs no database, so that forged responses cost little.
        """
        try:
            challenge = base64url(_client_data(client_data).challenge)
        except ValueError:
            raise InvalidPasskeyError(PasskeyProblem.CHALLENGE) from None
        text, mac = challenge[:-_MAC], challenge[-_MAC:]
        is_ours = (
            bool(owner)
            and len(text) == _TIME + _RANDOM
            and hmac.compare_digest(mac, self._mac(purpose, owner, text))
        )
        if not is_ours:
            raise InvalidPasskeyError(PasskeyProblem.CHALLENGE)
        age = self._clock() - int.from_bytes(text[:_TIME], "big")
        if not 0 <= age < LIFETIME.total_seconds():
            raise InvalidPasskeyError(PasskeyProblem.CHALLENGE)
        return challenge

    async def check_registration(
        self, tenant: TenantId, registration: Registration, attribution: Attribution
    ) -> tuple[GivenKeyAlgorithm, AuthenticatorData]:
        """Check a new credential without attestation (section 7.1). Raises InvalidPasskeyError.

        The key service reads the key before the signature, which is empty and so never valid.
        """
        self._check_origin(registration.client_data, "webauthn.create")
        seen = _read(registration.authenticator_data, self.party)
        _check_attested(registration)
        algorithm = _algorithm_of(registration.algorithm)
        request = VerifySignature(
            tenant=tenant,
            algorithm=algorithm,
            public_key=registration.public_key,
            message=b"",
            signature=b"",
        )
        try:
            await self._keys.execute(request, attribution)
        except KeyServiceError as refusal:
            if refusal.kind is ErrorKind.VERIFICATION_FAILED:
                return algorithm, seen
            if refusal.kind is not ErrorKind.INVALID_PUBLIC_KEY:
                raise
        raise InvalidPasskeyError(PasskeyProblem.PUBLIC_KEY)

    async def check_assertion(
        self, tenant: TenantId, passkey: Passkey, assertion: Assertion, attribution: Attribution
    ) -> AuthenticatorData:
        """Check a use of a passkey (section 7.2), except its counter. Raises InvalidPasskeyError."""
        self._check_origin(assertion.client_data, "webauthn.get")
        seen = _read(assertion.authenticator_data, self.party)
        if seen.is_syncable is not passkey.is_syncable:
            raise InvalidPasskeyError(PasskeyProblem.FLAGS)
        request = VerifySignature(
            tenant=tenant,
            algorithm=passkey.algorithm,
            public_key=passkey.public_key,
            message=assertion.authenticator_data + sha256(assertion.client_data).digest(),
            signature=assertion.signature,
        )
        try:
            await self._keys.execute(request, attribution)
        except KeyServiceError as refusal:
            if refusal.kind in {ErrorKind.VERIFICATION_FAILED, ErrorKind.INVALID_PUBLIC_KEY}:
                raise InvalidPasskeyError(PasskeyProblem.SIGNATURE) from None
            raise
        return seen

    def used(self, challenge: bytes) -> UsedChallenge:
        """Return a challenge in the form that is stored after its use."""
        digest = self._pepper.derive(Purpose.PASSKEY, b"used", challenge)
        return UsedChallenge(digest, self.now + LIFETIME)

    def lookup_digest(self, credential_id: bytes) -> bytes:
        """Return the digest of a credential id (32 bytes) for CredentialLookups."""
        return self._pepper.derive(Purpose.PASSKEY, b"credential", credential_id)

    def _check_origin(self, client_data: bytes, kind: str) -> None:
        """Raise InvalidPasskeyError unless our own page called the authenticator for this kind."""
        read = _client_data(client_data)
        if read.type != kind:
            raise InvalidPasskeyError(PasskeyProblem.CLIENT_DATA)
        is_framed = read.crossOrigin or read.topOrigin is not None
        if read.origin != self.party.origin or is_framed:
            raise InvalidPasskeyError(PasskeyProblem.ORIGIN)

    def _mac(self, purpose: CeremonyPurpose, owner: bytes, text: bytes) -> bytes:
        return self._pepper.derive(Purpose.PASSKEY, purpose.encode(), owner, text)


class Passkeys:
    """Adds, lists and removes passkeys, and identifies people by them."""

    def __init__(
        self,
        store: SqlPasskeys,
        users: SqlUsers,
        factors: SecondFactors,
        passwords: Passwords,
        attempts: AttemptLimits,
        lookups: CredentialLookups,
        ceremonies: Ceremonies,
        audit_delivery: AuditDelivery,
    ) -> None:
        self._store = store
        self._users = users
        self._factors = factors
        self._passwords = passwords
        self._attempts = attempts
        self._lookups = lookups
        self._ceremonies = ceremonies
        self._audit_delivery = audit_delivery

    @property
    def disabled(self) -> str:
        """The reason why this installation has no passkeys; empty: it has."""
        return self._ceremonies.disabled

    async def list(self, user: UserId) -> tuple[Passkey, ...]:
        """Return a user's passkeys, the oldest first."""
        return await self._store.list(user)

    async def begin(self, principal: SessionPrincipal) -> Ceremony:
        """Return a challenge for a new passkey. The caller has checked a step-up.

        Raises TooManyPasskeysError, PasswordsDisabledError.
        """
        self._passwords.require_enabled(principal.tenant)
        known = await self._store.list(principal.user)
        if len(known) >= MAX_PASSKEYS:
            raise TooManyPasskeysError
        user = (await self._users.get(principal.user)).user
        before_change()
        return self._ceremony(CeremonyPurpose.ADD, _owner(principal), known, user.email)

    async def add(
        self,
        principal: SessionPrincipal,
        registration: Registration,
        name: str,
        attribution: Attribution,
    ) -> tuple[Passkey, tuple[str, ...]]:
        """Add a passkey, and end the user's other sessions.

        Returns recovery codes if it is the first second factor. Raises InvalidRegistrationError,
        PasskeyExistsError, TooManyPasskeysError, PasswordsDisabledError, TooManyAttemptsError.
        """
        self._passwords.require_enabled(principal.tenant)
        ceremonies, user = self._ceremonies, principal.user
        async with self._attempts.step_up(principal.session):
            try:
                challenge = ceremonies.challenge_in(
                    registration.client_data, CeremonyPurpose.ADD, _owner(principal)
                )
                algorithm, seen = await ceremonies.check_registration(
                    principal.tenant, registration, attribution
                )
            except InvalidPasskeyError as refused:
                raise InvalidRegistrationError(refused.problem) from None
        passkey = Passkey(
            uuid4(),
            user,
            registration.credential_id,
            algorithm,
            registration.public_key,
            seen.counter,
            seen.is_syncable,
            seen.is_synced,
            registration.transports,
            name,
            ceremonies.now,
        )
        codes, digests = self._factors.new_recovery_codes(user)
        outcome = await self._store.add(
            principal,
            passkey,
            ceremonies.used(challenge),
            digests,
            await self._mail(MailKind.PASSKEY_ADDED, user),
            event(attribution, principal.tenant, AuditEvent.ADD_PASSKEY),
        )
        if outcome is Use.CHALLENGE_USED:
            raise InvalidRegistrationError(PasskeyProblem.CHALLENGE)
        self._lookups.accept(ceremonies.lookup_digest(passkey.credential_id))
        await self._audit_delivery.deliver()
        return passkey, codes if outcome is Use.ACCEPTED else ()

    async def rename(
        self, principal: SessionPrincipal, passkey: UUID, name: str, attribution: Attribution
    ) -> Passkey:
        """Rename one of a user's passkeys. Raises PasskeyNotFoundError."""
        renamed = event(attribution, principal.tenant, AuditEvent.RENAME_PASSKEY)
        stored = await self._store.rename(principal.user, passkey, name, renamed)
        await self._audit_delivery.deliver()
        return stored

    async def remove(
        self,
        principal: SessionPrincipal,
        passkey: UUID,
        factor_at: datetime | None,
        attribution: Attribution,
    ) -> None:
        """Remove one of a user's passkeys, and end the user's other sessions.

        ``factor_at``: when the factor of the step-up was added; None in a rehearsal. Raises
        PasskeyNotFoundError, NewerFactorError, LastFactorError.
        """
        removed = await self._store.get(principal.user, passkey)
        oldest = max(removed.created_at, self._ceremonies.now - TRIAL)
        if factor_at is not None and factor_at > oldest:
            raise NewerFactorError
        mail = await self._mail(MailKind.PASSKEY_REMOVED, principal.user)
        gone = event(attribution, principal.tenant, AuditEvent.REMOVE_PASSKEY)
        await self._store.remove(principal, passkey, mail, gone)
        await self._audit_delivery.deliver()

    def begin_sign_in(self, browser: str, source_address: str) -> Ceremony:
        """Return a challenge for a sign-in in the browser with this cookie.

        It names no passkeys, so that it reveals no accounts. Raises TooManyAttemptsError.
        """
        self._ceremonies.count_beginning(source_address)
        return self._ceremony(CeremonyPurpose.SIGN_IN, _text(browser))

    async def identify(
        self, browser: str, assertion: Assertion, attribution: Attribution
    ) -> Account:
        """Return the account of the passkey that was used to sign in.

        Raises InvalidPasskeyError, TooManyAttemptsError, TooManyUnknownCredentialsError.
        """
        challenge = self._ceremonies.challenge_in(
            assertion.client_data, CeremonyPurpose.SIGN_IN, _text(browser)
        )
        passkey = await self._lookups.find(
            self._ceremonies.lookup_digest(assertion.credential_id),
            attribution.source_address,
            lambda _: self._store.find(assertion.credential_id),
        )
        if passkey is None:
            raise InvalidPasskeyError(PasskeyProblem.UNKNOWN)
        account = await self._users.get(passkey.user)
        async with self._attempts.passkey(account.user.email, attribution.source_address):
            try:
                self._require_person(account, passkey, assertion)
                await self._check(account, passkey, challenge, assertion, attribution)
            except InvalidPasskeyError as refused:
                operation = AuditEvent.SIGN_IN_WITH_PASSKEY
                await self._record(account, operation, "ERR_AUTH_001", refused, attribution)
                raise
        return account

    async def begin_step_up(self, principal: SessionPrincipal) -> Ceremony:
        """Return a challenge for a session's step-up. Raises PasskeyNotFoundError without one."""
        known = await self._store.list(principal.user)
        if not known:
            raise PasskeyNotFoundError
        return self._ceremony(CeremonyPurpose.STEP_UP, _owner(principal), known)

    async def check_step_up(
        self, principal: SessionPrincipal, assertion: Assertion, attribution: Attribution
    ) -> Passkey:
        """Return the passkey that proves a session's person. The caller counts attempts.

        Raises WrongPasskeyError.
        """
        account = await self._users.get(principal.user)
        try:
            challenge = self._ceremonies.challenge_in(
                assertion.client_data, CeremonyPurpose.STEP_UP, _owner(principal)
            )
            passkey = await self._own(principal, assertion)
            await self._check(account, passkey, challenge, assertion, attribution)
        except InvalidPasskeyError as refused:
            operation = AuditEvent.STEP_UP_FAILED
            await self._record(account, operation, "ERR_MFA_001", refused, attribution)
            raise WrongPasskeyError from None
        return passkey

    def _ceremony(
        self,
        purpose: CeremonyPurpose,
        owner: bytes,
        known: tuple[Passkey, ...] = (),
        email: str = "",
    ) -> Ceremony:
        challenge = self._ceremonies.new_challenge(purpose, owner)
        return Ceremony(challenge, self._ceremonies.party, known, email)

    def _require_person(self, account: Account, passkey: Passkey, assertion: Assertion) -> None:
        """Raise InvalidPasskeyError unless the person may sign in with this passkey."""
        is_enabled = self._passwords.are_enabled(account.user.tenant)
        if assertion.user_handle != passkey.user.bytes or not is_enabled:
            raise InvalidPasskeyError(PasskeyProblem.PERSON)

    async def _own(self, principal: SessionPrincipal, assertion: Assertion) -> Passkey:
        passkey = await self._store.find(assertion.credential_id)
        if passkey is None or passkey.user != principal.user:
            raise InvalidPasskeyError(PasskeyProblem.UNKNOWN)
        if assertion.user_handle not in {None, principal.user.bytes}:
            raise InvalidPasskeyError(PasskeyProblem.PERSON)
        return passkey

    async def _check(
        self,
        account: Account,
        passkey: Passkey,
        challenge: bytes,
        assertion: Assertion,
        attribution: Attribution,
    ) -> None:
        """Check a use of a passkey, and use up its challenge. Raises InvalidPasskeyError."""
        seen = await self._ceremonies.check_assertion(
            account.user.tenant, passkey, assertion, attribution
        )
        used, now = self._ceremonies.used(challenge), self._ceremonies.now
        outcome = await self._store.use(passkey, used, now, seen.counter, is_synced=seen.is_synced)
        if outcome is not Use.ACCEPTED:
            raise InvalidPasskeyError(_PROBLEMS[outcome])

    async def _record(
        self,
        account: Account,
        operation: AuditEvent,
        outcome: str,
        refused: InvalidPasskeyError,
        attribution: Attribution,
    ) -> None:
        """Record a refused use; tell the person of a passkey that may have been copied."""
        user = account.user
        is_clone = refused.problem is PasskeyProblem.COUNTER
        failed = event(
            attribution.by(str(user)),
            user.tenant,
            AuditEvent.PASSKEY_CLONED if is_clone else operation,
            outcome=outcome,
            policy=f"passkey-{refused.problem}",
        )
        if is_clone:
            mail = await self._mail(MailKind.PASSKEY_CLONED, user.id)
            await self._store.record_clone(user.id, mail, failed)
            await self._audit_delivery.deliver()
        else:
            await self._audit_delivery.record(failed)

    async def _mail(self, kind: MailKind, user: UserId) -> OutgoingMail:
        email = (await self._users.get(user)).user.email
        return new_mail(kind, email, self._ceremonies.now)


_PROBLEMS: Mapping[Use, PasskeyProblem] = {
    Use.CHALLENGE_USED: PasskeyProblem.CHALLENGE,
    Use.GONE: PasskeyProblem.UNKNOWN,
    Use.NOT_HIGHER: PasskeyProblem.COUNTER,
}


def _algorithm_of(identifier: int) -> GivenKeyAlgorithm:
    try:
        return COSE_ALGORITHMS[identifier]
    except KeyError:
        raise InvalidPasskeyError(PasskeyProblem.ALGORITHM) from None


def _owner(principal: SessionPrincipal) -> bytes:
    return principal.session.bytes + principal.user.bytes


def _text(browser: str) -> bytes:
    return browser.encode("utf-8", "surrogatepass")


def _client_data(data: bytes) -> _ClientData:
    try:
        return decode_json(data, _ClientData)
    except MalformedDocumentError:
        raise InvalidPasskeyError(PasskeyProblem.CLIENT_DATA) from None


def _read(data: bytes, party: RelyingParty) -> AuthenticatorData:
    """Return the flags and the counter of authenticator data (section 6.1).

    Raises InvalidPasskeyError unless it is for this relying party, and the authenticator verified
    the person.
    """
    if len(data) < _HEADER:
        raise InvalidPasskeyError(PasskeyProblem.FORM)
    flags, counter = data[32], int.from_bytes(data[33:_HEADER], "big")
    has_more = bool(flags & (_AT | _ED))
    if has_more is not (len(data) > _HEADER):
        raise InvalidPasskeyError(PasskeyProblem.FORM)
    if not hmac.compare_digest(data[:32], sha256(party.id.encode()).digest()):
        raise InvalidPasskeyError(PasskeyProblem.RELYING_PARTY)
    if not flags & _UP:
        raise InvalidPasskeyError(PasskeyProblem.USER_PRESENCE)
    if not flags & _UV:
        raise InvalidPasskeyError(PasskeyProblem.USER_VERIFICATION)
    if flags & _BS and not flags & _BE:
        raise InvalidPasskeyError(PasskeyProblem.FLAGS)
    return AuthenticatorData(counter, bool(flags & _BE), bool(flags & _BS))


def _check_attested(registration: Registration) -> None:
    """Raise InvalidPasskeyError unless the authenticator data has the credential's id."""
    data, id_ = registration.authenticator_data, registration.credential_id
    start = _HEADER + _ATTESTED
    has_id = (
        bool(data[32] & _AT)
        and 0 < len(id_) <= MAX_CREDENTIAL_ID
        and int.from_bytes(data[start - 2 : start], "big") == len(id_)
        and data[start : start + len(id_)] == id_
        and len(data) > start + len(id_)
    )
    if not has_id:
        raise InvalidPasskeyError(PasskeyProblem.FORM)

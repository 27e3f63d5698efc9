"""/api/v1/auth/passkeys: adding, listing and removing passkeys, and signing in with one."""

from typing import Annotated, cast
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.credentials import CredentialKind, kind_of, new_credential
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.api.errors import UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import (
    CEREMONY,
    EXAMPLE_TIME,
    SIGNED_IN,
    USER,
    AssertionFields,
    CeremonyData,
    Identifier,
    ceremony_data,
)
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    Field,
    InvalidValueError,
    base64_field,
    text_field,
    uuid_field,
)
from pqkeep_gateway.http.text import Base64, Timestamp, base64, timestamp
from pqkeep_gateway.people.passkeys import (
    COSE_ALGORITHMS,
    MAX_AUTHENTICATOR_DATA,
    MAX_CLIENT_DATA,
    MAX_CREDENTIAL_ID,
    TRANSPORTS,
    InvalidPasskeyError,
    InvalidRegistrationError,
    NewerFactorError,
    Passkeys,
    Registration,
)
from pqkeep_gateway.people.passwords import PasswordsDisabledError
from pqkeep_gateway.people.sessions import client_name, stored_user_agent
from pqkeep_gateway.people.sign_in import SignIn
from pqkeep_gateway.people.step_up import StepUp
from pqkeep_gateway.storage.passkeys import (
    Passkey,
    PasskeyExistsError,
    PasskeyNotFoundError,
    TooManyPasskeysError,
)
from pqkeep_gateway.storage.users import LastFactorError
from pqkeep_protocol.algorithms import MAX_GIVEN_KEY

MAX_NAME = 64
SERVICE = "pqkeep"


class PasskeyData(Data, frozen=True, kw_only=True):
    """One passkey."""

    id: Identifier
    name: str
    created_at: Timestamp
    last_used_at: Annotated[
        Timestamp | None, Meta(description="The time of the last use; null: never used.")
    ]
    syncable: Annotated[
        bool, Meta(description="Whether it can be copied to the person's other devices.")
    ]
    synced: Annotated[
        bool, Meta(description="Whether its last use showed that it is backed up or synced.")
    ]


class NewPasskeyData(PasskeyData, frozen=True, kw_only=True):
    """A new passkey, and the recovery codes if it is the first second factor."""

    recovery_codes: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(description="Shown only once. Each replaces a second factor once."),
    ] = UNSET


class PasskeysData(Data, frozen=True, kw_only=True):
    """A person's passkeys, the oldest first."""

    passkeys: tuple[PasskeyData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of passkeys.")]


class NewCeremonyData(CeremonyData, frozen=True, kw_only=True):
    """The values with which a browser makes a passkey: navigator.credentials.create."""

    rp_name: str
    user_id: Annotated[Base64, Meta(description="The person's user handle.")]
    user_name: Annotated[str, Meta(description="The person's e-mail address.")]
    algorithms: Annotated[
        tuple[int, ...], Meta(description="COSE identifiers, the preferred one first.")
    ]


class RemovedPasskeyData(Data, frozen=True, kw_only=True):
    """The passkey is removed."""

    removed: bool


_EXAMPLE_ID = "6c8f3c0e-5a5e-4f8e-9d0c-2b1f4a0b8e62"
_PASSKEY = PasskeyData(
    id=_EXAMPLE_ID,
    name="Chrome on Windows",
    created_at=EXAMPLE_TIME,
    last_used_at=None,
    syncable=True,
    synced=True,
)
_NEW = NewPasskeyData(
    id=_EXAMPLE_ID,
    name=_PASSKEY.name,
    created_at=EXAMPLE_TIME,
    last_used_at=None,
    syncable=True,
    synced=True,
    recovery_codes=("abcd-efgh-ijkl-mnop",),
)


def _parse_algorithm(value: object) -> int:
    if type(value) is not int or value not in COSE_ALGORITHMS:
        raise InvalidValueError("must be one of " + ", ".join(map(str, COSE_ALGORITHMS)))
    return value


def _parse_transports(value: object) -> tuple[str, ...]:
    listed = cast("list[object]", value) if isinstance(value, list) else None
    if listed is None or not all(isinstance(transport, str) for transport in listed):
        raise InvalidValueError("must be a list of texts")
    return tuple(transport for transport in TRANSPORTS if transport in listed)


_ID = uuid_field("id", "The passkey's identifier.", _EXAMPLE_ID, not_found="no such passkey")
_NAME = text_field("name", "A name that its owner recognizes.", _PASSKEY.name, at_most=MAX_NAME)
_OPTIONAL_NAME = _NAME.described(f"{_NAME.description} Left out: the browser's name.").optional()
_CREDENTIAL_ID = base64_field(
    "credential_id",
    "The new credential's id.",
    "AAECAwQFBgcICQoLDA0ODw==",
    at_most=MAX_CREDENTIAL_ID,
)
_CLIENT_DATA = base64_field(
    "client_data", "response.clientDataJSON.", "e30=", at_most=MAX_CLIENT_DATA
)
_AUTHENTICATOR_DATA = base64_field(
    "authenticator_data",
    "response.getAuthenticatorData().",
    "AAAA",
    at_most=MAX_AUTHENTICATOR_DATA,
)
_PUBLIC_KEY = base64_field(
    "public_key",
    "response.getPublicKey(): a SubjectPublicKeyInfo in DER.",
    "MFkw",
    at_most=MAX_GIVEN_KEY,
)
_ALGORITHM: Field[int] = Field(
    name="algorithm",
    description="response.getPublicKeyAlgorithm(): a COSE identifier.",
    schema={"type": "integer", "enum": list(COSE_ALGORITHMS)},
    example=-7,
    parse=_parse_algorithm,
)
_TRANSPORTS: Field[tuple[str, ...]] = Field(
    name="transports",
    description="response.getTransports(). Unknown ones are ignored.",
    schema={"type": "array", "items": {"type": "string"}},
    example=["internal"],
    parse=_parse_transports,
    required=False,
    default=(),
)
_ASSERTION = AssertionFields()


def endpoints(
    passkeys: Passkeys, sign_in: SignIn, step_up: StepUp, cookies: Cookies
) -> tuple[Endpoint, ...]:
    """Return the endpoints of passkeys."""
    handlers = _Passkeys(passkeys, sign_in, step_up, cookies)
    disabled = passkeys.disabled
    return (
        Endpoint(
            method="POST",
            path="/auth/passkeys/begin",
            name="begin_passkey",
            handler=handlers.begin,
            permission=Permission.OWN_ACCOUNT,
            needs_step_up=True,
            during_enrollment=True,
            disabled=disabled,
            field_codes=UNPROCESSABLE_FIELDS,
            example=NewCeremonyData(
                challenge=CEREMONY.challenge,
                rp_id=CEREMONY.rp_id,
                credentials=(),
                expires_in=CEREMONY.expires_in,
                rp_name=SERVICE,
                user_id=base64(UUID(USER.id).bytes),
                user_name=USER.email,
                algorithms=tuple(COSE_ALGORITHMS),
            ),
            errors=(TooManyPasskeysError, PasswordsDisabledError),
        ),
        Endpoint(
            method="POST",
            path="/auth/passkeys",
            name="add_passkey",
            handler=handlers.add,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            disabled=disabled,
            fields=(
                _CREDENTIAL_ID,
                _CLIENT_DATA,
                _AUTHENTICATOR_DATA,
                _PUBLIC_KEY,
                _ALGORITHM,
                _TRANSPORTS,
                _OPTIONAL_NAME,
            ),
            field_codes=UNPROCESSABLE_FIELDS,
            status=201,
            example=_NEW,
            errors=(
                InvalidRegistrationError,
                PasskeyExistsError,
                TooManyPasskeysError,
                PasswordsDisabledError,
                TooManyAttemptsError,
            ),
        ),
        Endpoint(
            method="GET",
            path="/auth/passkeys",
            name="list_passkeys",
            handler=handlers.list,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            field_codes=UNPROCESSABLE_FIELDS,
            example=PasskeysData(passkeys=(_PASSKEY,), total=1),
        ),
        Endpoint(
            method="PATCH",
            path="/auth/passkeys/{id}",
            name="rename_passkey",
            handler=handlers.rename,
            permission=Permission.OWN_ACCOUNT,
            needs_step_up=True,
            fields=(_ID, _NAME),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_PASSKEY,
            errors=(PasskeyNotFoundError,),
        ),
        Endpoint(
            method="DELETE",
            path="/auth/passkeys/{id}",
            name="remove_passkey",
            handler=handlers.remove,
            permission=Permission.OWN_ACCOUNT,
            needs_step_up=True,
            fields=(_ID,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=RemovedPasskeyData(removed=True),
            errors=(PasskeyNotFoundError, NewerFactorError, LastFactorError),
        ),
        Endpoint(
            method="POST",
            path="/auth/passkeys/begin-sign-in",
            name="begin_passkey_sign_in",
            handler=handlers.begin_sign_in,
            permission=Permission.PUBLIC,
            disabled=disabled,
            field_codes=UNPROCESSABLE_FIELDS,
            example=CEREMONY,
            errors=(TooManyAttemptsError,),
        ),
        Endpoint(
            method="POST",
            path="/auth/passkeys/sign-in",
            name="sign_in_with_passkey",
            handler=handlers.sign_in,
            permission=Permission.PUBLIC,
            disabled=disabled,
            fields=_ASSERTION.required,
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_IN,
            errors=(InvalidPasskeyError, TooManyAttemptsError, TooManyUnknownCredentialsError),
        ),
        Endpoint(
            method="POST",
            path="/auth/passkeys/begin-step-up",
            name="begin_passkey_step_up",
            handler=handlers.begin_step_up,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            disabled=disabled,
            field_codes=UNPROCESSABLE_FIELDS,
            example=CEREMONY,
            errors=(PasskeyNotFoundError,),
        ),
    )


class _Passkeys:
    """The handlers."""

    def __init__(
        self, passkeys: Passkeys, sign_in: SignIn, step_up: StepUp, cookies: Cookies
    ) -> None:
        self._passkeys = passkeys
        self._sign_in = sign_in
        self._step_up = step_up
        self._cookies = cookies

    async def begin(self, call: ApiCall) -> NewCeremonyData:
        """Begin to add a passkey: return the values for navigator.credentials.create.

        The challenge is valid once, for five minutes, in this session. The browser must verify the
        person, make a discoverable credential, and send no attestation.
        """
        begun = await self._passkeys.begin(call.person)
        data = ceremony_data(begun)
        return NewCeremonyData(
            challenge=data.challenge,
            rp_id=data.rp_id,
            credentials=data.credentials,
            expires_in=data.expires_in,
            rp_name=SERVICE,
            user_id=base64(call.person.user.bytes),
            user_name=begun.email,
            algorithms=tuple(COSE_ALGORITHMS),
        )

    async def add(self, call: ApiCall) -> NewPasskeyData:
        """Add a passkey, and end the person's other sessions.

        Signing in with the password then needs a passkey, too. The first second factor comes with
        recovery codes, which are shown only once.
        """
        registration = Registration(
            call[_CREDENTIAL_ID],
            call[_CLIENT_DATA],
            call[_AUTHENTICATOR_DATA],
            call[_PUBLIC_KEY],
            call[_ALGORITHM],
            call[_TRANSPORTS],
        )
        client = client_name(stored_user_agent(call.user_agent))
        name = call[_OPTIONAL_NAME] or client or "Passkey"
        passkey, codes = await self._passkeys.add(call.person, registration, name, call.attribution)
        data = _data(passkey)
        return NewPasskeyData(
            id=data.id,
            name=data.name,
            created_at=data.created_at,
            last_used_at=None,
            syncable=data.syncable,
            synced=data.synced,
            recovery_codes=codes or UNSET,
        )

    async def list(self, call: ApiCall) -> PasskeysData:
        """List the person's own passkeys, the oldest first."""
        shown = tuple(_data(passkey) for passkey in await self._passkeys.list(call.person.user))
        return PasskeysData(passkeys=shown, total=len(shown))

    async def rename(self, call: ApiCall) -> PasskeyData:
        """Rename one of the person's passkeys."""
        return _data(
            await self._passkeys.rename(call.person, call[_ID], call[_NAME], call.attribution)
        )

    async def remove(self, call: ApiCall) -> RemovedPasskeyData:
        """Remove one of the person's passkeys, and end the other sessions.

        The step-up must use the passkey itself, an older factor, or a factor that is at least seven
        days old. The last second factor stays while the organization requires one.
        """
        person, token = call.person, call.step_up_token
        factor_at = await self._step_up.factor_at(person, token) if token else None
        await self._passkeys.remove(person, call[_ID], factor_at, call.attribution)
        return RemovedPasskeyData(removed=True)

    async def begin_sign_in(self, call: ApiCall) -> WithCookies:
        """Begin to sign in with a passkey: return the values for navigator.credentials.get.

        The challenge is valid once, for five minutes, with the cookie of this response. The
        response names no credential, so the browser offers its own passkeys.
        """
        browser = call.cookies.get(self._cookies.browser, "")
        if kind_of(browser) is not CredentialKind.BROWSER:
            browser = new_credential(CredentialKind.BROWSER)
        begun = self._passkeys.begin_sign_in(browser, call.attribution.source_address)
        return WithCookies(ceremony_data(begun), (self._cookies.of_browser(browser),))

    async def sign_in(self, call: ApiCall) -> WithCookies:
        """Sign in with a passkey, without a password. The tokens are in cookies.

        The authenticator verified the person, so this counts as both factors. All refusals have
        the same response.
        """
        browser = call.cookies.get(self._cookies.browser, "")
        tokens = await self._sign_in.with_passkey(
            browser, _ASSERTION.read(call), call.attribution, call.user_agent
        )
        return WithCookies(SIGNED_IN, self._cookies.of(tokens))

    async def begin_step_up(self, call: ApiCall) -> CeremonyData:
        """Begin a step-up with a passkey: return the values for navigator.credentials.get.

        The challenge is valid once, for five minutes, in this session. Send the result to
        /auth/step-up.
        """
        return ceremony_data(await self._passkeys.begin_step_up(call.person))


def _data(passkey: Passkey) -> PasskeyData:
    used = passkey.last_used_at
    return PasskeyData(
        id=str(passkey.id),
        name=passkey.name,
        created_at=timestamp(passkey.created_at),
        last_used_at=None if used is None else timestamp(used),
        syncable=passkey.is_syncable,
        synced=passkey.is_synced,
    )

"""The fields of requests about people, and the data of people and their sessions."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    LIST_LIMIT,
    Field,
    base64_field,
    choice_field,
    text_field,
    uuid_field,
)
from pqkeep_gateway.http.text import Base64, Timestamp, base64, timestamp
from pqkeep_gateway.outgoing_mail import EMAIL_PATTERN, MAX_EMAIL, is_email
from pqkeep_gateway.people.passkeys import LIFETIME as CEREMONY_LIFETIME
from pqkeep_gateway.people.passkeys import (
    MAX_AUTHENTICATOR_DATA,
    MAX_CLIENT_DATA,
    MAX_CREDENTIAL_ID,
    Assertion,
    Ceremony,
)
from pqkeep_gateway.people.passwords import MAX_LENGTH, MIN_LENGTH
from pqkeep_gateway.people.sessions import ACCESS_LIFETIME
from pqkeep_gateway.storage.pages import Page, Part
from pqkeep_gateway.storage.users import User
from pqkeep_protocol.algorithms import MAX_GIVEN_SIGNATURE

MAX_TOKEN = 128

Identifier = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Email = Annotated[str, Meta(description="An e-mail address. It is unique, and case-insensitive.")]


Next = Annotated[str | UnsetType, Meta(description="Present if there are more: send it as after.")]


class FirstDayData(Data, frozen=True, kw_only=True):
    """What a person said about the list of the first day on the portal's overview."""

    dismissed: Annotated[bool, Meta(description="Whether the overview leaves the list out.")]
    checkpoint_kept: Annotated[
        bool, Meta(description="Whether a checkpoint of the audit log is kept elsewhere.")
    ]


class UserData(Data, frozen=True, kw_only=True):
    """One person."""

    id: Identifier
    email: Email
    role: Role
    tenant_id: Identifier
    created_at: Timestamp
    mfa_enabled: Annotated[
        bool, Meta(description="Whether the person has an authenticator app.")
    ] = False
    email_codes: Annotated[
        bool, Meta(description="Whether each sign-in without an app sends a code by e-mail.")
    ] = False
    passkeys: Annotated[int, Meta(ge=0, description="The number of the person's passkeys.")] = 0
    first_day: Annotated[
        FirstDayData | UnsetType,
        Meta(
            description="The caller's progress on the first day. Only the caller's own account has it."
        ),
    ] = UNSET


class SignedInData(Data, frozen=True, kw_only=True):
    """A new or refreshed session. Its tokens are in cookies."""

    expires_in: Annotated[int, Meta(ge=1, description="The seconds until it must be refreshed.")]


class SignedOutData(Data, frozen=True, kw_only=True):
    """One session or all sessions have ended."""

    signed_out: bool


class SessionData(Data, frozen=True, kw_only=True):
    """One session."""

    id: Identifier
    created_at: Timestamp
    refreshed_at: Timestamp
    source_address: Annotated[str, Meta(description="The source address at its start.")]
    current: Annotated[bool, Meta(description="Whether it is the session of this request.")]
    client: Annotated[
        str | UnsetType | None,
        Meta(description="With details: a browser and its system, or a program; null: unknown."),
    ] = UNSET


class SessionsData(Data, frozen=True, kw_only=True):
    """A person's sessions, the newest first."""

    sessions: tuple[SessionData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of sessions on all pages.")]
    next: Next = UNSET


class InvitationData(Data, frozen=True, kw_only=True):
    """An invitation. If the installation sends e-mail, the message has its token."""

    id: Identifier
    invitation_token: Annotated[
        str | UnsetType,
        Meta(description="Shown once: to an operator, and if no e-mail is sent."),
    ] = UNSET
    email: Email
    role: Role
    expires_at: Timestamp


class AcceptedData(Data, frozen=True, kw_only=True):
    """The request was accepted. An e-mail says what follows, for known and unknown addresses."""

    accepted: bool


def _with_minimum(field: Field[str]) -> Field[str]:
    """Document the minimum length, which is checked when a password is chosen."""
    return replace(field, schema={**field.schema, "minLength": MIN_LENGTH})


EXAMPLE_TIME = timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC))
USER = UserData(
    id="0b6a4f0e-6f0c-4c39-9a53-0a9f1c1d2e3f",
    email="ada@example.com",
    role=Role.OWNER,
    tenant_id="6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11",
    created_at=EXAMPLE_TIME,
)
SIGNED_IN = SignedInData(expires_in=int(ACCESS_LIFETIME.total_seconds()))
SIGNED_OUT = SignedOutData(signed_out=True)
ACCEPTED = AcceptedData(accepted=True)
SESSION = SessionData(
    id="c1f1cbd4-7a39-4f9e-8f7e-5b0c3f6a9d21",
    created_at=EXAMPLE_TIME,
    refreshed_at=EXAMPLE_TIME,
    source_address="192.0.2.7",
    current=True,
)
INVITATION = InvitationData(
    id="5d0f5c0a-2f0e-4f3b-9d0c-7c1f4a0b8e62",
    invitation_token="pqi_" + "0" * 43 + "3aXb2c",
    email="grace@example.com",
    role=Role.DEVELOPER,
    expires_at=EXAMPLE_TIME,
)

EMAIL = text_field(
    "email",
    "The e-mail address.",
    USER.email,
    at_most=MAX_EMAIL,
    pattern=EMAIL_PATTERN,
    is_valid=is_email,
    must="must be an e-mail address",
)
SIGN_IN_EMAIL = text_field("email", "The e-mail address.", USER.email, at_most=MAX_EMAIL)
PASSWORD = text_field(
    "password", "The password.", "the horse prefers oats", at_most=MAX_LENGTH, is_valid=None
)
_RULE = f"{MIN_LENGTH} to {MAX_LENGTH} characters, and not a common password."
NEW_PASSWORD = _with_minimum(PASSWORD.described(_RULE))
OTHER_PASSWORD = _with_minimum(
    text_field(
        "new_password", _RULE, "the horse is tired of oats", at_most=MAX_LENGTH, is_valid=None
    )
)
ROLE = choice_field("role", "The member's role.", tuple(Role), Role.DEVELOPER)


class CredentialData(Data, frozen=True, kw_only=True):
    """A passkey, as browsers identify it."""

    id: Annotated[Base64, Meta(description="The credential's id.")]
    transports: Annotated[
        tuple[str, ...], Meta(description="The ways to reach the authenticator, if known.")
    ]


class CeremonyData(Data, frozen=True, kw_only=True):
    """The values with which a browser uses a passkey: navigator.credentials.get."""

    challenge: Base64
    rp_id: Annotated[str, Meta(description="The host name of the portal.")]
    credentials: Annotated[
        tuple[CredentialData, ...],
        Meta(description="The person's passkeys; empty at a sign-in. A new one must not be here."),
    ]
    expires_in: Annotated[int, Meta(ge=1, description="The lifetime in seconds.")]


CEREMONY = CeremonyData(
    challenge=base64(bytes(range(56))),
    rp_id="keys.example.com",
    credentials=(),
    expires_in=int(CEREMONY_LIFETIME.total_seconds()),
)


def ceremony_data(begun: Ceremony) -> CeremonyData:
    """Return the values for a browser in API form."""
    return CeremonyData(
        challenge=base64(begun.challenge),
        rp_id=begun.relying_party.id,
        credentials=tuple(
            CredentialData(id=base64(passkey.credential_id), transports=passkey.transports)
            for passkey in begun.passkeys
        ),
        expires_in=int(CEREMONY_LIFETIME.total_seconds()),
    )


_USED_CREDENTIAL = base64_field(
    "credential_id",
    "The id of the credential that the browser used.",
    "AAECAwQFBgcICQoLDA0ODw==",
    at_most=MAX_CREDENTIAL_ID,
)
_CLIENT_DATA = base64_field(
    "client_data", "response.clientDataJSON.", "e30=", at_most=MAX_CLIENT_DATA
)
_AUTHENTICATOR_DATA = base64_field(
    "authenticator_data", "response.authenticatorData.", "AAAA", at_most=MAX_AUTHENTICATOR_DATA
)
_SIGNATURE = base64_field("signature", "response.signature.", "MEUC", at_most=MAX_GIVEN_SIGNATURE)
_USER_HANDLE = base64_field(
    "user_handle", "response.userHandle.", base64(UUID(USER.id).bytes), at_most=64
)


class AssertionFields:
    """The fields of a passkey's use."""

    required = (
        _USED_CREDENTIAL,
        _CLIENT_DATA,
        _AUTHENTICATOR_DATA,
        _SIGNATURE,
        _USER_HANDLE.optional(),
    )
    """The fields if a passkey is the only way."""
    optional = tuple(field.optional() for field in required)
    """The fields if other proofs are possible."""
    present = optional[0]
    """Whether a request has them."""

    def read(self, call: ApiCall) -> Assertion:
        """Return the use. Raises FieldError."""
        return Assertion(
            call[_USED_CREDENTIAL],
            call[_CLIENT_DATA],
            call[_AUTHENTICATOR_DATA],
            call[_SIGNATURE],
            call[_USER_HANDLE.optional()],
        )


def token_field(description: str, kind: str) -> Field[str]:
    """Return the field of a token from a message."""
    return text_field("token", description, kind + "0" * 43 + "3aXb2c", at_most=MAX_TOKEN)


def user_data(user: User) -> UserData:
    """Return a person in API form."""
    return UserData(
        id=str(user.id),
        email=user.email,
        role=user.role,
        tenant_id=str(user.tenant),
        created_at=timestamp(user.created_at),
    )


AFTER = uuid_field(
    "after",
    "Only entries after this one: the value `next` of the previous page.",
    "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11",
).optional()


class _Listed(Protocol):
    @property
    def id(self) -> str: ...


def part_of(call: ApiCall) -> Part:
    """Return the requested part of a list."""
    return Part(call[LIST_LIMIT], call[AFTER])


def next_of(page: Page[Any], shown: Sequence[_Listed]) -> str | UnsetType:
    """Return the start of the next part; unset at the end."""
    return shown[-1].id if page.has_more else UNSET

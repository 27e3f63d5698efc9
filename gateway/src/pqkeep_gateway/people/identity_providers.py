"""Checks of an OpenID Connect provider's responses, and the person that they name. No I/O.

An ID token comes from the token endpoint, over TLS. TLS authenticates the server in place of the
token's signature (OpenID Connect Core 1.0, section 3.1.3.7, no. 6), so the token's header is not
read. No page or message shows the value of a claim.
"""

import hmac
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from pqkeep_gateway.outgoing_mail import is_email
from pqkeep_gateway.signed_tokens import base64url
from pqkeep_gateway.storage.identities import Identity, Provider, VerifiedPerson
from pqkeep_protocol.documents import MalformedDocumentError, decode_json

LIFETIME = timedelta(minutes=10)
"""The time for a sign-in at the provider."""
SKEW_SECONDS = 60
"""The accepted difference of the provider's clock."""
_PARTS = 3

Claims = Mapping[str, object]


class InvalidProviderResponseError(Exception):
    """A provider's response violates OpenID Connect. The message names the wrong part."""


class Metadata(Struct, frozen=True):
    """A provider's metadata (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


def metadata_of(document: bytes, issuer: str) -> Metadata:
    """Return a discovery document's metadata. Raises InvalidProviderResponseError.

    The issuer must equal the one in the settings, byte for byte. Endpoints must use https. If the
    issuer uses http, endpoints on this machine may, too.
    """
    try:
        metadata = decode_json(document, Metadata)
    except MalformedDocumentError:
        raise InvalidProviderResponseError("discovery document") from None
    if metadata.issuer != issuer:
        raise InvalidProviderResponseError("issuer in the discovery document")
    endpoints = (
        metadata.authorization_endpoint,
        metadata.token_endpoint,
        metadata.userinfo_endpoint or metadata.token_endpoint,
    )
    if not all(_is_endpoint(endpoint, issuer) for endpoint in endpoints):
        raise InvalidProviderResponseError("endpoint in the discovery document")
    return metadata


def claims_of(id_token: str) -> Claims:
    """Return the claims in an ID token. Raises InvalidProviderResponseError."""
    parts = id_token.split(".")
    if len(parts) != _PARTS:
        raise InvalidProviderResponseError("form of the ID token")
    try:
        return decode_json(base64url(parts[1]), dict[str, object])
    except ValueError:
        raise InvalidProviderResponseError("form of the ID token") from None


class _IdToken(Struct, frozen=True):
    """The claims that bind an ID token to this client and this sign-in."""

    iss: str
    sub: Annotated[str, Meta(min_length=1, max_length=255)]
    aud: str | tuple[str, ...]
    exp: float
    iat: float
    nonce: str = ""
    azp: str | None = None
    auth_time: float = 0


def verified(claims: Claims, provider: Provider, nonce: str, now: float) -> VerifiedPerson:
    """Check an ID token, and return its person (OpenID Connect Core 1.0, section 3.1.3.7).

    Raises InvalidProviderResponseError.
    """
    try:
        token = msgspec.convert(claims, _IdToken)
    except (msgspec.ValidationError, OverflowError):
        raise InvalidProviderResponseError("claims of the ID token") from None
    audiences = (token.aud,) if isinstance(token.aud, str) else token.aud
    authorized = token.azp if len(audiences) > 1 else token.azp or provider.client_id
    oldest = now - LIFETIME.total_seconds() - SKEW_SECONDS
    checks = {
        "iss": token.iss == provider.issuer,
        "aud": provider.client_id in audiences,
        "azp": authorized == provider.client_id,
        "exp": now < token.exp + SKEW_SECONDS,
        "iat": oldest < token.iat <= now + SKEW_SECONDS,
        "nonce": hmac.compare_digest(token.nonce.encode("utf-8", "surrogatepass"), nonce.encode()),
        "sub": token.sub.isascii() and token.sub.isprintable(),
    }
    for name, holds in checks.items():
        if not holds:
            raise InvalidProviderResponseError(f"{name} of the ID token")
    return VerifiedPerson(
        Identity(provider.issuer, token.sub),
        _email_in(claims, provider),
        _groups_in(claims, provider),
        token.auth_time,
    )


def lacks_personal_claims(claims: Claims, provider: Provider) -> bool:
    """Return whether an ID token has no e-mail address or no groups; UserInfo may have them."""
    return "email" not in claims or provider.groups_claim not in claims


def with_userinfo(claims: Claims, userinfo: bytes, provider: Provider) -> Claims:
    """Return an ID token's claims with the e-mail address and groups of UserInfo (section 5.3).

    The ID token's values take precedence. Raises InvalidProviderResponseError if UserInfo is
    about another person.
    """
    try:
        more = decode_json(userinfo, dict[str, object])
    except MalformedDocumentError:
        raise InvalidProviderResponseError("UserInfo") from None
    if more.get("sub") is None or more["sub"] != claims.get("sub"):
        raise InvalidProviderResponseError("sub of UserInfo")
    names = [provider.groups_claim] if provider.groups_claim not in claims else []
    if "email" not in claims:
        names += ["email", "email_verified"]  # both from the same source
    return {**claims, **{name: more.get(name) for name in names}}


def _email_in(claims: Claims, provider: Provider) -> str | None:
    email = claims.get("email")
    if not isinstance(email, str) or claims.get("email_verified") is not True:
        return None
    return email if is_email(email) and provider.vouches_for(email) else None


def _groups_in(claims: Claims, provider: Provider) -> frozenset[str]:
    groups = claims.get(provider.groups_claim)
    listed = groups if isinstance(groups, list) else [groups]
    return frozenset(group for group in listed if isinstance(group, str))


def _is_endpoint(url: str, issuer: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    is_text = url.isascii() and url.isprintable() and " " not in url
    is_here = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost"}
    is_allowed = parts.scheme == "https" or (is_here and issuer.startswith("http://"))
    is_plain = not parts.fragment and "@" not in parts.netloc
    return bool(is_text and is_allowed and is_plain and parts.hostname)

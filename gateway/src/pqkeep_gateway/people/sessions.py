"""Sessions of signed-in users.

A session has two opaque tokens. The access token authenticates requests for 15 minutes. The refresh
token is exchanged once for a new pair. A second use means that the token was copied, so it ends the
session (RFC 9700, section 4.14.2). There is one exception: the same client may repeat the exchange
within GRACE, from a second tab, or after a lost response. The client gets the same pair, because
the pair is derived from the exchanged token, the pepper and a salt. So there is never a second
valid pair. A session ends after its lifetime, even if it is refreshed.

A user's list of sessions has client names from the header User-Agent. Clients can send any header,
so a name has letters, digits and a few punctuation marks. It only helps users to recognize their own
sessions.
"""

import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import uuid4

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import (
    CredentialKind,
    Pepper,
    Purpose,
    kind_of,
    new_credential,
)
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.people.attempt_limits import network_digest
from pqkeep_gateway.storage.pages import WHOLE, Page, Part
from pqkeep_gateway.storage.sessions import (
    Exchange,
    InvalidRefreshTokenError,
    RefreshTokenReusedError,
    Session,
    SqlSessions,
    TokenDigests,
)
from pqkeep_gateway.storage.users import Account
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

ACCESS_LIFETIME = timedelta(minutes=15)
REFRESH_LIFETIME = timedelta(days=7)
_SALT_SIZE = 16


@dataclass(frozen=True, slots=True)
class Tokens:
    """The two tokens of a session."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)


class Sessions:
    """Begins, refreshes and ends sessions. Tokens are stored as digests under the pepper."""

    def __init__(
        self,
        store: SqlSessions,
        lookups: CredentialLookups,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
        lifetime: timedelta,
    ) -> None:
        """Take the lifetime of a session. A refresh does not extend it."""
        self._store = store
        self._lookups = lookups
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock
        self._lifetime = lifetime

    async def begin(
        self,
        account: Account,
        attribution: Attribution,
        *,
        used_second_factor: bool = False,
        signed_in: tuple[AuditEvent, str] = (AuditEvent.SIGN_IN, ""),
        user_agent: bytes = b"",
    ) -> Tokens:
        """Begin a session of an authenticated user. Raises AccountChangedError.

        ``signed_in``: the operation and the policy for the audit log.
        """
        user = account.user
        now = date_of(self._clock())
        tokens = Tokens(
            new_credential(CredentialKind.ACCESS), new_credential(CredentialKind.REFRESH)
        )
        session = Session(
            SessionId(uuid4()),
            user.id,
            now,
            now,
            attribution.source_address,
            used_second_factor,
            stored_user_agent(user_agent),
        )
        operation, policy = signed_in
        begun = event(attribution.by(str(user)), user.tenant, operation, policy=policy)
        digests = self._digests(tokens, now)
        network = network_digest(self._pepper, user.email, attribution.source_address)
        await self._store.add(session, digests, account, network, (begun,))
        self._accept(digests)
        await self._audit_delivery.deliver()
        return tokens

    async def find(self, access_token: str, source_address: str) -> SessionPrincipal | None:
        """Return the principal of an access token; None if the token is not valid.

        Raises TooManyUnknownCredentialsError.
        """
        if kind_of(access_token) is not CredentialKind.ACCESS:
            return None
        now = date_of(self._clock())
        return await self._lookups.find(
            self._pepper.digest(access_token),
            source_address,
            lambda digest: self._store.find(digest, now),
        )

    async def refresh(
        self, refresh_token: str, user_agent: bytes, attribution: Attribution
    ) -> Tokens:
        """Exchange a refresh token for a new pair.

        Raises InvalidRefreshTokenError, TooManyAttemptsError, TooManyUnknownCredentialsError.
        """
        if kind_of(refresh_token) is not CredentialKind.REFRESH:
            raise InvalidRefreshTokenError
        now, salt = date_of(self._clock()), secrets.token_bytes(_SALT_SIZE)
        network = network_of(attribution.source_address).encode()
        client = self._pepper.derive(Purpose.CLIENT, network, user_agent)
        tokens = self._successors(refresh_token, salt)
        digests = self._digests(tokens, now)

        async def exchange(spent: bytes) -> bytes | None:
            proposed = Exchange(spent, client, salt, digests, attribution)
            try:
                return await self._store.refresh(proposed, now, self._lifetime)
            except RefreshTokenReusedError:
                await self._audit_delivery.deliver()
                raise
            except InvalidRefreshTokenError:
                return None

        spent = self._pepper.digest(refresh_token)
        in_force = await self._lookups.find(spent, attribution.source_address, exchange)
        if in_force is None:
            raise InvalidRefreshTokenError
        if in_force != salt:
            return self._successors(refresh_token, in_force)
        self._accept(digests)
        return tokens

    async def list(self, user: UserId, part: Part = WHOLE) -> Page[Session]:
        """Return a user's sessions, newest first. Raises PositionNotFoundError."""
        return await self._store.list(user, date_of(self._clock()), part)

    async def end(
        self,
        principal: SessionPrincipal,
        session: SessionId,
        attribution: Attribution,
        operation: AuditEvent,
    ) -> None:
        """End one of a user's own sessions. Raises SessionNotFoundError."""
        ended = event(attribution, principal.tenant, operation)
        await self._store.remove(principal.user, session, (ended,))
        await self._audit_delivery.deliver()

    def _accept(self, digests: TokenDigests) -> None:
        for digest in (digests.access, digests.refresh):
            self._lookups.accept(digest)

    def _successors(self, refresh_token: str, salt: bytes) -> Tokens:
        """Return the tokens that replace a refresh token's pair."""
        access, refresh = (
            new_credential(
                kind,
                self._pepper.derive(
                    Purpose.SESSION_TOKEN, kind.encode(), refresh_token.encode(), salt
                ),
            )
            for kind in (CredentialKind.ACCESS, CredentialKind.REFRESH)
        )
        return Tokens(access, refresh)

    def _digests(self, tokens: Tokens, now: datetime) -> TokenDigests:
        return TokenDigests(
            self._pepper.digest(tokens.access),
            now + min(ACCESS_LIFETIME, self._lifetime),
            self._pepper.digest(tokens.refresh),
            now + min(REFRESH_LIFETIME, self._lifetime),
        )


MAX_USER_AGENT = 256
"""Characters of the header that are stored."""

_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("SamsungBrowser", "Samsung Internet"),
    ("Firefox", "Firefox"),
    ("FxiOS", "Firefox"),
    ("CriOS", "Chrome"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
)
"""Parts of the header, and the browsers that send them. The first match counts: Edge sends
``Chrome`` and ``Safari``, too."""
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iOS"),
    ("Windows", "Windows"),
    ("Macintosh", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
_first_product = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}", re.ASCII).match


def stored_user_agent(header: bytes) -> str:
    """Return the first MAX_USER_AGENT printable characters of a header."""
    text = header.decode("latin-1")
    return "".join(character for character in text if character.isprintable())[:MAX_USER_AGENT]


def client_name(user_agent: str) -> str | None:
    """Return the browser and its system, else the first product's name, else None."""
    browser = _named(_BROWSERS, user_agent)
    if browser is None:
        product = _first_product(user_agent)
        return None if product is None else product.group()
    system = _named(_SYSTEMS, user_agent)
    return browser if system is None else f"{browser} on {system}"


def _named(table: tuple[tuple[str, str], ...], user_agent: str) -> str | None:
    return next((name for part, name in table if part in user_agent), None)

"""The gateway's settings: one TOML file, read once into a frozen value.

Unknown names are errors, and nothing secret is in the file itself: the pepper is a file of its
own, and of the operator's credential only a digest is known.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Meta, Struct, structs

POSTGRESQL = "postgresql://"
_OPTIONS = frozenset({"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"})

_SMTP_PORTS: Mapping[str, int] = {"starttls": 587, "tls": 465, "none": 25}

DIGEST_HEX = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
ADDRESS = Annotated[str, Meta(pattern=r"^(https://|http://127\.0\.0\.1(:|/|$))[^?#@]*$")]
"""With TLS, except on this machine; no query, and nobody's password."""


class ConfigError(Exception):
    """The process cannot start as it is set up. The message is for the person who starts it."""


class StripeSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The account at Stripe that takes the money: the table ``[stripe]``."""

    secret_key_file: str
    """The account's API key, in a file that only this process's user can read."""
    webhook_secret_file: str
    """What webhooks are signed with, in a file like that."""
    prices: Annotated[dict[str, Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
    """The tiers that are sold, and Stripe's identifier of each one's monthly price."""
    return_url: ADDRESS
    """Where a browser goes from Stripe's pages: a page of the portal."""
    api: ADDRESS = "https://api.stripe.com"
    """Where Stripe answers."""


class Smtp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mail server."""

    host: str
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """0: 587, or with "tls" 465, or with "none" 25."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is encrypted; what the server does not offer is not done without.
    "none" is for a server on this machine."""
    ca_file: str | None = None
    """Whose certificates are believed, instead of the system's: a file in PEM."""
    user: str | None = None
    password_file: str | None = None
    """The user's password, in a file that only this process's user can read."""
    sender: str
    """Whose e-mail address the messages come from."""
    timeout_seconds: Annotated[int, Meta(ge=1, le=30)] = 10
    """For one message, all told."""


class PasswordCosts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one guess at a password costs whoever stole the database, and one sign-in costs here.

    As it comes, RFC 9106's second recommended choice; at the least, what OWASP recommends.
    """

    memory_kib: Annotated[int, Meta(ge=19 * 1024, le=1024 * 1024)] = 64 * 1024
    passes: Annotated[int, Meta(ge=2, le=16)] = 3
    lanes: Annotated[int, Meta(ge=1, le=16)] = 4


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Paths are relative to the settings file."""

    key_service_socket: str
    """The Unix socket of the key service."""
    database: str
    """Of tenants and API keys: a SQLite file, or postgresql://user@host:port/name.

    Several hosts may be named, for a server that moves, and after a question mark sslmode,
    sslrootcert, sslcert, sslkey and, for a Unix socket, host.
    """
    database_password_file: str | None = None
    """A PostgreSQL password file as libpq has it, that only this process's user can read."""
    pepper_file: str
    """32 random bytes that API-key digests depend on, readable by this process's user only."""
    operator_digest: DIGEST_HEX
    """HMAC-SHA-256 of the operator's credential under the pepper, in hexadecimal."""
    signup: Literal["operator", "open"] = "operator"
    """Who may create tenants: the operator only, or anyone (rate-limited by address)."""
    portal_url: str | None = None
    """Where people reach the portal, https://…; needed where a proxy changes the Host header, and
    to send mail."""
    smtp: Smtp | None = None
    """The mail server; without one no mail is sent, and what needs it is refused."""
    mailbox: str | None = None
    """A folder that messages are written into instead: for development, on one machine."""
    cookies: Literal["secure", "loopback"] = "secure"
    """Whether browsers send cookies over TLS only. "loopback" is for development, on one machine:
    a gateway that listens on another address does not start with it."""
    password_costs: PasswordCosts = PasswordCosts()
    """Of Argon2id. Where they change, each password's hash is renewed at the next sign-in."""
    api_key_overlap_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 30
    """How long a rotated API key is still accepted."""
    plans_file: str | None = None
    """What differs from the built-in plans; see plans.toml."""
    policy_directory: str | None = None
    """Cedar policies (*.cedar) that hold beside the built-in ones."""
    redis_url: str | None = None
    """A Redis or Valkey server for the rate limits' windows, redis://… or unix://…; needed where
    several gateways share a database. Without it they are in this process's memory."""
    redis_password_file: str | None = None
    """The server's password, in a file that only this process's user can read."""
    stripe: StripeSettings | None = None
    """Who takes the money; None: nobody, invoice lines are all that is kept."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080


def read(path: Path) -> Config:
    """Read the settings file. Raises ConfigError."""
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    here = path.resolve().parent
    return structs.replace(
        config,
        key_service_socket=str((here / config.key_service_socket).resolve()),
        database=_database(config.database, here),
        database_password_file=_beside(here, config.database_password_file),
        pepper_file=str(here / config.pepper_file),
        smtp=_smtp(config, here),
        mailbox=_beside(here, config.mailbox),
        plans_file=_beside(here, config.plans_file),
        policy_directory=_beside(here, config.policy_directory),
        redis_password_file=_beside(here, config.redis_password_file),
        stripe=None if config.stripe is None else _stripe(config.stripe, here),
    )


def _database(named: str, here: Path) -> str:
    """Return a PostgreSQL address as it is, or where a file is. Never repeats a bad address."""
    if "://" not in named:
        return str(here / named)
    if not named.startswith(POSTGRESQL):
        raise ConfigError(f"database: neither a file nor an address that begins with {POSTGRESQL}")
    try:
        parts = urlsplit(named)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        user, password, name = parts.username, parts.password, parts.path.removeprefix("/")
    except ValueError:
        raise ConfigError("database: not a well-formed address") from None
    if password is not None or "@" in (user or "") or "password" in options:
        raise ConfigError("database: a password belongs in the database_password_file, not here")
    if not user or not name or "/" in name or parts.fragment:
        raise ConfigError(f"database: expected {POSTGRESQL}user@host:port/name")
    if not options.keys() <= _OPTIONS:
        raise ConfigError("database: the options are " + ", ".join(sorted(_OPTIONS)))
    return named


def _stripe(settings: StripeSettings, here: Path) -> StripeSettings:
    return structs.replace(
        settings,
        secret_key_file=str(here / settings.secret_key_file),
        webhook_secret_file=str(here / settings.webhook_secret_file),
    )


def _smtp(config: Config, here: Path) -> Smtp | None:
    """Return the mail server as it is used: with its port, and where its files are."""
    smtp = config.smtp
    if smtp is None:
        return None
    if config.mailbox is not None:
        raise ConfigError("mailbox: there is a mail server (smtp) already")
    if config.portal_url is None:
        raise ConfigError("smtp: letters need the portal_url too")
    if smtp.security == "none" and not _is_loopback(smtp.host):
        raise ConfigError('smtp: security = "none" is for a server on this machine only')
    if (smtp.user is None) != (smtp.password_file is None):
        raise ConfigError("smtp: user and password_file go together")
    return structs.replace(
        smtp,
        port=smtp.port or _SMTP_PORTS[smtp.security],
        ca_file=_beside(here, smtp.ca_file),
        password_file=_beside(here, smtp.password_file),
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _beside(here: Path, named: str | None) -> str | None:
    return None if named is None else str(here / named)


def read_private(path: Path) -> bytes:
    """Return what is in a file that nobody else can read. Raises ConfigError."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others; its mode must be 0400")
    return data

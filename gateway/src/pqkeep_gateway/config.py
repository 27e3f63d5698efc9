"""The gateway's settings: one TOML file, read once into a frozen value.

The file contains no secret. Passwords and the pepper have their own files, and an operator's
credential is stored as a digest only.
"""

import os
import socket
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

from msgspec import Meta, Struct, structs

from pqkeep_gateway import redis_address
from pqkeep_protocol.keys import DEFAULT_SHARD, MIN_ARCHIVE_DAYS, ShardName
from pqkeep_protocol.startup.settings import (
    ConfigError,
    DatabaseAddress,
    LogFormat,
    NetworkAddress,
    read_settings,
)

_SMTP_PORTS: Mapping[str, int] = {"starttls": 587, "tls": 465, "none": 25}

DIGEST_HEX = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
MAX_PORT = 65535
ADDRESS = Annotated[str, Meta(pattern=r"^(https://|http://127\.0\.0\.1(:|/|$))[^?#@]*$")]
"""https, or http on this machine; without query and user information."""

EMAIL = Annotated[str, Meta(max_length=254, pattern=r"^[!-~]+@[A-Za-z0-9.-]+$")]
"""An e-mail address in ASCII."""
ISSUER = Annotated[
    str,
    Meta(max_length=255, pattern=r"^(https://|http://(127\.0\.0\.1|localhost)(:|/|$))[^?#@\s\\]*$"),
]
"""An OpenID Connect issuer: https, or http on this machine; without query and fragment."""
_SHORT_TEXT = Annotated[str, Meta(min_length=1, max_length=255)]
_ROLE = Literal["owner", "admin", "developer", "viewer"]

PREFIX = "PQKEEP_GATEWAY_"
"""The prefix of environment variables that replace settings."""

AUDIT_SINK = Annotated[
    str,
    Meta(
        max_length=255,
        pattern=r"^(file:///|syslog\+(unix:///|udp://|tcp://|tls://)|https://|http://127\.0\.0\.1(:|/|$))"
        r"[^?#@\s]*$",
    ),
]


class StripeSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The Stripe account that collects payments: the table ``[stripe]``."""

    secret_key_file: Path
    """The account's API key: a secret file."""
    webhook_secret_file: Path
    """The secret that verifies the signatures of webhooks: a secret file."""
    prices: Annotated[dict[str, Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
    """The tiers on sale, each with Stripe's identifier of its monthly price."""
    return_url: ADDRESS
    """The address to which Stripe's pages return the browser: a page of the portal."""
    api: ADDRESS = "https://api.stripe.com"
    """The address of Stripe's API."""


class Smtp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mail server: the table ``[smtp]``."""

    host: str
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """The port. 0 means 587, or 465 with "tls", or 25 with "none"."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """The encryption of the connection. If the server does not support it, no mail is sent. "none"
    is only for a server on this machine."""
    ca_file: Path | None = None
    """Trusted certificate authorities in PEM, instead of the system's."""
    user: str | None = None
    password_file: Path | None = None
    """The user's password: a secret file."""
    sender: str
    """The sender's e-mail address."""

    def __post_init__(self) -> None:
        """Fill in the default port. Raises ValueError for contradictory settings."""
        if self.security == "none" and not _is_loopback(self.host):
            raise ValueError('smtp: security = "none" is allowed only for a server on this machine')
        if (self.user is None) != (self.password_file is None):
            raise ValueError("smtp: set user and password_file together, or neither")
        if self.port == 0:
            structs.force_setattr(self, "port", _SMTP_PORTS[self.security])


class SingleSignOn(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An OpenID Connect provider for one tenant, or for operators: a table ``[[single_sign_on]]``.

    docs/single-sign-on.md explains how to set one up.
    """

    name: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]
    """Its name in addresses: /portal/sso/NAME. The redirect URI to register with the provider is
    the public_url with /portal/sso/NAME/callback."""
    label: (
        Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")] | None
    ) = None
    """Its public name on the sign-in page. Without a label it is not listed, and people begin at
    its address."""
    tenant: UUID | None = None
    """The identifier of the tenant of its people. Without it, set operator_roles."""
    issuer: ISSUER
    """The provider's issuer, exactly as it writes it. http is for development, on this machine."""
    client_id: _SHORT_TEXT
    """The provider's identifier for this gateway."""
    client_secret_file: Path | None = None
    """The client's secret: a secret file. Without it the gateway is a public client."""
    ca_file: Path | None = None
    """Trusted certificate authorities in PEM, instead of the system's."""
    scopes: tuple[Annotated[str, Meta(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$")], ...] = (
        "openid",
        "email",
    )
    """The scopes to request; openid must be one of them."""
    groups_claim: _SHORT_TEXT = "groups"
    """The claim with a person's groups."""
    roles: dict[_SHORT_TEXT, _ROLE] = {}
    """Groups, and the roles of their members. The most powerful role of a person applies."""
    default_role: _ROLE | None = None
    """The role of people without any of these groups. Without it they are refused."""
    create_members: bool = False
    """Whether people who sign in for the first time become members. Needs email_domains."""
    email_domains: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]+$")], ...] = ()
    """The domains of e-mail addresses that the provider may vouch for; empty: all."""
    operator_roles: dict[_SHORT_TEXT, Literal["admin", "tenant-admin", "read-only"]] = {}
    """Groups of operators, and their roles. The provider then signs in operators and has no tenant,
    roles, default_role or create_members. The most powerful role of a person applies. A person
    without any of these groups is refused."""
    local_passwords: bool = True
    """Whether the tenant's people may also have passwords here. If false, they cannot sign in
    with a password, and cannot set one. API keys are not affected."""

    def __post_init__(self) -> None:
        """Raise ValueError for contradictory settings."""
        if "openid" not in self.scopes:
            raise ValueError("single_sign_on: scopes: add openid")
        if self.operator_roles:
            self._check_operators()
            return
        if self.tenant is None:
            raise ValueError("single_sign_on: set tenant, or operator_roles for operators")
        if not self.roles and self.default_role is None:
            raise ValueError(
                "single_sign_on: no person would have a role: set roles or default_role"
            )
        if self.create_members and not self.email_domains:
            raise ValueError("single_sign_on: create_members needs email_domains")

    def _check_operators(self) -> None:
        """Raise ValueError for settings that only a tenant's provider has."""
        if self.tenant is not None:
            raise ValueError("single_sign_on: a provider with operator_roles has no tenant")
        only_tenants = {
            "roles": bool(self.roles),
            "default_role": self.default_role is not None,
            "create_members": self.create_members,
            "local_passwords": not self.local_passwords,
        }
        for name, is_set in only_tenants.items():
            if is_set:
                raise ValueError(f"single_sign_on: remove {name}: the provider is for operators")


class OpenTelemetry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The collector of traces: the table ``[opentelemetry]``."""

    endpoint: ADDRESS
    """Its OTLP address over HTTP: https://…/v1/traces, or on this machine http://127.0.0.1:…"""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """The share of all traces that is sent, from 0 to 1."""


MAX_MEMORY_KIB, MAX_PASSES, MAX_LANES = 1024 * 1024, 16, 16
"""The greatest cost of a password hash, in the settings and in a stored hash."""


class PasswordCosts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The costs of Argon2id, for each sign-in and for each guess at a stolen hash.

    The defaults are the second recommended choice of RFC 9106; the minima are OWASP's.
    """

    memory_kib: Annotated[int, Meta(ge=19 * 1024, le=MAX_MEMORY_KIB)] = 64 * 1024
    passes: Annotated[int, Meta(ge=2, le=MAX_PASSES)] = 3
    lanes: Annotated[int, Meta(ge=1, le=MAX_LANES)] = 4


class Link(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Mutual TLS to key services on other hosts: the table ``[link]``."""

    key_service: NetworkAddress | None = None
    """The key service's address, host:port. With [shards], the addresses are there instead."""
    name: Annotated[str, Meta(min_length=1)] | None = None
    """The host name or address in a key service's certificate. By default it is the address's host."""
    certificate: Path
    """This gateway's certificate in PEM, with the role spiffe://pqkeep/gateway."""
    key: Path
    """The certificate's private key in PEM: a secret file."""
    ca: Path
    """The private certificate authority, in PEM, that issues the key services' certificates."""
    require_post_quantum: bool = False
    """Whether a connection without post-quantum key exchange is refused. This needs OpenSSL 3.5 or
    later; with an older one the gateway does not start."""


class Shard(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The key service of one shard and its standbys: a table such as ``[shards.default]``."""

    sockets: tuple[Path, ...] = ()
    """The Unix sockets of the key services on this host."""
    addresses: tuple[NetworkAddress, ...] = ()
    """The addresses, host:port, of key services on other hosts. They are reached by mutual TLS: see
    [link]."""

    def __post_init__(self) -> None:
        """Raise ValueError for a shard without an address."""
        if not self.sockets and not self.addresses:
            raise ValueError("shards: expected sockets or addresses")


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of the gateway. Paths are relative to the settings file.

    A secret file has mode 0400 or 0600 and belongs to the process's user or root. A file of root
    may have mode 0440 or 0640 if the process's user is the only member of its group.
    """

    key_service_socket: Path | None = None
    """The Unix socket of a key service on this host."""
    link: Link | None = None
    """A key service on another host, instead of key_service_socket."""
    shards: dict[ShardName, Shard] = {}
    """Several key services, each with its own database and tenants, instead of key_service_socket.
    One of them must be named default. docs/scaling.md explains how to add one."""
    database: DatabaseAddress
    """The accounts database: tenants, people, API keys, usage."""
    database_password_file: Path | None = None
    """A PostgreSQL password file as libpq defines it: a secret file."""
    pepper_file: Path
    """32 random bytes, the key of credential digests: a secret file."""
    operator_digest: DIGEST_HEX | None = None
    """The digest of the credential of an operator without a name: HMAC-SHA-256 under the pepper, in
    hexadecimal. Named operators are in the database: see ``pqkeepd operator``."""
    signup: Literal["operator", "open"] = "operator"
    """Who may create tenants: operators only, or anyone (rate-limited by address)."""
    default_plan: Literal["free", "starter", "professional", "enterprise", "enterprise_plus"] = (
        "free"
    )
    """The plan of a tenant that an operator creates without a plan. ``pqkeepd init`` sets
    enterprise_plus: an installation for its own use sells no plans, and free has only 1,000
    operations a month and no key wrap. Sign-ups always get free."""
    self_service: bool = False
    """Whether owners may choose plans with self_service without a payment provider. Invoice lines
    are recorded, and the operator collects the money."""
    public_url: ADDRESS | None = None
    """The address at which browsers reach the gateway, https://…. It is needed to send mail with
    links, and if a proxy changes the Host header."""
    portal_url: ADDRESS | None = None
    """The address of the portal, https://…, if it differs from the public_url: a second name for
    the same gateway. The portal is then served only there, and messages link to it."""
    smtp: Smtp | None = None
    """The mail server. Without it no mail is sent, and operations that need mail are refused."""
    mailbox: Path | None = None
    """A folder that messages are written to instead of being sent, for development."""
    operators_mail: tuple[EMAIL, ...] = ()
    """E-mail addresses of operators that get new notices about the installation, at most one
    message in an hour. It needs smtp, or mailbox."""
    cookies: Literal["secure", "loopback"] = "secure"
    """Whether browsers send cookies over TLS only. "loopback" is for development: the gateway then
    refuses to listen on any other address."""
    transit: bool = False
    """Whether programs for Vault Transit can use their own interface, at /v1/: docs/transit.md."""
    session_lifetime_days: Annotated[int, Meta(ge=1, le=365)] = 30
    """Days after which a person must sign in again, even if the session was refreshed."""
    approval_days: Annotated[int, Meta(ge=1, le=30)] = 7
    """Days for which a request waits for the approval of a second person."""
    password_costs: PasswordCosts = PasswordCosts()
    """After a change, each password is hashed again at the next sign-in."""
    api_key_overlap_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 30
    """Seconds for which a rotated API key is still accepted."""
    plans_file: Path | None = None
    """A TOML file with changes to the built-in plans. Each plan is a table such as [starter]. Its
    keys, all optional, are monthly_price_usd, self_service, requests_per_minute,
    operations_per_month, pqc_keys, keyrings, api_keys, algorithms and key_wrap. GET /billing/plans
    shows the result."""
    policy_directory: Path | None = None
    """Cedar policies (*.cedar) in addition to the built-in ones."""
    redis_url: str | None = None
    """A Redis or Valkey server for the rate limits, redis://…, rediss://… (TLS) or unix://…, or
    Sentinels that know it: redis+sentinel://HOST,HOST,HOST/NAME or rediss+sentinel://…. It is needed
    if several gateways share a database. Without it the limits are in memory."""
    redis_password_file: Path | None = None
    """The server's password: a secret file."""
    redis_sentinel_password_file: Path | None = None
    """The Sentinels' password: a secret file."""
    rate_limit_unavailable: Literal["refuse", "local"] = "refuse"
    """What happens while the rate limits' server is away: requests are refused with 503, or each
    gateway enforces its share of the limits. docs/scaling.md compares the two."""
    rate_limit_gateways: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """The most gateways that run at a time, for the shares. "local" needs it."""
    single_sign_on: tuple[SingleSignOn, ...] = ()
    """OpenID Connect providers. Two may belong to the same tenant."""
    stripe: StripeSettings | None = None
    """The Stripe account. Without it invoice lines are recorded, but no payment is collected."""
    audit_sink: AUDIT_SINK | None = None
    """The destination for the audit log's records, as JSON lines. It is file:///…,
    syslog+unix:///…, syslog+udp://host:port, syslog+tcp://host:port, syslog+tls://host:port, or
    https://… of a collector (http on this machine only)."""
    audit_sink_token_file: Path | None = None
    """The collector's bearer token: a secret file."""
    audit_sink_ca_file: Path | None = None
    """Trusted certificate authorities in PEM for a collector, or syslog with TLS, instead of the
    system's."""
    webhook_networks: tuple[str, ...] = ()
    """Networks in CIDR notation that webhooks may reach although they are not public, over HTTPS or
    HTTP. Their people and programs can then reach every port there."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of reverse proxies, in CIDR notation. Their Forwarded or X-Forwarded-For headers set
    a request's source address, and their connections are not limited by address."""
    tls_certificate: Path | None = None
    """The certificate for clients, with its chain, in PEM. Without it the gateway serves plain
    HTTP. Replaced files are read again within 20 seconds, or at once on SIGHUP."""
    tls_key: Path | None = None
    """The certificate's private key in PEM, not encrypted: a secret file."""
    require_post_quantum: bool = False
    """Whether clients without post-quantum key exchange are refused. This needs OpenSSL 3.5 or
    later; with an older one the gateway does not start."""
    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach needs TLS, here or in a
    proxy in trusted_proxies."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """The port to listen on; 0: any free port."""
    management_address: str = "127.0.0.1:8081"
    """The address of /livez, /readyz and /metrics: an IP address with a port. Port 0 is any free
    port, and "off" turns them off. They need no credential and have no TLS. On any address except
    loopback, let only your monitoring reach it."""
    management_hosts: tuple[str, ...] = ()
    """Host names that the management address accepts, besides "localhost" and IP addresses.
    Requests with another Host header are refused."""
    opentelemetry: OpenTelemetry | None = None
    """The collector of traces. Without it there are no traces."""
    access_log: bool = False
    """Whether each request is logged, without its body or credential."""
    log_format: LogFormat = "auto"
    """The form of log lines: "text", "json", or "auto" for text on a terminal and JSON elsewhere."""

    def __post_init__(self) -> None:
        """Raise ValueError for contradictory settings."""
        _check_key_services(self)
        _check_redis(self.redis_url, self.redis_sentinel_password_file)
        if self.rate_limit_unavailable == "local" and self.rate_limit_gateways is None:
            raise ValueError('rate_limit_unavailable: "local" needs rate_limit_gateways')
        _ = self.management
        for network in self.trusted_proxies:
            _check_network("trusted_proxies", network)
        for network in self.webhook_networks:
            _check_network("webhook_networks", network)
        _check_audit_sink(self.audit_sink, self.audit_sink_token_file, self.audit_sink_ca_file)
        if self.smtp is not None and self.mailbox is not None:
            raise ValueError("mailbox: remove it, or remove smtp: only one can receive messages")
        if self.smtp is not None and self.public_url is None:
            raise ValueError("smtp: set public_url, because messages link to it")
        if self.operators_mail and self.smtp is None and self.mailbox is None:
            raise ValueError("operators_mail: set smtp too")
        _check_single_sign_on(self.single_sign_on, self.cookies, self.public_url)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("set tls_certificate and tls_key together, or neither")
        if self.require_post_quantum and self.tls_certificate is None:
            raise ValueError("require_post_quantum: set tls_certificate and tls_key too")

    @property
    def key_services(self) -> Mapping[str, Shard]:
        """The key services by shard; without [shards] there is one shard."""
        if self.shards:
            return self.shards
        if self.key_service_socket is not None:
            return {DEFAULT_SHARD: Shard(sockets=(self.key_service_socket,))}
        addresses = [] if self.link is None else [self.link.key_service]
        return {DEFAULT_SHARD: Shard(addresses=tuple(address for address in addresses if address))}

    @property
    def has_local_key_service(self) -> bool:
        """Whether any key service is on this host."""
        return any(address.sockets for address in self.key_services.values())

    @property
    def min_archive_days(self) -> int:
        """The least days until an archived key is destroyed."""
        return 0 if self.cookies == "loopback" else MIN_ARCHIVE_DAYS

    @property
    def moved_pages(self) -> tuple[str, str] | None:
        """The host without pages and the portal's address, if they differ."""
        if self.portal_url is None or self.public_url is None:
            return None
        return urlsplit(self.public_url).netloc.lower(), self.portal_url

    @property
    def pages_url(self) -> str | None:
        """The address at which browsers open the portal, if it is set."""
        return self.portal_url or self.public_url

    @property
    def management(self) -> tuple[str, int] | None:
        """The host and port of the management address, or None. Raises ValueError."""
        return _management(self.management_address)


def read(path: Path) -> Config:
    """Read the settings file and the environment. Raises ConfigError."""
    config = read_settings(path, Config, os.environ, PREFIX)
    # The kernel limits a socket's path to 107 bytes, including any "../".
    return structs.replace(
        config,
        key_service_socket=config.key_service_socket and config.key_service_socket.resolve(),
        shards={
            name: structs.replace(
                address, sockets=tuple(path.resolve() for path in address.sockets)
            )
            for name, address in config.shards.items()
        },
    )


def check_address(settings: Config, host: str) -> None:
    """Raise ConfigError if other machines can reach the address and it has no TLS."""
    if _resolves_to_loopback(host):
        return
    if settings.cookies == "loopback":
        raise ConfigError(f'cookies: "loopback" is only for a loopback address, not {host}')
    if settings.tls_certificate is None and not settings.trusted_proxies:
        raise ConfigError(
            f"host: other machines can reach {host} without encryption:"
            " set tls_certificate and tls_key, or name a proxy with TLS in trusted_proxies"
        )


def _resolves_to_loopback(host: str) -> bool:
    try:
        addresses = [info[4][0] for info in socket.getaddrinfo(host, None)]
        return all(ip_address(address).is_loopback for address in addresses)
    except (OSError, ValueError):
        return False


def _check_key_services(config: Config) -> None:
    """Raise ValueError unless each shard's key service is named once, in one way."""
    link, shards = config.link, config.shards
    if not shards:
        has_link = link is not None and link.key_service is not None
        if (config.key_service_socket is None) != has_link or (link is not None) != has_link:
            raise ValueError("set either key_service_socket or [link] with key_service")
        return
    if config.key_service_socket is not None:
        raise ValueError("key_service_socket: move it into the sockets of [shards.default]")
    if link is not None and link.key_service is not None:
        raise ValueError("link.key_service: move it into the addresses of [shards.default]")
    if DEFAULT_SHARD not in shards:
        raise ValueError("shards: one shard must be named default")
    has_addresses = any(shard.addresses for shard in shards.values())
    if has_addresses and link is None:
        raise ValueError("shards: addresses need mutual TLS: set [link]")
    if link is not None and not has_addresses:
        raise ValueError("link: no shard has addresses")
    places = [
        *(str(path.resolve()) for shard in shards.values() for path in shard.sockets),
        *(repr(address) for shard in shards.values() for address in shard.addresses),
    ]
    if len(set(places)) < len(places):
        raise ValueError("shards: a socket or an address occurs twice")


def _check_redis(url: str | None, sentinel_password_file: Path | None) -> None:
    """Raise ValueError for an unusable address. The message has no part of it."""
    try:
        address = None if url is None else redis_address.parse(url)
    except ValueError as error:
        raise ValueError(f"redis_url: {error}") from None
    if sentinel_password_file is not None and address is not None and address.service is None:
        raise ValueError("redis_sentinel_password_file: redis_url names no Sentinels")


def _check_network(setting: str, text: str) -> None:
    """Raise ValueError for an invalid network, bits beyond its prefix, or a zone."""
    message = f"{setting}: not networks in CIDR notation"
    if "%" in text:
        raise ValueError(message)
    try:
        ip_network(text)
    except ValueError:
        raise ValueError(message) from None


def _check_audit_sink(sink: str | None, token_file: Path | None, ca_file: Path | None) -> None:
    """Raise ValueError for a sink without a port, or files that it cannot use."""
    parts = urlsplit(sink or "")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("audit_sink: the port is not a number up to 65535") from None
    if not parts.scheme.startswith("http") and token_file is not None:
        raise ValueError("audit_sink_token_file: only an HTTP collector uses it")
    if parts.scheme not in {"https", "syslog+tls"} and ca_file is not None:
        raise ValueError("audit_sink_ca_file: only a sink with TLS uses it")
    if parts.scheme in {"syslog+udp", "syslog+tcp", "syslog+tls"} and not (parts.hostname and port):
        raise ValueError("audit_sink: expected host and port")
    if parts.scheme.startswith("http") and not parts.hostname:
        raise ValueError("audit_sink: expected a host")


def _check_single_sign_on(
    providers: tuple[SingleSignOn, ...], cookies: str, public_url: str | None
) -> None:
    """Raise ValueError for duplicate names or development settings."""
    if len({provider.name for provider in providers}) < len(providers):
        raise ValueError("single_sign_on: two providers have the same name")
    tenants = {(each.issuer, each.client_id) for each in providers if not each.operator_roles}
    if any((each.issuer, each.client_id) in tenants for each in providers if each.operator_roles):
        raise ValueError(
            "single_sign_on: client_id: register a client of its own for operators: a tenant's"
            " provider has this one"
        )
    if not providers or cookies == "loopback":
        return
    if public_url is None:
        raise ValueError("single_sign_on: set public_url, to which providers send people back")
    if not all(provider.issuer.startswith("https://") for provider in providers):
        raise ValueError("single_sign_on: issuer: expected https")


def _management(text: str) -> tuple[str, int] | None:
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        ip_address(host)
        number = int(port) if port.isascii() and port.isdecimal() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_PORT:
        raise ValueError('management_address: not an IP address and a port, or "off"')
    return host, number


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

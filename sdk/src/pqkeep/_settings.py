"""A client's settings: from arguments, else the environment, else a profile.

A profile describes one installation. Its credential is sent only to its own address.
"""

import importlib.util
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Self
from urllib.request import getproxies

import httpx2

from pqkeep._workload import Workload
from pqkeep.compliance import ComplianceProfile, profile_named
from pqkeep.errors import ConfigurationError
from pqkeep.private_files import BLANK, QUOTES, read_api_key, wrong_in_api_key
from pqkeep.profiles import DEFAULT, Profile, environment, read_profile

TIMEOUT = 30.0
RETRIES = 6

API = "/api/v1"
_PROXIES = ("http", "https")
_SOCKS = ("socks5", "socks5h")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,15}")
_BASE_URL, _API_KEY = "the base URL", "the API key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The address of a service, a credential, and the options of requests."""

    url: str
    api_key: str = field(repr=False)
    """Empty for a workload, which gets its key from the service."""
    workload: Workload | None = None
    ca_file: str | None
    compliance: ComplianceProfile | None
    timeout: float
    """Seconds for a call, with all its attempts."""
    retries: int
    allow_plain_http: bool

    def __post_init__(self) -> None:
        """Raise ConfigurationError for unusable settings."""
        url = httpx2.URL(self.url)
        if not self.is_encrypted and not (self.allow_plain_http or _is_loopback(url.host)):
            raise ConfigurationError(
                "http:// is for this machine only: use https://, or others can read what is sent"
            )
        if not self.timeout > 0:
            raise ConfigurationError("the timeout must be more than 0 seconds")

    @property
    def is_encrypted(self) -> bool:
        """True if the address is https://. Only then are the environment's proxies used."""
        return httpx2.URL(self.url).scheme == "https"

    def proxy(self) -> "Proxy | None":
        """Return the environment's proxy for the service. Raises ConfigurationError."""
        return _proxy_for(httpx2.URL(self.url)) if self.is_encrypted else None

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "pqkeep-python",
        }
        if self.workload is None:
            headers["X-API-Key"] = self.api_key
        if self.compliance is not None:
            headers["X-Compliance-Profile"] = self.compliance.name
        return headers

    def tls(self) -> ssl.SSLContext:
        """Return a TLS context. It trusts only the CA file if there is one."""
        if not self.is_encrypted:
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no certificate
        if self.ca_file is None:
            _check_trust()
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError:
            raise ConfigurationError(f"the CA file {self.ca_file} has no PEM certificate") from None
        except OSError as error:
            raise ConfigurationError(
                f"the CA file {self.ca_file} cannot be read: {error.strerror}"
            ) from None

    @classmethod
    def of(cls, profile: Profile, timeout: float, retries: int) -> Self:
        """Return the settings of a profile alone. Raises ConfigurationError."""
        return cls(
            url=address(profile.url, "the profile's url"),
            api_key=_checked_key(_profile_key(profile) or "", _API_KEY),
            ca_file=profile.ca_file,
            compliance=profile_named(profile.compliance_profile),
            timeout=timeout,
            retries=retries,
            allow_plain_http=profile.allow_plain_http,
        )

    @classmethod
    def resolve(
        cls,
        *,
        base_url: str | None,
        api_key: str | None,
        profile: str | Profile | None,
        ca_file: str | os.PathLike[str] | None,
        compliance_profile: str | None,
        timeout: float,
        retries: int,
        allow_plain_http: bool,
    ) -> Self:
        """Return the settings, with defaults for missing arguments. Raises ConfigurationError."""
        if isinstance(profile, Profile):
            if any((base_url, api_key, ca_file, compliance_profile, allow_plain_http)):
                raise ConfigurationError("a Profile object cannot be combined with other settings")
            return cls.of(profile, timeout, retries)
        url = None if base_url is None else address(base_url, _BASE_URL)
        if url is None and (variable := environment("PQKEEP_URL")):
            url = address(variable, "PQKEEP_URL")
        key = _environment_key() if api_key is None else _checked_key(api_key, _API_KEY)
        workload = _environment_workload() if api_key is None else None
        if workload is not None:
            if key is not None:
                raise ConfigurationError(
                    "PQKEEP_TOKEN_FILE and an API key of the environment are both set: unset one"
                )
            key = ""
        name = profile or environment("PQKEEP_PROFILE")
        stored = read_profile(name or DEFAULT) if name or url is None else None
        if stored is not None:
            stored_url = address(stored.url, "the profile's url")
            if key is None and url not in {None, stored_url}:
                raise ConfigurationError(
                    "the profile's API key cannot be used with another address: name an API key, too"
                )
            url = stored_url if url is None else url
            if key is None and (stored_key := _profile_key(stored)) is not None:
                key = _checked_key(stored_key, "the profile's API key")
        if url is None or key is None:
            raise ConfigurationError(
                "the API key is missing: pass one, or set PQKEEP_API_KEY or PQKEEP_API_KEY_FILE,"
                " or PQKEEP_TOKEN_FILE and PQKEEP_ROLE"
            )
        ca = ca_file or environment("PQKEEP_CA_FILE") or (stored.ca_file if stored else None)
        compliance = compliance_profile or (stored.compliance_profile if stored else None)
        return cls(
            url=url,
            api_key=key,
            workload=workload,
            ca_file=None if ca is None else os.fspath(ca),
            compliance=profile_named(compliance),
            timeout=timeout,
            retries=retries,
            allow_plain_http=allow_plain_http or (stored is not None and stored.allow_plain_http),
        )


def address(given: str, source: str) -> str:
    """Return a service's address without /api/v1. Raises ConfigurationError with the source's name."""
    text = given.strip(BLANK)
    form = f"{source} must be https:// or http://, a host and an optional path"
    if any(character in QUOTES for character in text):
        raise ConfigurationError(f"{form}: it has quotation marks")
    if " " in text or not text.isprintable():
        raise ConfigurationError(f"{form}: it has a space or a control character")
    scheme, separator, rest = text.partition("://")
    if scheme.lower() not in _PROXIES or not separator:
        raise ConfigurationError(f"{form}: {'it has another scheme' if separator else _NO_SCHEME}")
    try:
        url = httpx2.URL(text)
        _require_port(url)
    except (httpx2.InvalidURL, ValueError):
        is_ipv6 = rest.partition("/")[0].count(":") > 1 and "[" not in rest
        hint = "an IPv6 address needs brackets" if is_ipv6 else "host or port is wrong"
        raise ConfigurationError(f"{form}: {hint}") from None
    if not url.host:
        raise ConfigurationError(f"{form}: it has no host")
    if url.userinfo:
        raise ConfigurationError(f"{form}: it has a user name, which pqkeep does not use")
    if "?" in text or "#" in text:
        raise ConfigurationError(f"{form}: it has a query or a fragment")
    return text.rstrip("/").removesuffix(API).rstrip("/")


_NO_SCHEME = "it has no scheme; put https:// before it"


def _checked_key(given: str, source: str) -> str:
    """Return a checked API key. Raises ConfigurationError, which never shows the key."""
    key = given.strip(BLANK)
    wrong = wrong_in_api_key(key)
    if wrong:
        raise ConfigurationError(f"{source} must be printable ASCII without spaces: it {wrong}")
    return key


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and the variable with its address."""

    url: str = field(repr=False)
    variable: str


def _proxy_for(url: httpx2.URL) -> Proxy | None:
    """Return the environment's proxy for an address.

    Return None if NO_PROXY has the address's host.
    """
    proxies = getproxies()
    scheme = next((scheme for scheme in (url.scheme, "all") if proxies.get(scheme)), None)
    if scheme is None or _is_bypassed(url, proxies.get("no", "")):
        return None
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), "the system's proxy")
    return Proxy(_proxy_url(proxies[scheme].strip(BLANK), variable), variable)


def _proxy_url(text: str, variable: str) -> str:
    """Return a checked proxy address. Raises ConfigurationError, which never shows the password."""
    away = "; name another proxy, or add the service's host to NO_PROXY"
    scheme, separator, _ = text.partition("://")
    scheme = scheme.lower() if separator else "http"
    if scheme not in (*_PROXIES, *_SOCKS):
        shown = scheme if _SCHEME.fullmatch(scheme) else "another scheme"
        raise ConfigurationError(
            f"{variable} has a proxy with {shown}: only http, https, socks5 and socks5h work{away}"
        )
    if scheme in _SOCKS and importlib.util.find_spec("socksio") is None:
        raise ConfigurationError(
            f"{variable} has a proxy with {scheme}, which needs the package socksio{away}"
        )
    try:
        url = httpx2.URL(text if separator else f"http://{text}")
        _require_port(url)
        is_whole = bool(url.host) and text.isprintable() and " " not in text
    except (httpx2.InvalidURL, ValueError):
        is_whole = False
    if not is_whole:
        raise ConfigurationError(
            f"{variable} is not the address of a proxy: the host is missing, or the port is wrong{away}"
        )
    return text if separator else f"http://{text}"


def _is_bypassed(url: httpx2.URL, no_proxy: str) -> bool:
    """Return True if NO_PROXY has a host, by curl's rules, or host and port."""
    host, port = url.host.lower().rstrip("."), url.port or _PORTS[url.scheme]
    address = _address_in(host)
    return any(
        _bypasses(part, host, port, address) for part in no_proxy.lower().replace(",", " ").split()
    )


_PORTS = {"https": 443, "http": 80}


def _bypasses(entry: str, host: str, port: int, address: IPv4Address | IPv6Address | None) -> bool:
    if entry == "*":
        return True
    if address is not None:
        try:
            return address in ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass  # an entry with a port, or a name
    name, colon, number = entry.rpartition(":")
    if colon and number.isascii() and number.isdigit():
        return int(number) == port and _bypasses(name, host, port, address)
    name = entry.removeprefix("*").strip(".")
    return bool(name) and (host == name or (address is None and host.endswith(f".{name}")))


def _address_in(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def _check_trust() -> None:
    """Check the files in SSL_CERT_FILE and SSL_CERT_DIR: without them OpenSSL trusts no one.

    Raises ConfigurationError.
    """
    file, directories = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except ssl.SSLError:
            raise ConfigurationError(f"SSL_CERT_FILE: {file} has no PEM certificate") from None
        except OSError as error:
            raise ConfigurationError(
                f"SSL_CERT_FILE: {file} cannot be read: {error.strerror}"
            ) from None
    if directories and not file and not any(map(os.path.isdir, directories.split(os.pathsep))):
        raise ConfigurationError(f"SSL_CERT_DIR: {directories} is not a directory")


def other_trust(names: Sequence[str] = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")) -> str:
    """Return a set variable with certificates that only other programs use, or an empty text."""
    return next((name for name in names if os.environ.get(name)), "")


def _require_port(url: httpx2.URL) -> None:
    """Raise ValueError for an impossible port."""
    if url.port is not None and not 0 < url.port <= _MAX_PORT:
        raise ValueError


_MAX_PORT = 65_535


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _environment_key() -> str | None:
    key, file = environment("PQKEEP_API_KEY"), environment("PQKEEP_API_KEY_FILE")
    if key and file:
        raise ConfigurationError("PQKEEP_API_KEY and PQKEEP_API_KEY_FILE are both set: unset one")
    if file:
        return _checked_key(_key_in(file), "the API key in the file of PQKEEP_API_KEY_FILE")
    return _checked_key(key, "PQKEEP_API_KEY") if key else None


def _environment_workload() -> Workload | None:
    file, role = environment("PQKEEP_TOKEN_FILE"), environment("PQKEEP_ROLE")
    if file is None and role is None:
        return None
    if not file or not role:
        raise ConfigurationError(
            "PQKEEP_TOKEN_FILE and PQKEEP_ROLE belong together: set both, or neither"
        )
    return Workload(role.strip(BLANK), file.strip(BLANK))


def _profile_key(profile: Profile) -> str | None:
    if profile.api_key and profile.api_key_file:
        raise ConfigurationError("the profile has both api_key and api_key_file: remove one")
    return _key_in(profile.api_key_file) if profile.api_key_file else profile.api_key


def _key_in(path: str) -> str:
    try:
        return read_api_key(Path(path).expanduser())
    except OSError as error:
        refusal = ConfigurationError(f"the API key's file cannot be read: {error.strerror}")
    except (ValueError, RuntimeError):
        refusal = ConfigurationError("the API key's file has no API key")
    raise refusal

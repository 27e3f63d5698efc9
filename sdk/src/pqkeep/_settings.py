"""What a client is made with: arguments, else the environment, else a profile.

A profile is one installation, and taken whole: its credential goes to its own address only.
"""

import os
import ssl
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Self

import httpx2

from pqkeep.compliance import ComplianceProfile, profile_named
from pqkeep.errors import ConfigurationError
from pqkeep.private_files import read_api_key
from pqkeep.profiles import DEFAULT, Profile, read_profile

TIMEOUT = 30.0
RETRIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One service, one credential, and how to talk to it."""

    url: str
    api_key: str = field(repr=False)
    ca_file: str | None
    compliance: ComplianceProfile | None
    timeout: float
    """Seconds for a call with all its attempts."""
    retries: int
    allow_plain_http: bool

    def __post_init__(self) -> None:
        """Refuse what cannot be meant. Raises ConfigurationError."""
        url = _parsed(self.url)
        if not self.is_encrypted and not (self.allow_plain_http or _is_loopback(url.host)):
            raise ConfigurationError(
                "http:// is for this machine only: what is sent could be read on the way"
            )
        key = self.api_key
        if not key or not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigurationError("the API key must be printable ASCII without spaces")
        if not self.timeout > 0:
            raise ConfigurationError("the timeout must be more than 0 seconds")

    @property
    def is_encrypted(self) -> bool:
        """Whether there is TLS. Only then are the environment's proxies used."""
        return _parsed(self.url).scheme == "https"

    def headers(self) -> dict[str, str]:
        """Return what goes with every request."""
        headers = {
            "X-API-Key": self.api_key,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "pqkeep-python",
        }
        if self.compliance is not None:
            headers["X-Compliance-Profile"] = self.compliance.name
        return headers

    def tls(self) -> ssl.SSLContext:
        """Return who is trusted: those of the CA file only, if there is one."""
        if not self.is_encrypted:
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError:
            raise ConfigurationError(
                f"the CA file {self.ca_file} has no certificate in PEM"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"the CA file {self.ca_file} cannot be read: {error.strerror}"
            ) from None

    @classmethod
    def of(cls, profile: Profile, timeout: float, retries: int) -> Self:
        """Take a profile's settings, and no others. Raises ConfigurationError."""
        return cls(
            url=profile.url.rstrip("/"),
            api_key=_profile_key(profile) or "",
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
        """Find what was not given, unless it is a whole profile. Raises ConfigurationError."""
        if isinstance(profile, Profile):
            if any((base_url, api_key, ca_file, compliance_profile, allow_plain_http)):
                raise ConfigurationError("a profile that is given is taken whole, and alone")
            return cls.of(profile, timeout, retries)
        url = base_url if base_url is not None else os.environ.get("PQKEEP_URL") or None
        key = api_key if api_key is not None else _environment_key()
        name = profile or os.environ.get("PQKEEP_PROFILE")
        stored = read_profile(name or DEFAULT) if name or url is None else None
        if stored is not None:
            if key is None and url not in {None, stored.url}:
                raise ConfigurationError("the profile's API key is for the profile's address only")
            url = stored.url if url is None else url
            key = key if key is not None else _profile_key(stored)
        if url is None or key is None:
            raise ConfigurationError(
                "there is no API key: give one, or set PQKEEP_API_KEY or PQKEEP_API_KEY_FILE"
            )
        ca = ca_file or os.environ.get("PQKEEP_CA_FILE") or (stored.ca_file if stored else None)
        compliance = compliance_profile or (stored.compliance_profile if stored else None)
        return cls(
            url=url.rstrip("/"),
            api_key=key,
            ca_file=None if ca is None else os.fspath(ca),
            compliance=profile_named(compliance),
            timeout=timeout,
            retries=retries,
            allow_plain_http=allow_plain_http or (stored is not None and stored.allow_plain_http),
        )


def _parsed(text: str) -> httpx2.URL:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL()
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo:
        raise ConfigurationError("the base URL must be https:// or http:// and a host")
    if url.query or url.fragment:
        raise ConfigurationError("the base URL must be https:// or http://, a host and a path")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _environment_key() -> str | None:
    key, file = os.environ.get("PQKEEP_API_KEY"), os.environ.get("PQKEEP_API_KEY_FILE")
    if key and file:
        raise ConfigurationError("set PQKEEP_API_KEY or PQKEEP_API_KEY_FILE, not both")
    return _key_in(file) if file else key or None


def _profile_key(profile: Profile) -> str | None:
    if profile.api_key and profile.api_key_file:
        raise ConfigurationError("a profile has api_key or api_key_file, not both")
    return _key_in(profile.api_key_file) if profile.api_key_file else profile.api_key


def _key_in(path: str) -> str:
    try:
        return read_api_key(Path(path).expanduser())
    except OSError as error:
        refusal = ConfigurationError(f"the API key's file cannot be read: {error.strerror}")
    except ValueError:
        refusal = ConfigurationError("the API key's file holds none")
    raise refusal

"""Compliance profiles: they restrict the algorithms that a client uses.

The service does not enforce them. The profile's name is sent with each request, for the logs of
proxies. A profile aligns algorithms and certifies nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pqkeep.algorithms import Algorithm, HashAlgorithm
from pqkeep.errors import ComplianceError, ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplianceProfile:
    """The algorithms of a profile. No profile has one for key wrap."""

    name: str
    kem: str
    signature: str
    mac: str
    hashes: frozenset[str]
    cipher: str
    """The algorithm of local encryption."""

    def require(self, named: str, allowed: Collection[str], what: str) -> str:
        """Return the algorithm if it is allowed. Raises ComplianceError."""
        if named not in allowed:
            those = " and ".join(sorted(allowed))
            raise ComplianceError(f"{self.name} allows only {those} for {what}", field="algorithm")
        return named


PROFILES: Mapping[str, ComplianceProfile] = {
    profile.name: profile
    for profile in (
        ComplianceProfile(
            name="cnsa-2.0",
            kem=Algorithm.ML_KEM_1024,
            signature=Algorithm.ML_DSA_87,
            mac=Algorithm.HMAC_SHA_512,
            hashes=frozenset({HashAlgorithm.SHA_384, HashAlgorithm.SHA_512}),
            cipher="AES-256-GCM",
        ),
    )
}
"""All profiles, by name."""


def profile_named(name: str | None) -> ComplianceProfile | None:
    """Return a profile by name, or None for None. Raises ConfigurationError."""
    if name is None:
        return None
    if name not in PROFILES:
        known = ", ".join(PROFILES)
        raise ConfigurationError(f"the compliance profile is unknown: use {known}")
    return PROFILES[name]


@dataclass(frozen=True, slots=True)
class Rules:
    """Chooses algorithms by a profile, or without one.

    The methods return the algorithm to send, or None. They raise ComplianceError.
    """

    profile: ComplianceProfile | None = None

    def kem(self, named: str | None) -> str | None:
        """Return the algorithm to encrypt, decrypt, encapsulate or decapsulate with."""
        if self.profile is None:
            return named
        pinned = self.profile.kem
        return self.profile.require(named or pinned, {pinned}, "KEM operations")

    def signature(self, named: str | None) -> str | None:
        """Return the algorithm of a signature."""
        if self.profile is None:
            return named
        pinned = self.profile.signature
        return self.profile.require(named or pinned, {pinned}, "signatures")

    def mac(self, named: str | None) -> str | None:
        """Return the algorithm of a MAC."""
        if self.profile is None:
            return named
        pinned = self.profile.mac
        return self.profile.require(named or pinned, {pinned}, "MACs")

    def wrap(self, named: str | None) -> str | None:
        """Return the algorithm of key wrap."""
        if self.profile is not None:
            raise ComplianceError(f"{self.profile.name} does not allow key wrap")
        return named

    def hash(self, named: str) -> str:
        """Return the algorithm of a hash."""
        if self.profile is None:
            return named
        return self.profile.require(named, self.profile.hashes, "hashes")

    def key(self, named: str) -> str:
        """Return the algorithm of a key."""
        if self.profile is None:
            return named
        profile = self.profile
        return profile.require(named, {profile.kem, profile.signature, profile.mac}, "keys")

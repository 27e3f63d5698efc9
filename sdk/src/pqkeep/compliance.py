"""Compliance profiles: which algorithms a client uses, whatever the service would allow.

The service has no such gate; the profile's name goes with each request for the records of whoever
stands in between. It is algorithm alignment, and certifies nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pqkeep.algorithms import Algorithm, HashAlgorithm
from pqkeep.errors import ComplianceError, ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplianceProfile:
    """The algorithms of a profile. None of them wraps keys."""

    name: str
    kem: str
    signature: str
    hashes: frozenset[str]
    cipher: str
    """For encryption at home."""

    def require(self, named: str, allowed: Collection[str], what: str) -> str:
        """Return an algorithm that is allowed. Raises ComplianceError for others."""
        if named not in allowed:
            those = " and ".join(sorted(allowed))
            raise ComplianceError(f"{self.name} has {those} for {what}", field="algorithm")
        return named


PROFILES: Mapping[str, ComplianceProfile] = {
    profile.name: profile
    for profile in (
        ComplianceProfile(
            name="cnsa-2.0",
            kem=Algorithm.ML_KEM_1024,
            signature=Algorithm.ML_DSA_87,
            hashes=frozenset({HashAlgorithm.SHA_384, HashAlgorithm.SHA_512}),
            cipher="AES-256-GCM",
        ),
    )
}
"""The profiles that there are."""


def profile_named(name: str | None) -> ComplianceProfile | None:
    """Return a profile; None has none. Raises ConfigurationError."""
    if name is None:
        return None
    if name not in PROFILES:
        known = ", ".join(PROFILES)
        raise ConfigurationError(f"there is no such compliance profile; there is: {known}")
    return PROFILES[name]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a profile, or its absence, makes of the algorithms that a caller names.

    Each method returns what to send, and raises ComplianceError.
    """

    profile: ComplianceProfile | None = None

    def kem(self, named: str | None) -> str | None:
        """Decide on the algorithm of an encryption or an encapsulation, or of their undoing."""
        if self.profile is None:
            return named
        pinned = self.profile.kem
        return self.profile.require(named or pinned, {pinned}, "KEM operations")

    def signature(self, named: str | None) -> str | None:
        """Decide on the algorithm of a signature."""
        if self.profile is None:
            return named
        pinned = self.profile.signature
        return self.profile.require(named or pinned, {pinned}, "signatures")

    def wrap(self, named: str | None) -> str | None:
        """Decide on the algorithm that wraps a key."""
        if self.profile is not None:
            raise ComplianceError(f"{self.profile.name} has no algorithm for key wrap")
        return named

    def hash(self, named: str) -> str:
        """Decide on the algorithm of a hash."""
        if self.profile is None:
            return named
        return self.profile.require(named, self.profile.hashes, "hashes")

    def key(self, named: str) -> str:
        """Decide on the algorithm of a key."""
        if self.profile is None:
            return named
        return self.profile.require(named, {self.profile.kem, self.profile.signature}, "keys")

"""The key types of Vault Transit, and their algorithms.

A keyring stores its type as one text. A type with several parameter sets has a slash and the set:
``ml-dsa/65``.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pqkeep_gateway.api.keyrings import TRANSIT_TYPES
from pqkeep_gateway.transit.responses import TransitError
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Kind

_LARGE_HMAC = "hmac/64"
DEFAULT = "aes256-gcm96"
DEFAULT_SETS = {"ml-dsa": "65", "slh-dsa": "slh-dsa-sha2-128s", "hybrid": "65"}
"""The parameter set of a type that needs one, if the request names none."""
_CLASSICAL = (
    "ecdsa-p256",
    "ecdsa-p384",
    "ecdsa-p521",
    "ed25519",
    "rsa-2048",
    "rsa-3072",
    "rsa-4096",
)
_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(
        _CLASSICAL,
        "a quantum computer breaks it; use ml-dsa with parameter_set 65 or 87, or hybrid, which"
        " signs with ML-DSA-65 and ECDSA P-256 together",
    ),
    "aes128-gcm96": "128 bits are not offered; use aes256-gcm96",
    "aes128-cmac": "use hmac",
    "aes192-cmac": "use hmac",
    "aes256-cmac": "use hmac",
    "managed_key": "keys of other systems cannot be used; use a type of this service",
}
"""Types of Vault that this service does not offer, and what to do."""


class KeyType(NamedTuple):
    """The type of a keyring, as clients of Vault Transit see it."""

    stored: str
    """The type and its parameter set, as the keyring has it."""
    derived: bool

    @property
    def name(self) -> str:
        """The type that the client asked for."""
        return self.stored.partition("/")[0]

    @property
    def parameter_set(self) -> str:
        """The parameter set; empty for a type without one."""
        return "" if self.name == "hmac" else self.stored.partition("/")[2]

    @property
    def key_size(self) -> int:
        """The bytes of a MAC key, as the client asked for them."""
        return 64 if self.stored == _LARGE_HMAC else 32

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the keyring's keys."""
        return TRANSIT_TYPES[self.stored]

    @property
    def encrypts(self) -> bool:
        """Whether its keys encrypt and decrypt."""
        return ALGORITHMS[self.algorithm].kind in {Kind.KEM, Kind.CIPHER}

    @property
    def signs(self) -> bool:
        """Whether its keys sign and verify."""
        return ALGORITHMS[self.algorithm].kind is Kind.SIGNATURE


def stored_type(
    name: str | None,
    parameter_set: str | None,
    key_size: int | None,
    hybrid: tuple[str | None, str | None],
) -> str:
    """Return the type of a request in its stored form; ``hybrid``: its two halves.

    Raises TransitError for a type that is not offered: another type would not be what the client means.
    """
    asked = name or DEFAULT
    if asked in _OTHERS:
        raise TransitError(f"type {asked} is not offered: {_OTHERS[asked]}")
    if asked == "hmac":
        if key_size not in {None, 0, 32, 64}:
            raise TransitError("key_size must be 32 or 64 bytes for hmac")
        return _LARGE_HMAC if key_size == 64 else "hmac"  # noqa: PLR2004 - bytes of HMAC-SHA-512
    if asked == "hybrid" and (hybrid[0] or "ml-dsa", hybrid[1] or "ecdsa-p256") != (
        "ml-dsa",
        "ecdsa-p256",
    ):
        raise TransitError(
            "hybrid is offered with hybrid_key_type_pqc ml-dsa and hybrid_key_type_ec ecdsa-p256"
        )
    if asked in DEFAULT_SETS:
        stored = f"{asked}/{parameter_set or DEFAULT_SETS[asked]}"
        if stored not in TRANSIT_TYPES:
            offered = [
                text.partition("/")[2] for text in TRANSIT_TYPES if text.startswith(f"{asked}/")
            ]
            sets = ", ".join(offered)
            raise TransitError(f"parameter_set of {asked} must be one of: {sets}")
        return stored
    if asked not in TRANSIT_TYPES or "/" in asked:
        names = ", ".join(dict.fromkeys(text.partition("/")[0] for text in TRANSIT_TYPES))
        raise TransitError(f"unknown key type; the types are: {names}")
    return asked

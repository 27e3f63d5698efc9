"""Defaults of commands: the algorithm, the key and the tenant."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pqkeep.algorithms import LEGACY, Algorithm
from pqkeep.cli.failures import NOT_FOUND, Refusal
from pqkeep.errors import NotFoundError
from pqkeep.models import Key

if TYPE_CHECKING:
    from pqkeep.client import Client

KEM = Algorithm.ML_KEM_768
SIGNATURE = Algorithm.ML_DSA_65
"""The service has the same default."""
MAC = Algorithm.HMAC_SHA_256
"""The service has the same default."""
ENCRYPTING = (
    Algorithm.ML_KEM_768,
    Algorithm.ML_KEM_1024,
    Algorithm.X_WING,
    Algorithm.XAES_256_GCM,
)
AUTHENTICATING = (Algorithm.HMAC_SHA_256, Algorithm.HMAC_SHA_512)
SYMMETRIC = frozenset({Algorithm.XAES_256_GCM, *AUTHENTICATING})
SIGNING = frozenset(Algorithm) - frozenset(ENCRYPTING) - frozenset(AUTHENTICATING) - LEGACY


class Named(NamedTuple):
    """The key that the options name. The service chooses where a value is None."""

    algorithm: str | None
    key_version: int | None
    keyring: str | None


UNNAMED = Named(None, None, None)


def kem_algorithm(client: "Client", named: str | None) -> str:
    """Return the algorithm to encrypt with, by default the compliance profile's.

    Raises Refusal for a signature algorithm.
    """
    if named in SIGNING:
        raise Refusal(
            f"{named} is a signature algorithm and cannot encrypt",
            f"name one of {', '.join(ENCRYPTING)}",
        )
    if named in LEGACY:
        raise Refusal(
            f"{named} is a legacy algorithm: its keys only read",
            f"name one of {', '.join(ENCRYPTING)}",
        )
    if named in AUTHENTICATING:
        raise Refusal(
            f"{named} computes MACs and cannot encrypt", f"name one of {', '.join(ENCRYPTING)}"
        )
    if named is not None:
        return named
    profile = client.compliance_profile
    return KEM.value if profile is None else profile.kem


def signature_algorithm(client: "Client", named: str | None) -> str:
    """Return the algorithm to sign with, by default the compliance profile's."""
    if named is not None:
        return named
    profile = client.compliance_profile
    return SIGNATURE.value if profile is None else profile.signature


def mac_algorithm(client: "Client", named: str | None) -> str:
    """Return the algorithm of a MAC, by default the compliance profile's."""
    if named is not None:
        return named
    profile = client.compliance_profile
    return MAC.value if profile is None else profile.mac


def key_version(
    client: "Client", algorithm: str, named: int | None, keyring: str | None = None
) -> int:
    """Return a key version, by default that of the active key."""
    return active(client, algorithm, keyring).key_version if named is None else named


def key(client: "Client", algorithm: str, named: int | None, keyring: str | None = None) -> Key:
    """Return a key, by default the active one."""
    if named is None:
        return active(client, algorithm, keyring)
    return client.keys.get(algorithm, key_version=named, keyring=keyring)


def active(client: "Client", algorithm: str, keyring: str | None = None) -> Key:
    """Return the active key. Raises Refusal if no key is active."""
    with generating(algorithm, keyring=keyring):
        return client.keys.active(algorithm, keyring=keyring)


@contextmanager
def generating(
    algorithm: str, key_version: int | None = None, *, keyring: str | None = None
) -> Iterator[None]:
    """Add a hint to NotFoundError in the block: how to make the missing active key."""
    try:
        yield
    except NotFoundError as error:
        if key_version is not None:
            raise
        if keyring is None:
            hint = f"generate a key: pqkeep keys generate {algorithm}; list keys: pqkeep keys list"
        else:
            hint = (
                f"generate a key: pqkeep keys generate {algorithm} --keyring {keyring}; "
                "list what exists: pqkeep keyrings list, pqkeep keys list"
            )
        raise Refusal(str(error), hint, NOT_FOUND) from None


def tenant_id(client: "Client", named: str | None) -> str:
    """Return a tenant's id, by default that of the caller's tenant. Raises Refusal."""
    if named is not None:
        return named
    tenants = client.tenants.list()
    if len(tenants) != 1:
        raise Refusal(
            "this credential does not belong to a tenant",
            "add --tenant ID; list the tenants: pqkeep tenants list",
        )
    return tenants[0].id

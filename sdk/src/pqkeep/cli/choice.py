"""What a command works with where the user left it open: the algorithm, the key, the tenant."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pqkeep.algorithms import Algorithm
from pqkeep.cli.failures import NOT_FOUND, Refusal
from pqkeep.errors import NotFoundError
from pqkeep.models import Key

if TYPE_CHECKING:
    from pqkeep.client import Client

KEM = Algorithm.ML_KEM_768
SIGNATURE = Algorithm.ML_DSA_65
"""What the service takes too."""
ENCRYPTING = (Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024, Algorithm.X_WING)
SIGNING = frozenset(Algorithm) - frozenset(ENCRYPTING)


class Named(NamedTuple):
    """Which key the options name. What is None is left to the service."""

    algorithm: str | None
    key_version: int | None
    keyring: str | None


UNNAMED = Named(None, None, None)


def kem_algorithm(client: "Client", named: str | None) -> str:
    """Return the algorithm to encrypt with; where none is named, the compliance profile's.

    Raises Refusal for one that signs.
    """
    if named in SIGNING:
        raise Refusal(
            f"{named} signs, and does not encrypt", f"name one of {', '.join(ENCRYPTING)}"
        )
    if named is not None:
        return named
    profile = client.compliance_profile
    return KEM.value if profile is None else profile.kem


def signature_algorithm(client: "Client", named: str | None) -> str:
    """Return the algorithm to sign with; where none is named, the compliance profile's."""
    if named is not None:
        return named
    profile = client.compliance_profile
    return SIGNATURE.value if profile is None else profile.signature


def key_version(
    client: "Client", algorithm: str, named: int | None, keyring: str | None = None
) -> int:
    """Return a key version; where none is named, the active one."""
    return active(client, algorithm, keyring).key_version if named is None else named


def key(client: "Client", algorithm: str, named: int | None, keyring: str | None = None) -> Key:
    """Return a version of a key; where none is named, the active one."""
    if named is None:
        return active(client, algorithm, keyring)
    return client.keys.get(algorithm, key_version=named, keyring=keyring)


def active(client: "Client", algorithm: str, keyring: str | None = None) -> Key:
    """Return the active key. Raises Refusal if there is none."""
    with generating(algorithm, keyring=keyring):
        return client.keys.active(algorithm, keyring=keyring)


@contextmanager
def generating(
    algorithm: str, key_version: int | None = None, *, keyring: str | None = None
) -> Iterator[None]:
    """Say how to make the active key where it is missing, unless a version was named."""
    try:
        yield
    except NotFoundError as error:
        if key_version is not None:
            raise
        if keyring is None:
            hint = f"generate one: pqkeep keys generate {algorithm}; or see them: pqkeep keys list"
        else:
            hint = (
                f"generate one: pqkeep keys generate {algorithm} --keyring {keyring}; "
                "or see them: pqkeep keyrings list, pqkeep keys list"
            )
        raise Refusal(str(error), hint, NOT_FOUND) from None


def tenant_id(client: "Client", named: str | None) -> str:
    """Return a tenant's id; where none is named, that of one's own. Raises Refusal."""
    if named is not None:
        return named
    tenants = client.tenants.list()
    if len(tenants) != 1:
        raise Refusal("this credential has no tenant of its own", "name the tenant by its id")
    return tenants[0].id

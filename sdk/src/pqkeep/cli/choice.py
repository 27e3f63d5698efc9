"""What a command works with where the user left it open: the algorithm, the key, the tenant."""

from typing import TYPE_CHECKING

from pqkeep.algorithms import Algorithm
from pqkeep.cli.failures import Refusal
from pqkeep.models import Key

if TYPE_CHECKING:
    from pqkeep.client import Client

KEM = Algorithm.ML_KEM_768
"""What the service takes too."""


def kem_algorithm(client: "Client", named: str | None) -> str:
    """Return the algorithm to encrypt with; where none is named, the compliance profile's."""
    if named is not None:
        return named
    profile = client.compliance_profile
    return KEM.value if profile is None else profile.kem


def key_version(client: "Client", algorithm: str, named: int | None) -> int:
    """Return a key version; where none is named, the active one."""
    return client.keys.active(algorithm).key_version if named is None else named


def key(client: "Client", algorithm: str, named: int | None) -> Key:
    """Return a version of a key; where none is named, the active one."""
    if named is None:
        return client.keys.active(algorithm)
    return client.keys.get(algorithm, key_version=named)


def tenant_id(client: "Client", named: str | None) -> str:
    """Return a tenant's id; where none is named, that of one's own. Raises Refusal."""
    if named is not None:
        return named
    tenants = client.tenants.list()
    if len(tenants) != 1:
        raise Refusal("this credential has no tenant of its own", "name the tenant by its id")
    return tenants[0].id

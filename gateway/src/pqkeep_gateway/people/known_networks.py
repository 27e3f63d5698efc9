"""From which networks somebody has signed in before: no stranger's failures stop them there.

Stored are digests of an e-mail address together with a network (see source_address), and when the
person signed in from there last.
"""

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper, Purpose
from pqkeep_gateway.access.source_address import network_of
from pqkeep_gateway.storage.known_networks import LIFETIME, SqlKnownNetworks
from pqkeep_gateway.storage.users import email_key


class KnownNetworks:
    """Tells in which networks an account is known; sign-ins and password resets make them so."""

    def __init__(self, store: SqlKnownNetworks, pepper: Pepper, clock: Clock) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock

    async def is_known(self, email: str, source_address: str) -> bool:
        """Return whether an account is known in a network, whether it exists or not."""
        digest = network_digest(self._pepper, email, source_address)
        return await self._store.is_known(digest, date_of(self._clock()) - LIFETIME)


def network_digest(pepper: Pepper, email: str, source_address: str) -> bytes:
    """Return the 32 bytes that stand for an account's network."""
    key = email_key(email).encode("utf-8", "surrogatepass")
    return pepper.derive(Purpose.KNOWN_NETWORK, key, network_of(source_address).encode())

"""A tenant's active key, as the one to encrypt to."""

from pqkeep.compliance import Rules
from pqkeep.errors import InvalidRequestError, MalformedAnswerError
from pqkeep.local._encapsulation import encapsulate
from pqkeep.local._primitives import KEMS
from pqkeep.models import Encapsulation, Key

DEFAULT = "Kyber768"
"""What the service takes too where none is named."""


def named(rules: Rules, algorithm: str | None) -> str:
    """Return the algorithm to ask for. Raises ComplianceError and InvalidRequestError."""
    chosen = rules.kem(algorithm)
    if chosen is None:
        return DEFAULT
    if chosen not in KEMS:
        raise InvalidRequestError(f"local encryption has {', '.join(KEMS)}", field="algorithm")
    return chosen


def encapsulated_to(key: Key, algorithm: str) -> Encapsulation:
    """Encapsulate to a key that the service gave for an algorithm, whatever it calls it itself.

    Raises MalformedAnswerError if it is no such key.
    """
    try:
        return encapsulate(
            public_key=key.public_key, algorithm=algorithm, key_version=key.key_version
        )
    except ValueError:
        pass
    raise MalformedAnswerError("the answer's key is none of the algorithm", field="public_key")

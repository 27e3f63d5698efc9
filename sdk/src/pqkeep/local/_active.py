"""A tenant's active key as a recipient."""

from collections.abc import Collection
from typing import NamedTuple

from pqkeep.compliance import Rules
from pqkeep.errors import InvalidRequestError, MalformedResponseError
from pqkeep.local._header import Opened
from pqkeep.local._primitives import KEMS, canonical, encapsulate
from pqkeep.local._re_encryption import Change
from pqkeep.local._recipients import DEFAULT_KEYRING, Recipient
from pqkeep.models import Key

DEFAULT = "Kyber768"
"""The service has the same default."""


def named(rules: Rules, algorithm: str | None) -> str:
    """Return the algorithm to request. Raises ComplianceError and InvalidRequestError."""
    chosen = rules.kem(algorithm)
    if chosen is None:
        return DEFAULT
    chosen = canonical(chosen)
    if chosen not in KEMS:
        raise InvalidRequestError(
            f"local encryption does not support this algorithm: use {', '.join(KEMS)}",
            field="algorithm",
        )
    return chosen


def allowed(rules: Rules, recipients: Collection[Recipient]) -> Collection[Recipient]:
    """Return the recipients if the compliance profile allows all. Raises ComplianceError."""
    for recipient in recipients:
        rules.kem(recipient.algorithm)
    return recipients


class Target(NamedTuple):
    """The active key that replaces the key that opened a file."""

    algorithm: str
    keyring: str


def target_of(
    rules: Rules, opened: Opened, algorithm: str | None, keyring: str | None, change: Change
) -> Target | None:
    """Return the algorithm and keyring of the new key.

    None if the change names a version itself, or the key stays.

    Raises ComplianceError and InvalidRequestError.
    """
    allowed(rules, change.add)
    is_named = algorithm is not None or keyring is not None
    if change.to is not None:
        allowed(rules, (change.to,))
        if is_named:
            raise InvalidRequestError(
                "name either an algorithm or a public key, not both", field="algorithm"
            )
        return None
    if not is_named and not change.new_file_key and (change.add or change.remove):
        return None
    chosen = named(rules, algorithm or opened.recipient.algorithm)
    return Target(chosen, keyring or opened.recipient.keyring)


def asked(keyring: str) -> str | None:
    """Return the keyring for a request, or None for the default keyring."""
    return None if keyring == DEFAULT_KEYRING else keyring


def as_recipient(key: Key, algorithm: str, keyring: str | None = None) -> Recipient:
    """Return the service's key as a recipient of this algorithm, under any of its names.

    Raises MalformedResponseError if the public key does not fit the algorithm.
    """
    try:
        encapsulate(public_key=key.public_key, algorithm=algorithm, key_version=key.key_version)
    except ValueError:
        raise MalformedResponseError(
            "the key in the response is not valid for the algorithm", field="public_key"
        ) from None
    return Recipient(
        public_key=key.public_key,
        algorithm=algorithm,
        key_version=key.key_version,
        keyring=keyring or DEFAULT_KEYRING,
    )

"""The closed set of reasons why the key service refuses a request.

A kind says what the caller can do about it, never why the cryptography failed. The gateway maps
kinds to HTTP statuses and ``ERR_*`` codes.
"""

from enum import StrEnum


class ErrorKind(StrEnum):
    """Why there is no result."""

    KEY_NOT_FOUND = "key-not-found"
    """No such key version, or one whose status does not allow the operation."""
    TARGET_NOT_FOUND = "target-not-found"
    """There is no active key to re-encrypt to."""
    KEY_EXISTS = "key-exists"
    """The algorithm already has an active key."""
    KEYRING_NOT_FOUND = "keyring-not-found"
    """The tenant has no such keyring."""
    KEYRING_EXISTS = "keyring-exists"
    KEYRING_QUOTA_REACHED = "keyring-quota-reached"
    TENANT_MOVED = "tenant-moved"
    """The tenant's keys are in another shard, or on their way to one."""
    PURPOSE_DENIED = "purpose-denied"
    """The keyring's keys are not for that."""
    TARGET_PURPOSE_DENIED = "target-purpose-denied"
    """The keys of the keyring to re-encrypt to are not for that."""
    SCOPE_DENIED = "scope-denied"
    """The public key is of one of the tenant's keyrings, and the caller may not use that keyring."""
    NO_PURPOSE = "no-purpose"
    """None of the keyring's purposes is for keys of the algorithm."""
    IMPORT_KEY_NOT_FOUND = "import-key-not-found"
    """No such import key, or it was used, or its time is over."""
    KEY_QUOTA_REACHED = "key-quota-reached"
    VERSION_LIMIT_REACHED = "version-limit-reached"
    """The key has as many versions as a key may have."""
    KEY_STATUS = "key-status"
    """The lifecycle has no such step from the key's status."""
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused"
    """The Idempotency-Key belongs to another request."""
    RECORD_NOT_FOUND = "record-not-found"
    """The audit log has no such record, or is not that large."""
    UNSUPPORTED = "unsupported"
    """The algorithm has no such operation, or the socket takes no such request."""
    ALGORITHM_MISMATCH = "algorithm-mismatch"
    """The ciphertext belongs to a key of another algorithm."""
    INVALID_PUBLIC_KEY = "invalid-public-key"
    """The public key that the caller brought is none of the algorithm's."""
    PRIVATE_KEY_MALFORMED = "private-key-malformed"
    """What was unwrapped is no private key in a form that is known."""
    PRIVATE_KEY_ALGORITHM = "private-key-algorithm"
    """The private key is another algorithm's."""
    PRIVATE_KEY_WITHOUT_SEED = "private-key-without-seed"
    """The private key is in its expanded form only."""
    PRIVATE_KEY_CONTRADICTION = "private-key-contradiction"
    """Its seed does not belong to its expanded key, its public key or its other half."""
    DECRYPTION_FAILED = "decryption-failed"
    VERIFICATION_FAILED = "verification-failed"
    TOO_LARGE = "too-large"
    """The request does not fit into a frame. Raised by the key service's clients only."""
    OVERLOADED = "overloaded"
    """Too many requests in flight; nothing was done."""
    STANDBY = "standby"
    """This key service does not serve now, another one may; nothing was done. Clients with several
    addresses try the next, and raise UNAVAILABLE where none serves."""
    UNAVAILABLE = "unavailable"
    """Stopping, out of reach, or the audit log cannot be written."""
    DEADLINE_EXCEEDED = "deadline-exceeded"
    BAD_RESPONSE = "bad-answer"
    """The key service sent an invalid answer. Raised by its clients only."""
    INTERNAL = "internal"


class KeyServiceError(Exception):
    """A refused request. Raised by the key service and by its clients."""

    def __init__(self, kind: ErrorKind) -> None:
        """Carry the kind and nothing that the request held."""
        super().__init__(kind.value)
        self.kind = kind

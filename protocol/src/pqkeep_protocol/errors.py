"""The closed set of reasons why the key service refuses a request.

A kind says what the caller can do about it, never why the cryptography failed. The gateway maps
kinds to HTTP statuses and ``ERR_*`` codes.
"""

from enum import StrEnum


class ErrorKind(StrEnum):
    """Why there is no result."""

    KEY_NOT_FOUND = "key-not-found"
    """No such key version, or one whose status does not allow the operation."""
    KEY_EXISTS = "key-exists"
    """The algorithm already has an active key."""
    KEY_QUOTA_REACHED = "key-quota-reached"
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
    DECRYPTION_FAILED = "decryption-failed"
    VERIFICATION_FAILED = "verification-failed"
    OVERLOADED = "overloaded"
    """Too many requests in flight; nothing was done."""
    UNAVAILABLE = "unavailable"
    """Stopping, out of reach, or the audit log cannot be written."""
    DEADLINE_EXCEEDED = "deadline-exceeded"
    BAD_ANSWER = "bad-answer"
    """The key service sent an invalid answer. Raised by its clients only."""
    INTERNAL = "internal"


class KeyServiceError(Exception):
    """A refused request. Raised by the key service and by its clients."""

    def __init__(self, kind: ErrorKind) -> None:
        """Carry the kind and nothing that the request held."""
        super().__init__(kind.value)
        self.kind = kind

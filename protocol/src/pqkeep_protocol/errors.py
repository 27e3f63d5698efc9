"""The closed set of reasons for which the key service refuses a request.

A kind tells the caller how to react. It never tells why the cryptography failed. The gateway maps
kinds to HTTP statuses and ``ERR_*`` codes.
"""

from enum import StrEnum

from pqkeep_protocol.rules import RuleNotice


class ErrorKind(StrEnum):
    """Why a request has no result."""

    KEY_NOT_FOUND = "key-not-found"
    """The key version does not exist, or its status does not allow the operation."""
    TARGET_NOT_FOUND = "target-not-found"
    """Re-encryption has no active target key."""
    KEY_EXISTS = "key-exists"
    """The algorithm already has an active key."""
    KEYRING_NOT_FOUND = "keyring-not-found"
    """The tenant has no such keyring."""
    KEYRING_EXISTS = "keyring-exists"
    KEYRING_DELETED = "keyring-deleted"
    """The name belongs to a deleted keyring with private keys that are not destroyed yet."""
    KEYRING_QUOTA_REACHED = "keyring-quota-reached"
    TENANT_MOVED = "tenant-moved"
    """The tenant's keys are in another shard, or on their way to one."""
    PURPOSE_DENIED = "purpose-denied"
    """The keyring's purposes do not include the operation."""
    TARGET_PURPOSE_DENIED = "target-purpose-denied"
    """The purposes of the keyring to re-encrypt to do not include the operation."""
    VERSION_BELOW_MINIMUM = "version-below-minimum"
    """The key version is below the keyring's minimum version for the operation."""
    CONTEXT_REQUIRED = "context-required"
    """The keyring has derived keys, and the request has no context."""
    CONTEXT_REFUSED = "context-refused"
    """The request has a context, and the keyring has no derived keys."""
    TARGET_VERSION_BELOW_MINIMUM = "target-version-below-minimum"
    """The active key to re-encrypt to is below its keyring's minimum version."""
    DELETION_DENIED = "deletion-denied"
    """The keyring does not allow programs to delete it."""
    KEYRING_PROTECTED = "keyring-protected"
    """The keyring has the label that protects its private keys from destruction."""
    RULE_DENIED = "rule-denied"
    """A rule of the tenant ends the algorithm for this use. The notice names the rule."""
    RULE_WEAKENED = "rule-weakened"
    """The change would weaken a rule. Only the operator's socket accepts such a change."""
    RULE_NOT_FOUND = "rule-not-found"
    RULE_LIMIT_REACHED = "rule-limit-reached"
    LABEL_LIMIT_REACHED = "label-limit-reached"
    """The tenant has the maximum number of rules."""
    SCOPE_DENIED = "scope-denied"
    """The public key belongs to a keyring of the tenant that the caller's scopes exclude."""
    NO_PURPOSE = "no-purpose"
    """No purpose of the keyring fits the algorithm."""
    IMPORT_KEY_NOT_FOUND = "import-key-not-found"
    """The import key does not exist, was used, or has expired."""
    KEY_QUOTA_REACHED = "key-quota-reached"
    VERSION_LIMIT_REACHED = "version-limit-reached"
    """The key has the maximum number of versions."""
    KEY_STATUS = "key-status"
    """The key's status does not allow this lifecycle step."""
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused"
    """The Idempotency-Key was used for another request."""
    RECORD_NOT_FOUND = "record-not-found"
    """The audit log has no such record, or is smaller than the request says."""
    UNSUPPORTED = "unsupported"
    """The algorithm has no such operation, or the socket does not accept the request."""
    ALGORITHM_MISMATCH = "algorithm-mismatch"
    """The ciphertext belongs to a key of another algorithm."""
    INVALID_PUBLIC_KEY = "invalid-public-key"
    """The caller's public key is not a valid key of the algorithm."""
    PRIVATE_KEY_MALFORMED = "private-key-malformed"
    """The unwrapped data is not a private key in a known format."""
    PRIVATE_KEY_ALGORITHM = "private-key-algorithm"
    """The private key is for another algorithm."""
    PRIVATE_KEY_WITHOUT_SEED = "private-key-without-seed"
    """The private key is present only in its expanded form."""
    PRIVATE_KEY_CONTRADICTION = "private-key-contradiction"
    """The seed does not match the expanded key, the public key or the other half of the pair."""
    PRIVATE_KEY_PARAMETERS = "private-key-parameters"
    """The RSA key has an unsupported size or public exponent."""
    DECRYPTION_FAILED = "decryption-failed"
    VERIFICATION_FAILED = "verification-failed"
    TOO_LARGE = "too-large"
    """The request does not fit into a frame. Only the key service's clients raise it."""
    OVERLOADED = "overloaded"
    """Too many requests are in flight. Nothing was done."""
    STANDBY = "standby"
    """This key service is a standby. Nothing was done. Clients with several addresses try the next
    one, and raise UNAVAILABLE if none is active."""
    UNAVAILABLE = "unavailable"
    """The key service stops or is unreachable, or the audit log cannot be written."""
    DEADLINE_EXCEEDED = "deadline-exceeded"
    BAD_RESPONSE = "bad-answer"
    """The key service sent an invalid response. Only its clients raise it."""
    INTERNAL = "internal"


class KeyServiceError(Exception):
    """A refused request. Raised by the key service and by its clients."""

    def __init__(self, kind: ErrorKind, notice: RuleNotice | None = None) -> None:
        """Carry the kind, for RULE_DENIED the rule, and nothing of the request."""
        super().__init__(kind.value)
        self.kind = kind
        self.notice = notice

"""The Python client of pqkeep, the post-quantum cryptography service.

    from pqkeep import Client

    with Client(base_url, api_key) as client:
        client.keys.generate("Kyber768")
        sealed = client.kem.encrypt(b"a secret")
        opened = client.kem.decrypt(sealed.ciphertext, key_version=sealed.key_version)

It uses only the service's HTTP API. Data is bytes, and algorithms have the API's names. Every failure
is a PqkeepError (see pqkeep.errors). Requests that may succeed later are retried, and no change is
made twice. AsyncClient has the same methods as coroutines.
"""

from typing import TYPE_CHECKING

from pqkeep.algorithms import Algorithm, HashAlgorithm
from pqkeep.errors import (
    AuthenticationError,
    BadGatewayError,
    ComplianceError,
    ConfigurationError,
    ConflictError,
    ConnectionFailedError,
    DeadlineExceededError,
    DecryptionError,
    EncryptionInputError,
    GatewayTimeoutError,
    HashAlgorithmError,
    HashLengthError,
    InternalError,
    InvalidModeError,
    InvalidRequestError,
    InvalidSaltError,
    MalformedResponseError,
    MessageTooLargeError,
    NotFoundError,
    OutOfServiceError,
    PermissionDeniedError,
    PolicyDeniedError,
    PqkeepError,
    RateLimitError,
    RuleWarning,
    SignatureInputError,
    UnavailableError,
    UnreadableInputError,
    UnwrappingError,
    UnwrappingInputError,
    WrappingInputError,
)
from pqkeep.models import (
    AlgorithmRule,
    AlgorithmRules,
    ApiKey,
    ApiKeyRotation,
    AuditKey,
    AuditKeys,
    AuditRecord,
    BusyApiKey,
    Campaign,
    CampaignScan,
    CampaignSource,
    CampaignTarget,
    Cbom,
    Checkpoint,
    Ciphertext,
    ConsistencyProof,
    Cosignature,
    DataKey,
    Encapsulation,
    Envelope,
    ExternalSource,
    HashSignature,
    Health,
    ImportKey,
    InclusionProof,
    Installation,
    InstallationPart,
    Jws,
    Key,
    Keyring,
    KeyUsage,
    ListPage,
    Mac,
    NewApiKey,
    Operator,
    OwnApiKey,
    PreviewedUse,
    ProfileRule,
    PublicKey,
    ReEncrypted,
    Rotation,
    RuleException,
    RulePreview,
    RuleProfile,
    ScannedVersion,
    Scope,
    SharedSecret,
    Signature,
    Tenant,
    Usage,
    UsageBucket,
    Witness,
    WrappedKey,
)

if TYPE_CHECKING:
    from pqkeep.async_client import AsyncClient
    from pqkeep.client import Client
else:

    def __getattr__(name: str) -> type:
        """Import a client on first use: httpx2 takes longer to import than everything else."""
        if name == "Client":
            from pqkeep.client import Client  # noqa: PLC0415

            return Client
        if name == "AsyncClient":
            from pqkeep.async_client import AsyncClient  # noqa: PLC0415

            return AsyncClient
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Algorithm",
    "AlgorithmRule",
    "AlgorithmRules",
    "ApiKey",
    "ApiKeyRotation",
    "AsyncClient",
    "AuditKey",
    "AuditKeys",
    "AuditRecord",
    "AuthenticationError",
    "BadGatewayError",
    "BusyApiKey",
    "Campaign",
    "CampaignScan",
    "CampaignSource",
    "CampaignTarget",
    "Cbom",
    "Checkpoint",
    "Ciphertext",
    "Client",
    "ComplianceError",
    "ConfigurationError",
    "ConflictError",
    "ConnectionFailedError",
    "ConsistencyProof",
    "Cosignature",
    "DataKey",
    "DeadlineExceededError",
    "DecryptionError",
    "Encapsulation",
    "EncryptionInputError",
    "Envelope",
    "ExternalSource",
    "GatewayTimeoutError",
    "HashAlgorithm",
    "HashAlgorithmError",
    "HashLengthError",
    "HashSignature",
    "Health",
    "ImportKey",
    "InclusionProof",
    "Installation",
    "InstallationPart",
    "InternalError",
    "InvalidModeError",
    "InvalidRequestError",
    "InvalidSaltError",
    "Jws",
    "Key",
    "KeyUsage",
    "Keyring",
    "ListPage",
    "Mac",
    "MalformedResponseError",
    "MessageTooLargeError",
    "NewApiKey",
    "NotFoundError",
    "Operator",
    "OutOfServiceError",
    "OwnApiKey",
    "PermissionDeniedError",
    "PolicyDeniedError",
    "PqkeepError",
    "PreviewedUse",
    "ProfileRule",
    "PublicKey",
    "RateLimitError",
    "ReEncrypted",
    "Rotation",
    "RuleException",
    "RulePreview",
    "RuleProfile",
    "RuleWarning",
    "ScannedVersion",
    "Scope",
    "SharedSecret",
    "Signature",
    "SignatureInputError",
    "Tenant",
    "UnavailableError",
    "UnreadableInputError",
    "UnwrappingError",
    "UnwrappingInputError",
    "Usage",
    "UsageBucket",
    "Witness",
    "WrappedKey",
    "WrappingInputError",
]

"""compute-mac and verify-mac: HMAC under a key that is bound to its version, as for a KEM."""

from pqkeep_keyservice.operations.context import Context, OperationResult
from pqkeep_keyservice.operations.kem_dem import Purpose, derivation_info
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import ComputeMac, Mac, Verified, VerifyMac


def compute(request: ComputeMac, context: Context) -> OperationResult:
    """Return a message's MAC."""
    versions = context.versions
    key = context.key_for(request.operation, request.version)
    secret = context.material.symmetric_key(versions.tenant, key)
    mac = secret.mac(request.message, info=derivation_info(Purpose.MAC, versions, key))
    version = key.info.version
    return OperationResult(Mac(mac=mac, version=version), version)


def verify(request: VerifyMac, context: Context) -> OperationResult:
    """Verify a message's MAC, in constant time. Raises VERIFICATION_FAILED."""
    versions = context.versions
    key = context.key_for(request.operation, request.version)
    secret = context.material.symmetric_key(versions.tenant, key)
    info = derivation_info(Purpose.MAC, versions, key)
    if not secret.is_mac(request.mac, request.message, info=info):
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED)
    return OperationResult(Verified(), key.info.version)

"""POST /api/v1/mac/*."""

from typing import Annotated

from msgspec import Meta

from pqkeep_gateway.api.key_fields import (
    ACTIVE_KEY_VERSION,
    KEY_VERSION,
    MAC,
    MAC_MESSAGE,
    AlgorithmUsed,
    KeyResponse,
    KeyVersionUsed,
    shortened,
)
from pqkeep_gateway.api.key_operation import KeyCall, KeyOperation
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.text import Base64, base64
from pqkeep_protocol import messages
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.messages import ComputeMac, VerifyMac


class ComputedMac(KeyResponse, frozen=True, kw_only=True):
    """A message's MAC."""

    mac: Annotated[Base64, Meta(description="32 bytes for HMAC-SHA-256, 64 for HMAC-SHA-512.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


def compute_mac(call: KeyCall) -> ComputeMac:
    """Compute a message's MAC with the active key, or with the named active version."""
    return ComputeMac(
        tenant=call.tenant,
        algorithm=call.algorithm,
        message=call[MAC_MESSAGE],
        version=call[ACTIVE_KEY_VERSION],
    )


def computed_mac(_: ApiCall, request: ComputeMac, result: messages.Mac) -> ComputedMac:
    """Return the MAC."""
    return ComputedMac(
        mac=base64(result.mac), key_version=result.version, algorithm=request.algorithm
    )


class VerifiedMac(KeyResponse, frozen=True, kw_only=True):
    """The result of verifying a message's MAC."""

    valid: Annotated[bool, Meta(description="Whether the MAC is the message's.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


def verify_mac(call: KeyCall) -> VerifyMac:
    """Verify a message's MAC, in constant time. A wrong MAC is a result, not an error."""
    return VerifyMac(
        tenant=call.tenant,
        algorithm=call.algorithm,
        message=call[MAC_MESSAGE],
        mac=call[MAC],
        version=call[KEY_VERSION],
    )


def verified_mac(_: ApiCall, request: VerifyMac, outcome: object) -> VerifiedMac:
    """Return whether the MAC is the message's."""
    return VerifiedMac(
        valid=outcome is not ErrorKind.VERIFICATION_FAILED,
        key_version=request.version,
        algorithm=request.algorithm,
    )


DEFAULT = Algorithm.HMAC_SHA_256

OPERATIONS = (
    KeyOperation(
        "POST",
        "/mac/compute",
        Operation.COMPUTE_MAC,
        compute_mac,
        computed_mac,
        DEFAULT,
        name="compute_mac",
        fields=(MAC_MESSAGE, ACTIVE_KEY_VERSION),
        example=ComputedMac(mac=shortened(MAC), key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/mac/verify",
        Operation.VERIFY_MAC,
        verify_mac,
        verified_mac,
        DEFAULT,
        outcomes=frozenset({ErrorKind.VERIFICATION_FAILED}),
        name="verify_mac",
        fields=(MAC_MESSAGE, MAC, KEY_VERSION),
        example=VerifiedMac(valid=True, key_version=1, algorithm=DEFAULT),
    ),
)

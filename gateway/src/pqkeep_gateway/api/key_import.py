"""/api/v1/kms/keys/import-key and /kms/keys/import: import of existing private keys."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from msgspec import Meta, structs

from pqkeep_gateway.api.key_fields import KeyResponse
from pqkeep_gateway.api.key_operation import (
    KeyAccess,
    KeyCall,
    KeyOperation,
    endpoint,
    warned,
)
from pqkeep_gateway.api.keys import EXAMPLE, shown_key
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Warned
from pqkeep_gateway.http.field import base64_field, uuid_field
from pqkeep_gateway.http.text import Base64, Timestamp, base64, timestamp
from pqkeep_gateway.rehearsal import rehearse_absence
from pqkeep_gateway.tenancy.plans import Plans, bound
from pqkeep_protocol import messages
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.messages import GetActiveKey, GetImportKey, ImportPrivateKey

MAX_WRAPPED_PRIVATE_KEY = 12_288
"""Bytes: seed, expanded and public key of ML-DSA-87 have 7,700."""
_ID = "7b0f3c52-52a5-4d0e-9a43-7f4d0c8f8a11"


class ImportKey(KeyResponse, frozen=True, kw_only=True):
    """A public key for wrapping one private key."""

    import_key_id: str
    public_key: Annotated[Base64, Meta(description="ML-KEM-1024, 1,568 bytes.")]
    suite: Annotated[
        Literal["ML-KEM-1024, HKDF-SHA-384, AES-256-GCM"],
        Meta(description="The HPKE suite (RFC 9180), in base mode, without associated data."),
    ]
    info: Annotated[Base64, Meta(description="The info of HPKE.")]
    algorithm: Algorithm
    expires_at: Timestamp


_IMPORT_KEY_ID = uuid_field(
    "import_key_id",
    "The import key that wraps the private key.",
    _ID,
    not_found="no such import key",
)
_WRAPPED_PRIVATE_KEY = base64_field(
    "wrapped_private_key",
    "The private key as PKCS#8 with its seed, wrapped: the encapsulated key and the"
    f" ciphertext of HPKE, at most {MAX_WRAPPED_PRIVATE_KEY:,} bytes. For a legacy key: PKCS#8 of"
    " RSA to decrypt; only the SubjectPublicKeyInfo to verify.",
    "Fyf0eJ8oWZ0OQK3MwPQBXGpZ8YwWxqUJ",
    at_most=MAX_WRAPPED_PRIVATE_KEY,
)


def endpoints(access: KeyAccess, plans: Plans) -> tuple[Endpoint, ...]:
    """Return the endpoints for importing keys."""

    async def import_private_key(call: KeyCall) -> KeyResponse | Warned:
        """Import an existing private key as the active key. There must be no active key.

        The key is marked as imported for ever. The import key is used up even if the private key is
        refused. To decrypt data of an old key, import the key and rotate it. A legacy key (RSA,
        ECDSA) only reads: re-encrypt moves its ciphertexts, and verify checks its signatures.
        """
        quota = bound(plans[call.principal.entitlements.effective_tier].pqc_keys)
        active = GetActiveKey(tenant=call.tenant, algorithm=call.algorithm)
        await rehearse_absence(
            lambda: call.execute(active), ErrorKind.KEY_NOT_FOUND, ErrorKind.KEY_EXISTS
        )
        imported = await call.execute(
            ImportPrivateKey(
                tenant=call.tenant,
                algorithm=call.algorithm,
                import_key_id=call[_IMPORT_KEY_ID],
                wrapped_private_key=call[_WRAPPED_PRIVATE_KEY],
                quota=quota,
                idempotency=call.idempotency,
            )
        )
        return warned(shown_key(imported.key), imported)

    rows = (
        KeyOperation(
            "GET",
            "/kms/keys/import-key",
            Operation.GET_IMPORT_KEY,
            get_import_key,
            import_key,
            name="get_import_key",
            fields=(),
            example=ImportKey(
                import_key_id=_ID,
                public_key=base64(b"\x1d\xa2\x7f" * 8),
                suite="ML-KEM-1024, HKDF-SHA-384, AES-256-GCM",
                info=base64(f"pqkeep/v1/import-key\n{_ID}\nKyber768\ndefault\n".encode()),
                algorithm=Algorithm.ML_KEM_768,
                expires_at=timestamp(datetime(2026, 1, 31, 12, 10, tzinfo=UTC)),
            ),
        ),
        KeyOperation(
            "POST",
            "/kms/keys/import",
            Operation.IMPORT_KEY,
            handler=import_private_key,
            status=201,
            idempotent=True,
            needs_step_up=True,
            name="import_key",
            fields=(_IMPORT_KEY_ID, _WRAPPED_PRIVATE_KEY),
            example=structs.replace(EXAMPLE, imported=True),
        ),
    )
    return tuple(endpoint(row, access) for row in rows)


def get_import_key(call: KeyCall) -> GetImportKey:
    """Create a public key to wrap one private key with.

    It allows one import of this algorithm to this keyring. It expires after ten minutes, or when
    the key service restarts.
    """
    return GetImportKey(tenant=call.tenant, algorithm=call.algorithm)


def import_key(_: ApiCall, request: GetImportKey, result: messages.ImportKey) -> ImportKey:
    """Return the public key."""
    return ImportKey(
        import_key_id=str(result.id),
        public_key=base64(result.public_key),
        suite="ML-KEM-1024, HKDF-SHA-384, AES-256-GCM",
        info=base64(result.info),
        algorithm=request.algorithm,
        expires_at=timestamp(datetime.now(UTC) + timedelta(seconds=result.seconds)),
    )

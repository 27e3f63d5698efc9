"""The Python client's call for each operation of the API.

The gateway does not import the client. A test checks that each call exists, accepts these arguments
and works.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One method of the client, and the use of its result in an example."""

    method: str
    """Its name after ``client.``"""
    statement: str
    """Python lines, with ``{}`` for the call."""
    positional: tuple[str, ...] = ()
    """The fields that are positional arguments, in order."""
    keywords: Mapping[str, str] = field(default_factory=dict)
    """Argument names by field."""
    constants: tuple[str, ...] = ()
    """Positional arguments that the API does not have."""


def _same(*names: str) -> dict[str, str]:
    """Return arguments with the same names as their fields."""
    return {name: name for name in names}


def _shown(name: str) -> str:
    """Return lines that assign a result to a name and print it."""
    return f"{name} = {{}}\nprint({name})"


_KEY = _same("algorithm", "key_version")
_VERSION = _same("key_version")
_BOUND_KEY = _KEY | _same("associated_data")
_WRAP = ClientCall("kem.wrap", _shown("wrapped"), ("symmetric_key",), _BOUND_KEY)
_UNWRAP = ClientCall("kem.unwrap", "symmetric_key = {}", ("wrapped_key",), _BOUND_KEY)
_TENANT = ("tenant_id",)
_NAME = ("name",)
_SETTINGS = _same(
    "description",
    "labels",
    "purposes",
    "rotation_days",
    "archive_after_days",
    "minimum_decryption_version",
    "minimum_encryption_version",
    "deletion_allowed",
    "retired_public_keys_allowed",
)
_LIMITS = _same("name", "expires_at", "allowed_addresses", "allow_absent_keyrings")

CALLS: Mapping[str, ClientCall] = {
    "encrypt": ClientCall(
        "kem.encrypt",
        _shown("encrypted"),
        ("plaintext",),
        _BOUND_KEY | _same("mode", "salt", "context"),
    ),
    "decrypt": ClientCall(
        "kem.decrypt", "plaintext = {}", ("ciphertext",), _BOUND_KEY | _same("context")
    ),
    "encapsulate": ClientCall("kem.encapsulate", _shown("encapsulated"), (), _KEY),
    "decapsulate": ClientCall("kem.decapsulate", "shared_secret = {}", ("kem_ciphertext",), _KEY),
    "wrap": _WRAP,
    "wrap_by_short_path": _WRAP,
    "unwrap": _UNWRAP,
    "unwrap_by_short_path": _UNWRAP,
    "re_encrypt": ClientCall(
        "kem.re_encrypt",
        _shown("re_encrypted"),
        ("ciphertext",),
        _BOUND_KEY | _same("envelope", "wrapped_key", "context", "campaign"),
    ),
    "generate_data_key": ClientCall(
        "kem.data_key",
        _shown("data_key"),
        (),
        _BOUND_KEY | _same("size", "plaintext", "format", "context"),
    ),
    "compute_mac": ClientCall("macs.compute", _shown("computed"), ("message",), _KEY),
    "verify_mac": ClientCall("macs.verify", _shown("is_valid"), ("message", "mac"), _KEY),
    "hash": ClientCall("tools.hash", _shown("digest"), ("data",), _same("hash_algorithm")),
    "generate_random": ClientCall("tools.random", _shown("random"), (), _same("size")),
    "sign": ClientCall(
        "signatures.sign",
        _shown("signed"),
        ("message",),
        _KEY | _same("context"),
    ),
    "verify": ClientCall(
        "signatures.verify",
        _shown("is_valid"),
        ("message", "signature"),
        _KEY | _same("context", "public_key"),
    ),
    "sign_hash": ClientCall(
        "signatures.sign_hash",
        _shown("signed"),
        ("hash",),
        _KEY | _same("hash_algorithm"),
    ),
    "verify_hash": ClientCall(
        "signatures.verify_hash",
        _shown("is_valid"),
        ("hash", "signature"),
        _KEY | _same("hash_algorithm", "public_key"),
    ),
    "sign_mu": ClientCall("signatures.sign_mu", _shown("signed"), ("mu",), _KEY),
    "verify_mu": ClientCall(
        "signatures.verify_mu", _shown("is_valid"), ("mu", "signature"), _KEY | _same("public_key")
    ),
    "list_keys": ClientCall(
        "keys.list",
        "for key in {}:\n    print(key.algorithm, key.key_version, key.status)",
        (),
        _same("algorithm", "status", "keyring", "all_keyrings", "scheduled"),
    ),
    "generate_key": ClientCall("keys.generate", _shown("key"), ("algorithm",)),
    "rotate_key": ClientCall(
        "keys.rotate",
        _shown("rotated"),
        ("algorithm",),
    ),
    "retire_key": ClientCall("keys.retire", _shown("key"), ("algorithm",), _VERSION),
    "disable_key": ClientCall("keys.disable", _shown("key"), ("algorithm",), _VERSION),
    "enable_key": ClientCall("keys.enable", _shown("key"), ("algorithm",), _VERSION),
    "cancel_archive": ClientCall("keys.cancel_archive", _shown("key"), ("algorithm",), _VERSION),
    "get_active_key": ClientCall("keys.active", _shown("key"), ("algorithm",)),
    "get_key": ClientCall("keys.get", _shown("key"), ("algorithm",), _VERSION),
    "get_key_usage": ClientCall("keys.usage", _shown("usage"), ("algorithm",), _VERSION),
    "get_import_key": ClientCall("keys.get_import_key", _shown("import_key"), ("algorithm",)),
    "get_public_key": ClientCall(
        "keys.public_key",
        "key = {}\nprint(key.public_key)",
        ("algorithm",),
        _VERSION | _same("format"),
    ),
    "list_jwks": ClientCall("keys.jwks", "for key in {}:\n    print(key)"),
    "sign_jws": ClientCall(
        "signatures.sign_jws",
        "signed = {}\nprint(signed.jws)",
        ("payload",),
        _KEY | _same("detached"),
    ),
    "list_key_usage": ClientCall(
        "keys.list_usage", "for usage in {}:\n    print(usage)", (), _same("algorithm")
    ),
    "create_keyring": ClientCall(
        "keyrings.create",
        _shown("keyring"),
        _NAME,
        _SETTINGS | _same("first_version", "derived", "transit_type"),
    ),
    "list_keyrings": ClientCall(
        "keyrings.list",
        "for keyring in {}:\n    print(keyring.name)",
        (),
        _same("prefix", "label", "deleted"),
    ),
    "get_keyring": ClientCall("keyrings.get", _shown("keyring"), _NAME),
    "update_keyring": ClientCall(
        "keyrings.update", _shown("keyring"), _NAME, _SETTINGS | _same("label_changes")
    ),
    "delete_keyring": ClientCall("keyrings.delete", _shown("keyring"), _NAME, _same("delay_days")),
    "restore_keyring": ClientCall("keyrings.restore", _shown("keyring"), _NAME),
    "list_campaigns": ClientCall(
        "campaigns.list", "for campaign in {}:\n    print(campaign.name, campaign.state)"
    ),
    "list_notices": ClientCall("notices.list", "for notice in {}:\n    print(notice.text)"),
    "list_webhooks": ClientCall(
        "webhooks.list", "for webhook in {}:\n    print(webhook.name, webhook.state)"
    ),
    "test_webhook": ClientCall("webhooks.test", _shown("sent"), ("webhook",)),
    "list_webhook_deliveries": ClientCall(
        "webhooks.deliveries",
        "for delivery in {}:\n    print(delivery.type, delivery.state, delivery.status)",
        ("webhook",),
        {"limit": "page_size"},
    ),
    "resend_webhook_delivery": ClientCall(
        "webhooks.resend", _shown("sent"), ("webhook", "delivery")
    ),
    "list_workloads": ClientCall(
        "workloads.roles", "for role in {}:\n    print(role.name, role.valid_keys)", _TENANT
    ),
    "create_tenant": ClientCall("tenants.create", _shown("tenant"), ("name",), _same("plan")),
    "get_usage": ClientCall("usage.get", _shown("usage"), (), _same("period", "tenant_id")),
    "list_tenants": ClientCall(
        "tenants.list",
        "for tenant in {}:\n    print(tenant.id, tenant.name)",
        (),
        _same("name", "status"),
    ),
    "get_tenant": ClientCall("tenants.get", _shown("tenant"), _TENANT),
    "change_tenant": ClientCall(
        "tenants.update",
        _shown("tenant"),
        _TENANT,
        _same("plan", "tier", "subscription", "status", "requests_per_minute"),
    ),
    "delete_tenant": ClientCall("tenants.delete", _shown("tenant"), _TENANT, _same("days")),
    "cancel_tenant_deletion": ClientCall("tenants.cancel_deletion", _shown("tenant"), _TENANT),
    "create_api_key": ClientCall(
        "api_keys.create", "made = {}\nprint(made.api_key)", _TENANT, _LIMITS
    ),
    "get_own_api_key": ClientCall(
        "api_keys.own", "own = {}\nprint(own.tenant_id, own.version, own.scopes)"
    ),
    "list_api_keys": ClientCall(
        "api_keys.list",
        "for key in {}:\n    print(key.version, key.key_last4)",
        _TENANT,
        _same("details"),
    ),
    "rotate_api_key": ClientCall(
        "api_keys.rotate", "rotated = {}\nprint(rotated.new_key.api_key)", _TENANT, _LIMITS
    ),
    "revoke_api_key": ClientCall("api_keys.revoke", _shown("revoked"), _TENANT, _same("version")),
    "list_audit_records": ClientCall(
        "audit.records",
        "for record in {}:\n    print(record.recorded_at, record.operation, record.outcome)",
        (),
        _same(
            "after",
            "before",
            "order",
            "operation",
            "keyring",
            "algorithm",
            "key_version",
            "outcome",
            "principal",
            "source_address",
            "request_id",
            "tenant",
            "page_views",
        )
        | {"from": "since", "to": "until", "limit": "page_size"},
    ),
    "count_audit_records": ClientCall(
        "audit.counts",
        "counts = {}\nfor row in counts.counts:\n    print(row.value, row.count)",
        (),
        _same(
            "by",
            "before",
            "operation",
            "keyring",
            "algorithm",
            "key_version",
            "outcome",
            "principal",
            "source_address",
            "request_id",
            "tenant",
            "page_views",
            "limit",
        )
        | {"from": "since", "to": "until"},
    ),
    "prove_audit_record": ClientCall("audit.proof", _shown("proof"), ("id",)),
    "list_audit_checkpoints": ClientCall(
        "audit.checkpoints",
        "for checkpoint in {}:\n    print(checkpoint)",
        (),
        _same("after", "algorithm", "limit"),
    ),
    "sign_audit_checkpoint": ClientCall(
        "audit.sign_checkpoint", _shown("checkpoint"), (), _same("algorithm")
    ),
    "prove_audit_consistency": ClientCall(
        "audit.consistency", _shown("proof"), (), _same("first", "second")
    ),
    "get_audit_note": ClientCall("audit.note", "print({})"),
    "get_audit_tlog_proof": ClientCall("audit.tlog_proof", "print({})", ("id",)),
    "list_audit_witnesses": ClientCall("audit.witnesses", "for witness in {}:\n    print(witness)"),
    "list_audit_keys": ClientCall("audit.keys", "for key in {}.keys:\n    print(key)"),
    "export_audit_log": ClientCall("audit.export", _shown("records"), constants=("export.jsonl",)),
    "check_health": ClientCall("status.health", "print({})"),
}
"""By operation. The client has no call for other operations."""

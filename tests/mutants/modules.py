"""The mutated modules, each with its tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Module:
    """The paths of a module and its tests, from the root of the tree."""

    path: str
    tests: tuple[str, ...]


_KEY_SERVICE = "keyservice/src/pqkeep_keyservice"
_GATEWAY = "gateway/src/pqkeep_gateway"
_POLICY_TESTS = ("gateway/tests/test_policy_table.py",)
_SCOPE_TESTS = ("gateway/tests/test_scopes.py", "tests/docs/test_documented_access.py")

MODULES: Mapping[str, Module] = {
    "key_versions": Module(
        f"{_KEY_SERVICE}/keys/key_versions.py",
        ("keyservice/tests/test_key_versions.py", "keyservice/tests/test_golden_formats.py"),
    ),
    "sealing": Module(
        f"{_KEY_SERVICE}/keys/sealing.py",
        (
            "keyservice/tests/test_golden_formats.py",
            "tests/backup/test_backup_format.py",
            "keyservice/tests/test_sealing.py",
        ),
    ),
    "dem": Module(
        f"{_KEY_SERVICE}/crypto/dem.py",
        ("keyservice/tests/test_dem.py", "keyservice/tests/test_golden_formats.py"),
    ),
    "symmetric": Module(
        f"{_KEY_SERVICE}/crypto/symmetric.py",
        ("keyservice/tests/test_symmetric_keys.py", "keyservice/tests/test_golden_formats.py"),
    ),
    "legacy": Module(
        f"{_KEY_SERVICE}/crypto/legacy.py",
        ("keyservice/tests/test_legacy_keys.py", "keyservice/tests/test_legacy_vectors.py"),
    ),
    "merkle": Module(f"{_KEY_SERVICE}/ledger/merkle.py", ("keyservice/tests/test_merkle.py",)),
    "policy": Module(f"{_GATEWAY}/access/policy.py", _POLICY_TESTS),
    "cedar": Module(f"{_GATEWAY}/tenancy/cedar.py", _POLICY_TESTS),
    "rate_limit": Module(
        f"{_GATEWAY}/access/rate_limit.py", ("gateway/tests/test_rate_limiter.py",)
    ),
    "callers": Module(
        f"{_GATEWAY}/access/callers.py",
        ("gateway/tests/test_access_table.py", "tests/docs/test_documented_access.py"),
    ),
    "scopes": Module(f"{_GATEWAY}/access/scopes.py", _SCOPE_TESTS),
    "api_key_limits": Module(f"{_GATEWAY}/access/api_key_limits.py", _SCOPE_TESTS),
    "networks": Module(
        f"{_GATEWAY}/access/networks.py",
        (*_SCOPE_TESTS, "gateway/tests/test_trusted_proxies.py"),
    ),
    "step_up": Module(
        f"{_GATEWAY}/people/step_up.py",
        (
            "gateway/tests/test_step_up.py",
            "gateway/tests/test_attempt_limits.py",
            "gateway/tests/test_single_sign_on.py",
        ),
    ),
}
"""By the name for ``--module``."""

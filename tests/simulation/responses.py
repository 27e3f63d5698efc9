"""The permitted responses: each has one record, and matches the key's state at its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.simulation.history import FindingError, History, KeyName, Versions

from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.messages import Decrypted

UNKNOWN = frozenset({ErrorKind.UNAVAILABLE, ErrorKind.DEADLINE_EXCEEDED, ErrorKind.OVERLOADED})
"""Errors with an unknown outcome: there may be a record or not."""
NEVER = frozenset(
    {
        ErrorKind.INTERNAL,
        ErrorKind.BAD_RESPONSE,
        ErrorKind.UNSUPPORTED,
        ErrorKind.TOO_LARGE,
        ErrorKind.DECRYPTION_FAILED,
        ErrorKind.VERIFICATION_FAILED,
        ErrorKind.ALGORITHM_MISMATCH,
        ErrorKind.IDEMPOTENCY_KEY_REUSED,
    }
)
"""Errors that no request here deserves."""


def is_unknown(response: object) -> bool:
    """Return True if a response leaves the outcome open."""
    return isinstance(response, ErrorKind) and response in UNKNOWN


def is_temporary(response: object) -> bool:
    """Return True if a repetition may get another response."""
    return is_unknown(response) or response is ErrorKind.TENANT_MOVED


def is_active(versions: Versions, version: int | None) -> bool:
    """Return True if a version is active. With None: if no version is active."""
    active = len(versions) if versions and versions[-1].status == "active" else None
    return active == version


def is_readable(versions: Versions, version: int | None) -> bool:
    """Return True if a version decrypts and verifies."""
    return version is not None and version <= len(versions) and versions[version - 1].is_readable


def has_current(versions: Versions) -> bool:
    """Return True if a version is active, or would be if enabled."""
    return bool(versions) and versions[-1].lasting == "active"


def _is_archived(versions: Versions, version: int) -> bool:
    return version <= len(versions) and versions[version - 1].status == "archived"


def _is_not_retired(versions: Versions, version: int) -> bool:
    return version <= len(versions) and versions[version - 1].lasting != "retired"


def _is_missing(versions: Versions, version: int) -> bool:
    return version > len(versions)


def require_plaintext(plaintext: bytes, response: object) -> None:
    """Check a decrypted plaintext, if there is one. Raises FindingError."""
    if isinstance(response, Decrypted) and response.plaintext != plaintext:
        raise FindingError("plaintexts", "a ciphertext decrypts to something else")


Allowed = Callable[[Versions, Any], bool]
"""Return True if an outcome fits a key. The second argument is the requested or used version."""

_WRITES: Mapping[str, Allowed] = {
    "success": is_active,
    "key-not-found": lambda versions, _: is_active(versions, None),
}
_READS: Mapping[str, Allowed] = {
    "success": is_readable,
    "key-not-found": lambda versions, version: not is_readable(versions, version),
}
_CHANGES: Mapping[str, Allowed] = {
    "success": lambda *_: True,  # which the log's own order shows; see history.py
    "key-status": _is_archived,
    "key-not-found": _is_missing,
}
_ENDS: Mapping[str, Allowed] = {**_CHANGES, "key-status": _is_not_retired}
ALLOWED: Mapping[str, Mapping[str, Allowed]] = {
    **dict.fromkeys(("encrypt", "sign", "get-active-key"), _WRITES),
    **dict.fromkeys(("decrypt", "verify"), _READS),
    **dict.fromkeys(("retire-key", "disable-key", "enable-key", "cancel-archive"), _CHANGES),
    **dict.fromkeys(("schedule-archive", "archive-key"), _ENDS),
    "re-encrypt": {
        "success": is_readable,
        "key-not-found": lambda versions, version: not is_readable(versions, version),
        "target-not-found": lambda *_: True,
    },
    "generate-key": {
        "success": lambda *_: True,
        "key-exists": lambda versions, _: has_current(versions),
    },
    "rotate-key": {
        "success": lambda *_: True,
        "key-not-found": lambda versions, _: not has_current(versions),
    },
    "list-keys": {"success": lambda *_: True},
    "update-keyring": {"success": lambda *_: True},
}


def check(
    history: History,
    request_id: str,
    expected: Iterable[tuple[str, KeyName, int | None, str]],
    known_before: int,
) -> None:
    """Check a response. Raises FindingError.

    It has the request's operation, key, version and outcome. The response must reflect all commits
    that were known before the request.
    """
    expected = list(expected)
    places = history.by_request.get(request_id, [])
    if len(places) != len(expected):
        raise FindingError(
            "one record", f"{request_id} is answered {expected}, and has {len(places)} records"
        )
    if places and places != list(range(places[0], places[0] + len(places))):
        raise FindingError("one record", f"the records of {request_id} are at {places}")
    for place, (operation, name, version, outcome) in zip(places, expected, strict=True):
        record = history.records[place]
        said = record.operation, record.outcome, record.tenant_id
        if said != (operation, outcome, name.tenant):
            raise FindingError("one record", f"{request_id}: {operation} {outcome} is {said}")
        if outcome == "success" and version not in (None, record.key_version):
            raise FindingError("one record", f"{request_id}: {version} is {record.key_version}")
        allowed = ALLOWED[operation].get(outcome)
        if allowed is None:
            raise FindingError("answers", f"{operation} is answered {outcome}")
        states = history.states_between(name, known_before, history.commit_of[place])
        if not any(allowed(versions, version) for versions in states):
            raise FindingError(
                "fresh", f"{request_id}: {operation} {version} of {name} is answered {outcome}"
            )

"""Audit events of refusals: the principal, the operation, the policy and the key."""

from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType

from pqkeep_gateway.access.principals import Principal
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import FieldError
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import INSTALLATION, MAX_KEY_VERSION, KeyringName
from pqkeep_protocol.messages import Attribution

UNREAD: Mapping[str, object] = MappingProxyType({})
"""The fields of a request that was refused before they were read."""


def is_refusal(error: ApiError) -> bool:
    """Return whether an error is a refusal (403, or by a policy) that is not recorded yet."""
    is_refused = error.code.status == HTTPStatus.FORBIDDEN or bool(error.policy)
    return is_refused and not error.is_recorded


def refusal_event(
    error: ApiError,
    endpoint: Endpoint,
    principal: Principal,
    values: Mapping[str, object],
    attribution: Attribution,
) -> Event:
    """Return the event that records a refusal."""
    return event(
        attribution.by(str(principal)),
        principal.tenant or INSTALLATION,
        endpoint.audit_operation,
        outcome=error.code.code,
        policy=error.policy,
        algorithm=error.algorithm,
        key_version=_key_version(endpoint, values) if error.keyring is None else None,
        keyring=error.keyring or _keyring(endpoint, values),
    )


def _key_version(endpoint: Endpoint, values: Mapping[str, object]) -> int | None:
    """Return a valid key version from a request; None without one."""
    named = values.get("key_version")
    if endpoint.key_version_of is not None:
        with suppress(FieldError):
            named = endpoint.key_version_of(values)
    return named if type(named) is int and 0 < named <= MAX_KEY_VERSION else None


def _keyring(endpoint: Endpoint, values: Mapping[str, object]) -> KeyringName | None:
    """Return the request's keyring; None if the fields were not read, or have none."""
    if endpoint.keyring_of is None or values is UNREAD:
        return None
    try:
        return endpoint.keyring_of(values)
    except FieldError:
        return None

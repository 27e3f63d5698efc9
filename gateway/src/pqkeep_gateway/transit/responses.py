"""The form of responses that clients of Vault expect."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec

from pqkeep_gateway.access.rate_limit import Usage
from pqkeep_gateway.http import responses
from pqkeep_gateway.http.endpoint import JSON, ApiCall, Document, Warned
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.responses import WholeResponse
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.rules import RuleNotice, urgency

_ENCODER = msgspec.json.Encoder()
DENIED = "permission denied"
_STATUS = {
    HTTPStatus.CONFLICT: HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST,
}
"""Statuses that Vault does not use, each with Vault's status in its place."""
MESSAGES: Mapping[ErrorKind, str] = {
    ErrorKind.DECRYPTION_FAILED: "cipher: message authentication failed",
    ErrorKind.ALGORITHM_MISMATCH: "cipher: message authentication failed",
    ErrorKind.DELETION_DENIED: (
        "deletion is not allowed for this key; set deletion_allowed in its config first"
    ),
    ErrorKind.KEYRING_DELETED: (
        "a deleted key has this name: restore it with soft-delete-restore, or use another "
        "name until"
        " its private keys are destroyed"
    ),
    ErrorKind.VERSION_BELOW_MINIMUM: (
        "ciphertext or signature version is disallowed by policy (too old)"
    ),
}
"""Vault's messages, by the key service's reason. Programs compare some of them."""


class TransitError(ApiError):
    """An error in the words of Vault: one message, or none."""

    def __init__(
        self, *messages: str, code: Code = Code.INVALID_001, is_recorded: bool = False
    ) -> None:
        """Take the messages of the response. Without a code its status is 400."""
        super().__init__(code, "; ".join(messages), is_recorded=is_recorded)
        self.messages: Sequence[str] = messages


def not_found(*messages: str) -> TransitError:
    """Return 404, because the key service recorded an unknown key, or the name is not a key's."""
    return TransitError(*messages, code=Code.NOT_FOUND_001, is_recorded=True)


def unsupported() -> TransitError:
    """Return 405."""
    return TransitError("unsupported operation", code=Code.METHOD_NOT_ALLOWED)


def success(
    call: ApiCall,
    data: Mapping[str, object] | None,
    *,
    auth: Mapping[str, object] | None = None,
    warnings: Sequence[str] | None = None,
    status: int = HTTPStatus.OK,
) -> Document:
    """Return a successful response with Vault's envelope."""
    return document(
        {
            "request_id": call.attribution.request_id,
            "lease_id": "",
            "renewable": False,
            "lease_duration": 0,
            "data": data,
            "wrap_info": None,
            "warnings": warnings,
            "auth": auth,
        },
        status,
    )


def noticed(
    call: ApiCall,
    data: Mapping[str, object],
    notices: Sequence[RuleNotice],
    *,
    status: int = HTTPStatus.OK,
) -> Document | Warned:
    """Return a successful response with a warning for each rule that ends the operation."""
    if not notices:
        return success(call, data, status=status)
    warnings = list(dict.fromkeys(map(_warning, notices)))
    response = success(call, data, warnings=warnings, status=status)
    return Warned(response, min(notices, key=urgency))


def _warning(notice: RuleNotice) -> str:
    instead = "" if notice.successor is None else f"; use a key of {notice.successor}"
    if notice.sunset is None:
        return f"the rule {notice.rule} ends this algorithm{instead}"
    at = f"{notice.sunset:%Y-%m-%dT%H:%M:%SZ}"
    return f"the rule {notice.rule} denies this from {at} on{instead}"


def document(body: Mapping[str, object], status: int = HTTPStatus.OK) -> Document:
    """Return a response without the envelope."""
    return Document(JSON, _ENCODER.encode(body), status)


def no_content() -> Document:
    """Return the response of a request that has nothing to tell."""
    return Document(JSON, b"", HTTPStatus.NO_CONTENT)


def error_response(error: ApiError, request_id: str, usage: Usage | None = None) -> WholeResponse:
    """Return the response for an error: a list of messages."""
    status, messages = error.code.status, [error.message]
    if isinstance(error, TransitError):
        messages = list(error.messages)
    elif status == HTTPStatus.UNAUTHORIZED:
        status, messages = HTTPStatus.FORBIDDEN, [DENIED]
    elif error.kind is not None and error.kind in MESSAGES:
        status, messages = HTTPStatus.BAD_REQUEST, [MESSAGES[error.kind]]
    elif error.kind is ErrorKind.KEYRING_NOT_FOUND:
        messages = []
    shown = ApiError(
        Code.FORBIDDEN_001 if status == HTTPStatus.FORBIDDEN else error.code,
        "",
        headers=error.headers,
    )
    response = responses.error_response(shown, request_id, usage)
    body = _ENCODER.encode({"errors": messages})
    return response._replace(status=_STATUS.get(HTTPStatus(status), status), body=body)

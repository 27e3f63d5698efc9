"""One request to the service, one answer: its data, or an exception.

httpx2's exceptions hold the request, and with it the API key and the plaintext; a JSON decoder's
hold the answer. So ours are raised after theirs are gone, not while they are handled.
"""

from collections.abc import Mapping
from typing import Any

import httpx2

from pqkeep._data import Data
from pqkeep.errors import BY_STATUS, InternalError, PqkeepError, ServiceUnavailableError

API = "/api/v1"
_MAX_DIGITS = 9


class Transport:
    """A pool of connections to one service, with one API key."""

    def __init__(self, base_url: str, api_key: str, timeout: float) -> None:
        """Connect to nothing yet. Raises ValueError."""
        if not _is_address(base_url):
            raise ValueError("the base URL must be https:// or http:// and a host")
        if not (api_key.isascii() and api_key.isprintable()) or " " in api_key or not api_key:
            raise ValueError("the API key must be printable ASCII without spaces")
        self._http = httpx2.Client(
            base_url=base_url.rstrip("/") + API, headers={"X-API-Key": api_key}, timeout=timeout
        )

    def get(self, path: str, query: Mapping[str, str | None] | None = None) -> Data:
        """Send a query; None leaves a field out. Raises PqkeepError."""
        return self._exchange(self._http.build_request("GET", path, params=_given(query or {})))

    def post(self, path: str, body: Mapping[str, str | int | None]) -> Data:
        """Send a JSON object; None leaves a field out. Raises PqkeepError."""
        return self._exchange(self._http.build_request("POST", path, json=_given(body)))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"<Transport to {self._http.base_url.netloc.decode()}>"

    def _exchange(self, request: httpx2.Request) -> Data:
        try:
            return _read(self._http.send(request))
        except httpx2.DecodingError:
            failure: PqkeepError = InternalError("the answer's encoding is broken")
        except httpx2.TimeoutException:
            failure = ServiceUnavailableError("the service did not answer in time")
        except httpx2.RequestError as error:
            failure = ServiceUnavailableError(f"the service cannot be reached: {error}")
        raise failure


def _is_address(url: str) -> bool:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return parsed.scheme in {"http", "https"} and bool(parsed.host)


def _read(response: httpx2.Response) -> Data:
    envelope = _json_object(response)
    request_id = _text(envelope, "request_id") or response.headers.get("X-Request-ID")
    if response.is_success:
        data = envelope.get("data")
        if isinstance(data, dict):
            return Data(data, request_id)
    else:
        error = envelope.get("error")
        if isinstance(error, dict) and (code := _text(error, "error_code")):
            raise BY_STATUS.get(response.status_code, PqkeepError)(
                _text(error, "message") or "the service gave no reason",
                error_code=code,
                field=_text(error, "field"),
                status=response.status_code,
                request_id=request_id,
                retry_after=_seconds(response.headers.get("Retry-After", "")),
            )
    raise InternalError(
        "the answer is not one of pqkeep's", status=response.status_code, request_id=request_id
    )


def _json_object(response: httpx2.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None


def _seconds(header: str) -> int | None:
    usable = header.isascii() and header.isdigit() and len(header) <= _MAX_DIGITS
    return int(header) if usable else None


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}

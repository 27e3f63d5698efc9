"""Reads what a Transit secrets engine of Vault or OpenBao has encrypted, to move it to pqkeep.

No error quotes a response: a response can hold plaintexts, and a server can echo the token.
"""

import binascii
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import SystemRandom
from types import TracebackType
from typing import Self, cast
from urllib.parse import quote

import httpx2

from pqkeep._data import json_object, strict_json
from pqkeep._settings import Settings, address
from pqkeep._transport import end_at, timed_client
from pqkeep.errors import ConfigurationError, PqkeepError
from pqkeep.private_files import read_api_key

MAX_RESPONSE = 16 * 1024 * 1024
"""The most bytes of a response."""
TIMEOUT = 30.0
"""The most seconds of one attempt, with all its bytes."""
RETRIES = 5
FIRST_PAUSE = 0.2
"""Seconds. Each pause is twice the one before."""
_RANDOM = SystemRandom()
_TEMPORARY = frozenset({429, 500, 502, 503, 504})
_BAD_REQUEST, _FORBIDDEN, _NOT_FOUND = 400, 403, 404
_REDIRECTS = range(300, 400)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}){0,7}")
_HEADER = re.compile(r"[!-~]{1,512}")
_BY_NAME = ("VAULT_TOKEN", "BAO_TOKEN")

KNOWN_PROBLEMS = frozenset(
    {
        "cipher: message authentication failed",
        "ciphertext or signature version is disallowed by policy (too old)",
        "invalid ciphertext: could not decode base64",
        "invalid ciphertext: no prefix",
        "invalid ciphertext: version is too new",
        "invalid ciphertext: version number could not be decoded",
        "invalid ciphertext: wrong number of fields",
        "invalid ciphertext length",
        "missing ciphertext to decrypt",
    }
)
"""The sentences of Transit about one ciphertext. Only these are shown."""


class TransitSourceError(PqkeepError):
    """The old service cannot be used. ``next_step`` says what to do."""

    def __init__(self, message: str, next_step: str, *, is_temporary: bool = False) -> None:
        """Take both. Neither may quote a response."""
        super().__init__(message)
        self.next_step = next_step
        self.is_temporary = is_temporary


@dataclass(frozen=True, slots=True)
class TransitKey:
    """A key of the old service."""

    type: str
    latest_version: int
    is_derived: bool
    is_convergent: bool


@dataclass(frozen=True, slots=True)
class OldCiphertext:
    """A ciphertext of the old service, with the values that it needs to decrypt."""

    ciphertext: str
    context: bytes | None = None
    associated_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Undecrypted:
    """The old service did not decrypt a ciphertext."""

    problem: str


@dataclass(slots=True, repr=False)
class Plaintext:
    """A plaintext that is overwritten when it is no longer needed."""

    value: bytearray = field(default_factory=bytearray)

    def wipe(self) -> None:
        """Overwrite it."""
        _wipe(self.value)


def read_token(file: Path | None, environment: Mapping[str, str]) -> str:
    """Return the token in a private file, else in VAULT_TOKEN or BAO_TOKEN, else in ~/.vault-token.

    Raises ConfigurationError, and OSError for the named file.
    """
    if file is not None:
        return _token_in(file)
    for name in _BY_NAME:
        if token := environment.get(name, "").strip():
            return _checked(token, name)
    with suppress(OSError, RuntimeError):
        return _token_in(Path("~/.vault-token").expanduser())
    raise ConfigurationError(
        "there is no token of the old service: name its file with --token-file, or set VAULT_TOKEN"
    )


def _token_in(file: Path) -> str:
    with suppress(UnicodeDecodeError):  # its message quotes the file
        return _checked(read_api_key(file), str(file))
    raise ConfigurationError(f"{file} is not the file of a token")


def _checked(token: str, source: str) -> str:
    if _HEADER.fullmatch(token):
        return token
    raise ConfigurationError(f"{source}: a token must be printable ASCII without spaces")


class TransitSource:
    """A connection to the old service, for one key."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        key: str,
        mount: str = "transit",
        namespace: str | None = None,
        ca_file: Path | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """Connect to nothing yet. ``timeout``: seconds of one attempt. Raises ConfigurationError."""
        settings = Settings(
            url=address(url, "the address of the old service"),
            api_key="",
            ca_file=None if ca_file is None else str(ca_file),
            compliance=None,
            timeout=timeout,
            retries=RETRIES,
            allow_plain_http=False,
        )
        if not _NAME.fullmatch(key):
            raise ConfigurationError("the old key's name must be letters, digits, _ . or -")
        if not _MOUNT.fullmatch(mount.strip("/")):
            raise ConfigurationError("the mount must be a path such as transit")
        if namespace is not None and not _HEADER.fullmatch(namespace):
            raise ConfigurationError("the namespace must be printable ASCII without spaces")
        headers = {"X-Vault-Token": token, "Accept-Encoding": "identity"}
        if namespace is not None:
            headers["X-Vault-Namespace"] = namespace
        self._key = key
        self._timeout = timeout
        self._mount = quote(mount.strip("/"))
        self._http = timed_client(settings, headers)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close the connections."""
        self._http.close()

    def read_key(self) -> TransitKey:
        """Return what the old service says about the key. Raises TransitSourceError."""
        status, body = self._ask("GET", f"keys/{self._key}", None)
        data = json_object(body.get("data"))
        if status == _NOT_FOUND:
            raise TransitSourceError(
                "the old service has no key of this name",
                "check --key, --mount and --namespace, and that --from has no /v1",
            )
        latest = None if data is None else data.get("latest_version")
        if data is None or type(latest) is not int or latest < 1:
            raise _strange()
        kind = data.get("type")
        return TransitKey(
            kind if isinstance(kind, str) else "",
            latest,
            data.get("derived") is True,
            data.get("convergent_encryption") is True,
        )

    def decrypt(self, items: Sequence[OldCiphertext]) -> list[Plaintext | Undecrypted]:
        """Decrypt some ciphertexts in one request. Raises TransitSourceError."""
        body: dict[str, object] = {
            "batch_input": [
                {"reference": str(place), **_sent(item)} for place, item in enumerate(items)
            ],
            "partial_failure_response_code": 200,
        }
        status, said = self._ask("POST", f"decrypt/{self._key}", body)
        data = json_object(said.get("data"))
        listed = None if data is None else data.get("batch_results")
        if not isinstance(listed, list):
            if status == _BAD_REQUEST:
                raise TransitSourceError(
                    "the old service refuses to decrypt with this key",
                    "check --key, and try one ciphertext with its own command",
                )
            raise _strange()
        results = cast("list[object]", listed)
        if len(results) != len(items):
            raise TransitSourceError(
                "the old service sent a wrong number of results",
                "check that --from is Vault or OpenBao",
            )
        return [_result(result, str(place)) for place, result in enumerate(results)]

    def _ask(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> tuple[int, dict[str, object]]:
        """Return status and JSON of a response. Temporary failures are tried again."""
        for pause in _pauses():
            try:
                return self._attempt(method, path, body)
            except TransitSourceError as error:
                if not error.is_temporary or pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError

    def _attempt(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> tuple[int, dict[str, object]]:
        ends = time.monotonic() + self._timeout
        end_at(ends)
        request = self._http.build_request(
            method,
            f"/v1/{self._mount}/{path}",
            json=body,
            timeout=httpx2.Timeout(self._timeout, connect=min(self._timeout, 5.0)),
        )
        received = bytearray()
        try:
            with closing(self._http.send(request, stream=True)) as response:
                _require_usable(response)
                for piece in response.iter_raw():
                    received += piece
                    if len(received) > MAX_RESPONSE:
                        raise _strange()
                    if time.monotonic() > ends:
                        raise _too_late()
                return response.status_code, _json(received)
        except httpx2.TimeoutException:
            failure = _too_late()
        except httpx2.HTTPError as error:
            failure = _unreachable(error)
        finally:
            _wipe(received)
        raise failure


def _pauses() -> Iterator[float | None]:
    """Yield the seconds after each attempt, and None after the last."""
    for attempt in range(RETRIES):
        yield FIRST_PAUSE * 2**attempt * _RANDOM.uniform(0.5, 1.0)
    yield None


def _require_usable(response: httpx2.Response) -> None:
    """Raise TransitSourceError for a response without a result."""
    status = response.status_code
    if status in _REDIRECTS:
        raise TransitSourceError(
            "the old service redirects to another address, and the token is not sent there",
            "name the address of the active node with --from",
        )
    if status == _FORBIDDEN:
        raise TransitSourceError(
            "the old service denies this to the token",
            "the token needs update on transit/decrypt/KEY, and read on transit/keys/KEY or the "
            "option --latest-version",
        )
    if status in _TEMPORARY:
        raise TransitSourceError(
            f"the old service is not available (HTTP {status})",
            "run the command again: it continues where it stopped",
            is_temporary=True,
        )
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise _strange()


def _json(received: bytearray) -> dict[str, object]:
    with suppress(ValueError):  # its message quotes the response
        value = json_object(strict_json(received))
        if value is not None:
            return value
    raise _strange()


def _sent(item: OldCiphertext) -> dict[str, str]:
    values = {"ciphertext": item.ciphertext}
    if item.context is not None:
        values["context"] = _base64(item.context)
    if item.associated_data is not None:
        values["associated_data"] = _base64(item.associated_data)
    return values


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _result(said: object, reference: str) -> Plaintext | Undecrypted:
    result = json_object(said)
    if result is None or result.get("reference") not in (None, "", reference):
        raise _strange()
    problem = result.get("error")
    if problem:
        known = problem if isinstance(problem, str) and problem in KNOWN_PROBLEMS else None
        return Undecrypted(known or "the old service does not decrypt it")
    text = result.get("plaintext")
    if not isinstance(text, str):
        return Undecrypted("the old service sent no plaintext")
    with suppress(ValueError):  # of text that is not ASCII or base64
        return Plaintext(bytearray(binascii.a2b_base64(text, strict_mode=True)))
    raise _strange()


def _wipe(data: bytearray) -> None:
    data[:] = bytes(len(data))


def _strange() -> TransitSourceError:
    return TransitSourceError(
        "the response is not one of Transit", "check that --from is Vault or OpenBao, and --mount"
    )


def _too_late() -> TransitSourceError:
    return TransitSourceError(
        "the old service did not respond in time",
        "run the command again: it continues where it stopped",
        is_temporary=True,
    )


def _unreachable(error: httpx2.HTTPError) -> TransitSourceError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TransitSourceError(
                "the certificate of the old service is not trusted: "
                f"{cause.verify_message or 'verification failed'}",
                "name the file of its authority with --ca-file",
            )
        cause = cause.__cause__ or cause.__context__
    return TransitSourceError(
        "the old service cannot be reached, or the connection broke",
        "check --from; then run the command again: it continues where it stopped",
        is_temporary=True,
    )

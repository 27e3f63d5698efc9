"""Encrypts the keys of a Kubernetes API server (KMS v2), without the transport.

A key id is ``keyring/algorithm/version``. It is bound into each ciphertext. No result is cached.
"""

import asyncio
import math
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from pqkeep.algorithms import PARAMETERS, Algorithm, canonical
from pqkeep.async_client import AsyncClient
from pqkeep.errors import (
    AuthenticationError,
    ComplianceError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    DecryptionError,
    InvalidRequestError,
    MalformedResponseError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
    RateLimitError,
    UnavailableError,
)

R = TypeVar("R")

ANNOTATION = "kem-ciphertext.pqkeep.internal"
"""The annotation with the KEM ciphertext. API servers demand a domain name."""
LARGEST = 1024
"""The most bytes that an API server takes as a ciphertext."""
_OF_KEM, _OF_XAES = 12 + 16, 24 + 16
"""Bytes of nonce and tag."""
_KEM_CIPHERTEXTS: Mapping[str, int] = {
    **{
        algorithm: PARAMETERS[algorithm].ciphertext or 0
        for algorithm in (Algorithm.X_WING, Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024)
    },
    Algorithm.XAES_256_GCM: 0,
}
"""The size of the KEM ciphertext, by algorithm."""
ALGORITHMS = tuple(_KEM_CIPHERTEXTS)
_KEY_ID = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})/([A-Za-z0-9-]{1,64})/([1-9][0-9]{0,9})")
_MAX_VERSION = 2**31 - 1
_IN_A_BATCH = 128
_AT_ONCE = 4
"""The most requests with batches at one time."""
_BETWEEN_REFUSALS = 1.0
"""The seconds between two refused API keys after which the file is read again."""
_PROBE = 32
"""Bytes, as many as an API server's key has."""


class Kind(Enum):
    """The kind of a refusal. The names are those of gRPC's status codes."""

    INVALID_ARGUMENT = auto()
    FAILED_PRECONDITION = auto()
    PERMISSION_DENIED = auto()
    UNAUTHENTICATED = auto()
    RESOURCE_EXHAUSTED = auto()
    UNAVAILABLE = auto()
    DEADLINE_EXCEEDED = auto()


class KmsError(Exception):
    """A refusal for the API server. Its text has no secret and no text of the service."""

    def __init__(self, kind: Kind, message: str) -> None:
        """Take the kind and the reason."""
        super().__init__(message)
        self.kind = kind


class Sealed(NamedTuple):
    """An encrypted key as the API server stores it."""

    key_id: str
    ciphertext: bytes
    annotations: Mapping[str, bytes]


class Health(NamedTuple):
    """``reason`` is ``ok``, or the reason why the plugin cannot work. Then there is no key id."""

    reason: str
    key_id: str


class _Key(NamedTuple):
    """A key version in the plugin's keyring."""

    keyring: str
    algorithm: str
    version: int

    @property
    def id(self) -> str:
        return f"{self.keyring}/{self.algorithm}/{self.version}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the client's methods, with the binding to the key id."""
        return {
            "keyring": self.keyring,
            "algorithm": self.algorithm,
            "key_version": self.version,
            "associated_data": f"pqkeep/kubernetes-kms/v2 {self.id}".encode(),
        }

    @property
    def added(self) -> int:
        """The bytes that encryption adds, without the KEM ciphertext."""
        return _OF_KEM if _KEM_CIPHERTEXTS[self.algorithm] else _OF_XAES


@dataclass(slots=True)
class _Decryptions:
    """Sends the decryptions that wait at the same time in few requests.

    An API server decrypts many keys at once when it starts.
    """

    send: Callable[[list[dict[str, Any]]], Awaitable[list[bytes | PqkeepError]]]
    waiting: list[tuple[dict[str, Any], asyncio.Future[bytes]]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def decrypt(self, item: dict[str, Any]) -> bytes:
        """Return a plaintext. Raises PqkeepError."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting.append((item, future))
        if len(self.tasks) < _AT_ONCE:
            task = asyncio.create_task(self._run())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return await future

    async def _run(self) -> None:
        while self.waiting:
            taken, self.waiting = self.waiting[:_IN_A_BATCH], self.waiting[_IN_A_BATCH:]
            batch = [(item, future) for item, future in taken if not future.done()]
            if not batch:
                continue
            results: list[bytes | PqkeepError]
            try:
                results = await self.send([item for item, _ in batch])
            except (InvalidRequestError, ComplianceError) as error:  # of one of them
                alone = len(batch) > 1
                results = [await self._alone(item) for item, _ in batch] if alone else [error]
            except PqkeepError as error:
                results = [error] * len(batch)
            except Exception:  # noqa: BLE001 - each caller gets an error, and its text may hold secrets
                results = [UnavailableError("the plugin failed")] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, PqkeepError):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    async def _alone(self, item: dict[str, Any]) -> bytes | PqkeepError:
        try:
            (result,) = await self.send([item])
        except PqkeepError as error:
            return error
        return result


class Kms:
    """Encrypts and decrypts with one keyring. Tasks of one event loop share it."""

    def __init__(
        self, connect: Callable[[], AsyncClient], *, keyring: str, algorithm: str, timeout: float
    ) -> None:
        """Take what makes a client, again after the API key was refused.

        ``algorithm`` encrypts. Every algorithm of the keyring decrypts. ``timeout`` is in seconds, for
        a whole operation. Raises ConfigurationError.
        """
        self._algorithm = canonical(algorithm)
        if self._algorithm not in _KEM_CIPHERTEXTS:
            raise ConfigurationError(f"the algorithm must be one of {', '.join(ALGORITHMS)}")
        if _KEY_ID.fullmatch(f"{keyring}/{self._algorithm}/1") is None:
            raise ConfigurationError("the keyring has no valid name")
        self._connect = connect
        self._keyring = keyring
        self._timeout = timeout
        self._client = connect()
        self._refused_at = -math.inf
        self._closing: set[asyncio.Task[None]] = set()
        self._decryptions = _Decryptions(self._decrypt_many)
        self._proven = ""
        """The key id with which encryption and decryption last worked."""

    async def status(self) -> Health:
        """Return the active key's id, if encryption and decryption work with it.

        A key is tried once, and again after a failure.
        """
        try:
            async with self._refusing():
                if not self._proven:
                    self._renew()
                key = await self._active()
                if key.id != self._proven:
                    await self._encrypt(key, os.urandom(_PROBE))
        except KmsError as error:
            return Health(str(error), "")
        return Health("ok", key.id)

    async def encrypt(self, plaintext: bytes) -> Sealed:
        """Encrypt an API server's key with the active version. Raises KmsError."""
        async with self._refusing():
            try:
                return await self._encrypt(await self._active(), plaintext)
            except NotFoundError:  # it was rotated meanwhile
                return await self._encrypt(await self._active(), plaintext)

    async def decrypt(self, sealed: Sealed) -> bytes:
        """Return the API server's key. Raises KmsError."""
        async with self._refusing(of_data=True):
            key = self._named(sealed.key_id)
            return await self._decrypt(key, _joined(key, sealed), len(sealed.ciphertext))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _encrypt(self, key: _Key, plaintext: bytes) -> Sealed:
        """Encrypt, and decrypt the result before it is trusted."""
        if not 0 < len(plaintext) <= LARGEST - key.added:
            raise KmsError(
                Kind.INVALID_ARGUMENT, f"the plaintext must have 1 to {LARGEST - key.added} bytes"
            )
        made = await self._ask(lambda client: client.kem.encrypt(plaintext, **key.arguments))
        size = _KEM_CIPHERTEXTS[key.algorithm]
        is_fitting = len(made.ciphertext) == size + len(plaintext) + key.added
        if not is_fitting or (made.algorithm, made.key_version) != (key.algorithm, key.version):
            raise MalformedResponseError("the ciphertext is not what was asked for")
        rest = made.ciphertext[size:]
        if await self._decrypt(key, made.ciphertext, len(rest)) != plaintext:
            raise MalformedResponseError("the ciphertext has another plaintext")
        self._proven = key.id
        return Sealed(key.id, rest, {ANNOTATION: made.ciphertext[:size]} if size else {})

    async def _decrypt(self, key: _Key, ciphertext: bytes, size: int) -> bytes:
        item = {"ciphertext": ciphertext, **key.arguments}
        plaintext = await self._decryptions.decrypt(item)
        if len(plaintext) != size - key.added:
            raise MalformedResponseError("the plaintext has another size")
        return plaintext

    async def _active(self) -> _Key:
        algorithm, keyring = self._algorithm, self._keyring
        active = await self._ask(lambda client: client.keys.active(algorithm, keyring=keyring))
        if active.algorithm != algorithm or not 0 < active.key_version <= _MAX_VERSION:
            raise MalformedResponseError("the key is not what was asked for")
        return _Key(keyring, algorithm, active.key_version)

    def _named(self, key_id: str) -> _Key:
        """Return the key of a key id. Raises KmsError for keys that this plugin does not use."""
        parts = _KEY_ID.fullmatch(key_id)
        if parts is None or parts[2] not in _KEM_CIPHERTEXTS or int(parts[3]) > _MAX_VERSION:
            raise KmsError(
                Kind.INVALID_ARGUMENT,
                "key_id does not name a key of pqkeep: use the plugin that encrypted the data",
            )
        if parts[1] != self._keyring:
            raise KmsError(
                Kind.INVALID_ARGUMENT,
                f"key_id names the keyring {parts[1]}, and this plugin uses {self._keyring}",
            )
        return _Key(parts[1], parts[2], int(parts[3]))

    async def _decrypt_many(self, items: list[dict[str, Any]]) -> list[bytes | PqkeepError]:
        async def decrypt(client: AsyncClient) -> list[bytes | PqkeepError]:
            return [result async for result in client.kem.decrypt_many(items)]

        return await self._ask(decrypt)

    async def _ask(self, call: Callable[[AsyncClient], Awaitable[R]]) -> R:
        """Return the result of a call. The API key's file is read again if its key is refused."""
        client = self._client
        try:
            return await call(client)
        except AuthenticationError:
            now = asyncio.get_running_loop().time()
            if self._client is client:  # no other call has read the file since
                if now < self._refused_at + _BETWEEN_REFUSALS:
                    raise
                self._refused_at = now
                self._renew()
        return await call(self._client)

    def _renew(self) -> None:
        """Replace the client by one with the present settings. Raises ConfigurationError."""
        client, self._client = self._client, self._connect()
        closing = asyncio.create_task(self._close_later(client))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_later(self, client: AsyncClient) -> None:
        try:
            await asyncio.sleep(self._timeout)  # its requests in progress end by then
        finally:
            await client.close()

    @asynccontextmanager
    async def _refusing(self, *, of_data: bool = False) -> AsyncGenerator[None]:
        """End the block in time, and raise its errors as KmsError.

        The next status tries the key again, unless the error is one ``of_data`` to decrypt.
        """
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except KmsError:
            raise
        except TimeoutError:
            failure: PqkeepError = DeadlineExceededError("")
        except PqkeepError as error:
            failure = error
        else:
            return
        if not (of_data and isinstance(failure, (InvalidRequestError, NotFoundError))):
            self._proven = ""
        raise self._refusal(failure)

    def _refusal(self, error: PqkeepError) -> KmsError:
        """Return the refusal for an error, without the service's own text."""
        known = next(_REFUSALS[kind] for kind in type(error).__mro__ if kind in _REFUSALS)
        reason = known.reason.format(keyring=self._keyring, algorithm=self._algorithm)
        if isinstance(error, (ConfigurationError, ComplianceError, ConnectionFailedError)):
            reason = f"{reason}: {_shown(error.message)}"  # the client's own text
        details = [
            value
            for value, pattern in ((error.error_code, _CODE), (error.request_id, _REQUEST_ID))
            if value is not None and pattern.fullmatch(value)
        ]
        return KmsError(known.kind, f"{reason} ({', '.join(details)})" if details else reason)


class _Refusal(NamedTuple):
    kind: Kind
    reason: str


_CODE = re.compile("ERR_[A-Z]{1,20}_[0-9]{3}")
_REQUEST_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REFUSALS: Mapping[type, _Refusal] = {
    AuthenticationError: _Refusal(
        Kind.UNAUTHENTICATED,
        "pqkeep does not accept the API key: put a valid one into the plugin's file",
    ),
    PermissionDeniedError: _Refusal(
        Kind.PERMISSION_DENIED,
        "pqkeep denies this with {algorithm} in the keyring {keyring}: check the API key's scopes, "
        "the keyring's purposes, the rules and the plan",
    ),
    NotFoundError: _Refusal(
        Kind.FAILED_PRECONDITION,
        "the keyring {keyring} does not have this key, or its status or the minimum versions do not "
        "allow it: check pqkeep keys list",
    ),
    DecryptionError: _Refusal(
        Kind.INVALID_ARGUMENT, "the ciphertext was changed, or belongs to another key"
    ),
    InvalidRequestError: _Refusal(
        Kind.INVALID_ARGUMENT, "pqkeep refuses the request: check the keyring's settings"
    ),
    RateLimitError: _Refusal(
        Kind.RESOURCE_EXHAUSTED, "the API key's rate limit is used up: raise it, or wait a minute"
    ),
    MalformedResponseError: _Refusal(
        Kind.UNAVAILABLE, "the response is not from pqkeep: check the address"
    ),
    DeadlineExceededError: _Refusal(Kind.DEADLINE_EXCEEDED, "pqkeep did not respond in time"),
    UnavailableError: _Refusal(Kind.UNAVAILABLE, "pqkeep is not available"),
    ConnectionFailedError: _Refusal(Kind.UNAVAILABLE, "pqkeep is not available"),
    PqkeepError: _Refusal(Kind.FAILED_PRECONDITION, "pqkeep cannot be used"),
}


def _joined(key: _Key, sealed: Sealed) -> bytes:
    """Return a ciphertext as pqkeep made it. Raises KmsError for wrong sizes and annotations."""
    size = _KEM_CIPHERTEXTS[key.algorithm]
    names = [ANNOTATION] if size else []
    if [*sealed.annotations] != names:
        wanted = f"only the annotation {ANNOTATION}" if size else "no annotations"
        raise KmsError(Kind.INVALID_ARGUMENT, f"a ciphertext of {key.algorithm} has {wanted}")
    kem_ciphertext = sealed.annotations.get(ANNOTATION, b"")
    if len(kem_ciphertext) != size or not key.added < len(sealed.ciphertext) <= LARGEST:
        raise KmsError(Kind.INVALID_ARGUMENT, f"the ciphertext's size is wrong for {key.algorithm}")
    return kem_ciphertext + sealed.ciphertext


def _shown(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:300])

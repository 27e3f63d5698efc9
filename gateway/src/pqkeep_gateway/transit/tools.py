"""transit/hash and transit/random."""

import base64
from typing import Any

from pqkeep_gateway.api.key_fields import MAX_MESSAGE
from pqkeep_gateway.api.keyless import HashedData, RandomData
from pqkeep_gateway.http.endpoint import ApiCall, Document
from pqkeep_gateway.http.field import Field
from pqkeep_gateway.transit.batches import Reader
from pqkeep_gateway.transit.fields import binary, integer, text
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import TransitError, success
from pqkeep_protocol.algorithms import MAX_RANDOM, HashFunction

_INPUT = binary("input", at_most=MAX_MESSAGE)
_ALGORITHM = text("algorithm")
_HASH_ALGORITHM = text("hash_algorithm")
"""In the path."""
_FORMAT = text("format")
_BYTES = integer("bytes")
_SOURCE = text("source")
"""Alone in the path, it can be the number of bytes."""

HASH: tuple[Field[Any], ...] = (_HASH_ALGORITHM, _INPUT, _ALGORITHM, _FORMAT)
RANDOM: tuple[Field[Any], ...] = (_BYTES, _SOURCE, _FORMAT)

_FUNCTIONS = {function.lower().replace("sha-", "sha2-"): function for function in HashFunction}
_SOURCES = ("platform", "seal", "all")
_DEFAULT_SIZE = 32
_NO_SEAL = "no seal/entropy augmentation available, using platform entropy source"


class TransitTools:
    """The handlers."""

    def __init__(self, operations: Operations) -> None:
        """Take the operations of the API."""
        self._operations = operations

    async def hash(self, call: ApiCall) -> Document:
        """Hash an input with SHA-2 or SHA-3."""
        name = call[_HASH_ALGORITHM] or call[_ALGORITHM] or "sha2-256"
        function = _FUNCTIONS.get(name)
        if function is None:
            raise TransitError(f"unsupported algorithm; the names are: {', '.join(_FUNCTIONS)}")
        form = _form(call, "hex")
        data = Reader(call.values).binary(_INPUT, "unable to decode input as base64: ")
        if data is None:
            raise TransitError("input missing")
        fields = {"data": data, "hash_algorithm": function.value}
        done: HashedData = await self._operations.run("hash", call, fields)
        return success(call, {"sum": _encoded(done.hash, form)})

    async def random(self, call: ApiCall) -> Document:
        """Return random bytes of the key service."""
        source, size = _source_and_size(call)
        if size < 1:
            raise TransitError('"bytes" cannot be less than 1')
        if size > MAX_RANDOM:
            raise TransitError(f'"bytes" should be less than {MAX_RANDOM}')
        form = _form(call, "base64")
        made: RandomData = await self._operations.run("generate_random", call, {"size": size})
        warnings = [_NO_SEAL] if source == "seal" else None
        return success(call, {"random_bytes": _encoded(made.random, form)}, warnings=warnings)


def _source_and_size(call: ApiCall) -> tuple[str, int]:
    """Return the source and the number of bytes. Raises TransitError."""
    source, size = call[_SOURCE] or _SOURCES[0], call[_BYTES]
    if source.isascii() and source.isdigit() and len(source) <= len(str(MAX_RANDOM)):
        return _SOURCES[0], int(source)
    if source not in _SOURCES:
        raise TransitError('unsupported entropy source; must be "platform" or "seal", or "all"')
    return source, _DEFAULT_SIZE if size is None else size


def _form(call: ApiCall, default: str) -> str:
    form = call[_FORMAT] or default
    if form not in {"hex", "base64"}:
        raise TransitError('unsupported encoding format; must be "hex" or "base64"')
    return form


def _encoded(data: str, form: str) -> str:
    return data if form == "base64" else base64.b64decode(data).hex()

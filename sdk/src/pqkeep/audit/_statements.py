"""Validated JSON objects from the lines of a file.

In an export, every object has exactly the field names of its type. Objects from elsewhere may have
more.
"""

import binascii
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

from pqkeep.audit._formats import (
    FORMATS,
    MOST,
    OF_EVERY_FORMAT,
    Formats,
    MalformedError,
    canonical,
    matches_time,
    matches_uuid,
)
from pqkeep.audit._merkle import HASH_SIZE, leaf_hash

FORMAT = "pqkeep/v1/audit-export"
FORMAT_WITHOUT_PROOFS = "pqkeep/v2/audit-export"
FORMAT_OF_EVIDENCE = "pqkeep/v1/audit-evidence"
CHECKPOINT_CONTEXT = b"pqkeep/v1/audit-checkpoint"
STATEMENT_CONTEXT = b"pqkeep/v1/audit-statement"
MOST_FOUND = 10_000
"""Records in one statement of evidence."""
SUCCESSION = "continue-log"
INSTALLATION = "00000000-0000-0000-0000-000000000000"
LONGEST_PATH = 2 * 63

KEY_SIZES: Mapping[str, int] = {"Dilithium3": 1952, "SLH-DSA-SHA2-128s": 32}
"""The signature algorithms of checkpoints, with the size of their public keys in bytes."""

_matches_continued = re.compile(r"checkpoint-(0|[1-9]\d{0,18})-([0-9a-f]{64})", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of an export."""

    log_id: str
    tenant_id: str | None
    size: int
    after: int = 0
    """The number of records before the export's first record."""
    subtrees: tuple[bytes, ...] = ()
    """The hashes of the complete subtrees of the earlier records, largest first."""
    has_proofs: bool = True
    is_evidence: bool = False
    """True if it is evidence: the records of a query, with statements that no others match."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key. Some sources name its log."""

    algorithm: str
    version: int
    public_key: bytes
    log_id: str | None

    def fingerprint(self) -> str:
        """Return the SHA-256 hash of the raw key, in hexadecimal."""
        return sha256(self.public_key).hexdigest()


@dataclass(frozen=True, slots=True)
class NoteKey:
    """The key that verifies a log's notes. Witnesses use the key's name as the log's name."""

    log_id: str
    text: str

    @property
    def origin(self) -> str:
        """The log's name in notes."""
        return self.text.partition("+")[0]


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness's statement about a checkpoint."""

    witness: str
    origin: str
    stamped: bytes
    """Key id, time and signature."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed statement of a log's size and root at one time."""

    log_id: str
    size: int
    root: bytes
    at: str
    algorithm: str
    version: int
    signature: bytes
    cosignatures: tuple[Cosignature, ...] = ()

    def signed_text(self) -> bytes:
        """Return the text that the signature signs."""
        root = binascii.b2a_base64(self.root, newline=False)
        lines = (self.log_id.encode(), b"%d" % self.size, root, self.at.encode())
        return b"".join(line + b"\n" for line in (CHECKPOINT_CONTEXT, *lines))


@dataclass(frozen=True, slots=True)
class Found:
    """A signed statement: of the records after ``after`` up to ``through``, only these match."""

    log_id: str
    tenant_id: str | None
    size: int
    root: bytes
    query: Mapping[str, Any]
    after: int
    through: int
    ids: tuple[int, ...]
    text: bytes
    """The RFC 8785 text of the statement."""
    algorithm: str
    version: int
    signature: bytes

    def signed_text(self) -> bytes:
        """Return the text that the signature signs."""
        return b"%b\n%b\n" % (STATEMENT_CONTEXT, self.text)


@dataclass(frozen=True, slots=True)
class Consistency:
    """A consistency proof."""

    first: int
    second: int
    path: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and its inclusion proof. It has the fields that all formats have."""

    format: int
    is_known: bool
    """True if the format is known, and the record's values are valid for it."""
    id: int
    number: int
    tenant_id: str
    recorded_at: str
    leaf: bytes
    path: tuple[bytes, ...] | None
    """The inclusion proof. None in an export without proofs."""


@dataclass(frozen=True, slots=True)
class Succession:
    """The first own record of a log that continues an earlier log."""

    log_id: str
    """The id of the earlier log."""
    size: int
    root: bytes
    """The last checkpoint of the earlier log that the shared records cover."""
    first_version: int
    """The first key version that signs the new log."""
    entry: Entry

    @property
    def inherited(self) -> int:
        """The number of records that both logs have."""
        return self.entry.id - 1


@dataclass(frozen=True, slots=True)
class Newer:
    """The ids of records after an export's checkpoint, as the export states them."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class End:
    """The last line of an export."""

    records: int


Statement = (
    Header | Key | NoteKey | Checkpoint | Found | Consistency | Entry | Succession | Newer | End
)


def read_line(value: object, formats: Formats = FORMATS) -> Statement:
    """Return the statement in an export's line. Raises MalformedError."""
    return _read_typed(_Fields(value, is_exact=True), formats)


def read_saved(value: object, formats: Formats = FORMATS) -> Iterator[Statement]:
    """Yield the statements in a saved object: a line of an export, or a response of the API.

    Raises MalformedError.
    """
    fields = _Fields(value, is_exact=False)
    if "type" in fields:
        yield _read_typed(fields, formats)
    elif "data" in fields:
        yield from _read_response(_Fields(fields.value("data"), is_exact=False))
    else:
        yield from _read_response(fields)


def _read_typed(fields: "_Fields", formats: Formats) -> Statement:
    kind = fields.text("type")
    if kind == "record":
        return _entry(fields, formats)
    if kind == "succession":
        return _succession(fields, formats)
    read = _READERS.get(kind)
    if read is None:
        raise MalformedError("its type is not known")
    return read(fields)


def _read_response(fields: "_Fields") -> Iterator[Statement]:
    if "checkpoints" in fields:
        for checkpoint in fields.values("checkpoints"):
            yield _checkpoint(_Fields(checkpoint, is_exact=False))
    elif "keys" in fields:
        log_id = fields.log_id()
        for key in fields.values("keys"):
            yield _key(_Fields(key, is_exact=False), log_id)
        if "note_key" in fields and fields.value("note_key") is not None:
            yield NoteKey(log_id, fields.text("note_key"))
    else:
        read = next((read for name, read in _BY_NAME.items() if name in fields), None)
        if read is None:
            raise MalformedError("it is not a key, a checkpoint or a proof")
        yield read(fields)


class _Fields:
    """The fields of one object."""

    __slots__ = ("_is_exact", "_values")

    def __init__(self, value: object, *, is_exact: bool) -> None:
        if type(value) is not dict:
            raise MalformedError("it is not a JSON object")
        self._values: dict[str, Any] = value
        self._is_exact = is_exact

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def only(self, *names: str) -> "_Fields":
        """Raise MalformedError for a missing name and, in an export, for an unknown one."""
        check_names(self._values, names, is_exact=self._is_exact)
        return self

    def value(self, name: str) -> Any:
        """Return any value."""
        if name not in self._values:
            raise MalformedError(f"{name} is missing")
        return self._values[name]

    def values(self, name: str) -> list[Any]:
        """Return a list."""
        value = self.value(name)
        if type(value) is not list:
            raise _wrong(name)
        return value

    def text(self, name: str) -> str:
        """Return text."""
        value = self.value(name)
        if type(value) is not str:
            raise _wrong(name)
        return value

    def natural(self, name: str, at_least: int = 0) -> int:
        """Return an integer."""
        value = self.value(name)
        if type(value) is not int or not at_least <= value <= MOST:
            raise _wrong(name)
        return value

    def log_id(self) -> str:
        """Return the log's id."""
        return self.matching("log_id", matches_uuid)

    def matching(self, name: str, matches: Callable[[str], object]) -> str:
        """Return a string field that matches a pattern."""
        value = self.text(name)
        if not matches(value):
            raise _wrong(name)
        return value

    def algorithm(self) -> str:
        """Return a signature algorithm of checkpoints."""
        return self.matching("algorithm", KEY_SIZES.__contains__)

    def binary(self, name: str) -> bytes:
        """Return the bytes of a canonical base64 field."""
        return _binary(self.value(name), name)

    def hash(self, name: str) -> bytes:
        """Return a hash."""
        return _hash(self.value(name), name)

    def path(self, name: str) -> tuple[bytes, ...]:
        """Return a proof."""
        steps = self.values(name)
        if len(steps) > LONGEST_PATH:
            raise _wrong(name)
        return tuple([_hash(step, name) for step in steps])


def check_names(values: Mapping[str, Any], names: Collection[str], *, is_exact: bool) -> None:
    """Raise MalformedError for a missing name and, if ``exact``, for an unknown one."""
    missing = sorted(name for name in names if name not in values)
    if missing:
        raise MalformedError(f"{missing[0]} is missing")
    if is_exact and len(values) != len(names):
        raise MalformedError("it has an unexpected name")


def _wrong(name: str) -> MalformedError:
    return MalformedError(f"{name} is invalid")


def _binary(value: Any, name: str) -> bytes:
    try:
        raw = binascii.a2b_base64(value, strict_mode=True)
        # Bits that no byte uses could be set in a second spelling of the same bytes.
        if type(value) is str and binascii.b2a_base64(raw, newline=False).decode() == value:
            return raw
    except (ValueError, TypeError):
        pass
    raise _wrong(name)


def _hash(value: Any, name: str) -> bytes:
    raw = _binary(value, name)
    if len(raw) != HASH_SIZE:
        raise _wrong(name)
    return raw


def _header(fields: _Fields) -> Header:
    names = ("type", "format", "log_id", "tenant_id", "size")
    if fields.text("format") == FORMAT_WITHOUT_PROOFS:
        return _header_without_proofs(fields.only(*names, "after", "subtrees"))
    fields.only(*names)
    if fields.text("format") not in {FORMAT, FORMAT_OF_EVIDENCE}:
        known = f"{FORMAT}, {FORMAT_WITHOUT_PROOFS}, {FORMAT_OF_EVIDENCE}"
        raise MalformedError(f"its format is not one of {known}")
    is_whole = fields.value("tenant_id") is None
    return Header(
        log_id=fields.log_id(),
        tenant_id=None if is_whole else fields.matching("tenant_id", matches_uuid),
        size=fields.natural("size"),
        is_evidence=fields.text("format") == FORMAT_OF_EVIDENCE,
    )


def _header_without_proofs(fields: _Fields) -> Header:
    size, after, subtrees = fields.natural("size"), fields.natural("after"), fields.path("subtrees")
    if fields.value("tenant_id") is not None:
        raise _wrong("tenant_id")
    if after > size:
        raise _wrong("after")
    if len(subtrees) != after.bit_count():
        raise _wrong("subtrees")
    return Header(
        log_id=fields.log_id(),
        tenant_id=None,
        size=size,
        after=after,
        subtrees=subtrees,
        has_proofs=False,
    )


def _exported_key(fields: _Fields) -> Key:
    return _key(fields.only("type", "algorithm", "key_version", "public_key"), None)


def _key(fields: _Fields, log_id: str | None) -> Key:
    algorithm = fields.algorithm()
    public_key = fields.binary("public_key")
    if len(public_key) != KEY_SIZES[algorithm]:
        raise _wrong("public_key")
    return Key(algorithm, fields.natural("key_version", 1), public_key, log_id)


def _exported_checkpoint(fields: _Fields) -> Checkpoint:
    names = ("type", "log_id", "size", "root", "at", "algorithm", "key_version", "signature")
    has_some = "cosignatures" in fields
    return _checkpoint(fields.only(*names, *(("cosignatures",) if has_some else ())))


def _checkpoint(fields: _Fields) -> Checkpoint:
    return Checkpoint(
        log_id=fields.log_id(),
        size=fields.natural("size"),
        root=fields.hash("root"),
        at=fields.matching("at", matches_time),
        algorithm=fields.algorithm(),
        version=fields.natural("key_version", 1),
        signature=fields.binary("signature"),
        cosignatures=tuple(_cosignatures(fields)),
    )


def _cosignatures(fields: _Fields) -> Iterator[Cosignature]:
    for value in fields.values("cosignatures") if "cosignatures" in fields else ():
        each = _Fields(value, is_exact=False)
        yield Cosignature(each.text("witness"), each.text("origin"), each.binary("signature"))


def _found(fields: _Fields) -> Found:
    fields.only("type", "statement", "algorithm", "key_version", "signature")
    value = fields.value("statement")
    stated = _Fields(value, is_exact=True).only(
        *("after", "at", "ids", "log_id", "query", "root", "size", "tenant_id", "through")
    )
    after, through, size = (stated.natural(name) for name in ("after", "through", "size"))
    ids, query = stated.values("ids"), stated.value("query")
    places = [after, *ids, through + 1]
    if not after < through <= size:
        raise _wrong("through")
    if (
        len(ids) > MOST_FOUND
        or any(type(place) is not int for place in ids)
        or any(place >= following for place, following in pairwise(places))
    ):
        raise _wrong("ids")
    if type(query) is not dict:
        raise _wrong("query")
    stated.matching("at", matches_time)
    is_of_all = stated.value("tenant_id") is None
    return Found(
        log_id=stated.log_id(),
        tenant_id=None if is_of_all else stated.matching("tenant_id", matches_uuid),
        size=size,
        root=stated.hash("root"),
        query=query,
        after=after,
        through=through,
        ids=tuple(ids),
        text=canonical(value),
        algorithm=fields.algorithm(),
        version=fields.natural("key_version", 1),
        signature=fields.binary("signature"),
    )


def _exported_consistency(fields: _Fields) -> Consistency:
    return _consistency(fields.only("type", "first", "second", "path"))


def _consistency(fields: _Fields) -> Consistency:
    return Consistency(fields.natural("first"), fields.natural("second"), fields.path("path"))


def _newer(fields: _Fields) -> Newer:
    fields.only("type", "first", "last")
    return Newer(fields.natural("first", 1), fields.natural("last", 1))


def _end(fields: _Fields) -> End:
    return End(fields.only("type", "records").natural("records"))


def _entry(fields: _Fields, formats: Formats) -> Entry:
    has_proof = "proof" in fields
    record = fields.only("type", "record", *(("proof",) if has_proof else ())).value("record")
    if type(record) is not dict:
        raise _wrong("record")
    number = _Fields(record, is_exact=False).natural("format", 1)
    names = formats.get(number)
    check_names(record, names or OF_EVERY_FORMAT, is_exact=names is not None)
    for name, is_right in (names or OF_EVERY_FORMAT).items():
        if not is_right(record[name]):
            raise _wrong(name)
    return Entry(
        format=number,
        is_known=names is not None,
        id=record["id"],
        number=record["number"],
        tenant_id=record["tenant_id"],
        recorded_at=record["recorded_at"],
        leaf=leaf_hash(canonical(record)),
        path=fields.path("proof") if has_proof else None,
    )


def _succession(fields: _Fields, formats: Formats) -> Succession:
    entry = _entry(fields, formats)
    if entry.path is None:
        raise MalformedError("proof is missing")
    record = fields.value("record")
    continued = _matches_continued(record["policy"]) if entry.is_known else None
    if (
        continued is None
        or (record["operation"], record["tenant_id"]) != (SUCCESSION, INSTALLATION)
        or record["key_version"] is None
        or not matches_uuid(record["request_id"])
        or int(continued[1]) >= entry.id
    ):
        raise MalformedError("its record does not say which log is continued")
    return Succession(
        log_id=record["request_id"],
        size=int(continued[1]),
        root=bytes.fromhex(continued[2]),
        first_version=record["key_version"],
        entry=entry,
    )


_READERS: Mapping[str, Callable[[_Fields], Statement]] = {
    "export": _header,
    "key": _exported_key,
    "checkpoint": _exported_checkpoint,
    "statement": _found,
    "consistency": _exported_consistency,
    "newer": _newer,
    "end": _end,
}
_BY_NAME: Mapping[str, Callable[[_Fields], Statement]] = {
    "signature": _checkpoint,
    "public_key": lambda fields: _key(fields, None),
    "first": _consistency,
}
"""A field name that identifies the kind of an object without ``type``."""

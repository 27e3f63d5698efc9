"""The migration report as a ZIP file, in the form that ``pqkeep audit verify`` reads.

The claims are read before the first byte is sent, so that an error is a page. The records follow as
they are read. Members are stored without compression: a reader cannot be made to expand them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import msgspec

from pqkeep_gateway.http.errors import invalid
from pqkeep_gateway.portal.pages import Download, Visit
from pqkeep_gateway.portal.reading import Reader
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import MAX_INVENTORY_LISTED

FORMAT = "pqkeep/v1/migration-download"
MOST_OF_CLAIMS = 16 * 1024 * 1024
"""Bytes of claims in memory. The command saves larger reports."""
_EXPORT = b'{"type":"export"'
_ENCODER = msgspec.json.Encoder()

Json = dict[str, Any]


def report(visit: Visit) -> Download:
    """Return the report of the visitor's tenant since a day. Raises ApiError."""
    since = _day(visit.query.get("since", ""))
    today = datetime.now(UTC).date().isoformat()
    return Download(
        "migration-report-" + today + ".zip", "application/zip", _report(visit.reader, since)
    )


def _day(text: str) -> datetime:
    """Return the beginning of a day (UTC). Raises ApiError."""
    try:
        return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError:
        raise invalid("Write the day as 2026-01-31.", "since") from None


class _Sink:
    """A file that only grows: the bytes that are not sent yet."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: the bytes are in memory."""

    def close(self) -> None:
        """Do nothing."""

    def take(self) -> bytes:
        """Return the bytes, and forget them."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


class _Archive:
    """A ZIP file that is sent while it is written, and the digests of its members."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._zip = ZipFile(self._sink, "w", ZIP_STORED)
        self._time = datetime.now(UTC).timetuple()[:6]
        self.digests: dict[str, str] = {}

    async def member(self, name: str, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a member of any length."""
        digest = sha256()
        with self._zip.open(ZipInfo(name, self._time), "w", force_zip64=True) as member:
            async for chunk in chunks:
                digest.update(chunk)
                member.write(chunk)
                yield self._sink.take()
        self.digests[name] = digest.hexdigest()
        yield self._sink.take()

    def whole(self, name: str, content: bytes) -> bytes:
        """Return the bytes of a member."""
        self._zip.writestr(ZipInfo(name, self._time), content)
        self.digests[name] = sha256(content).hexdigest()
        return self._sink.take()

    def end(self) -> bytes:
        """Return the list of the members."""
        self._zip.close()
        return self._sink.take()


async def _report(reader: Reader, since: datetime) -> AsyncGenerator[bytes, None]:
    """Yield a report. Before its first bytes it raises ApiError."""
    claims: dict[str, bytes] = {}
    pages: list[Any] = []
    async with aclosing(_claims(reader, since, pages)) as parts:
        async for name, content in parts:
            claims[name] = content
            if sum(map(len, claims.values())) > MOST_OF_CLAIMS:
                raise invalid(_TOO_LARGE)
    export = await reader.read("export_audit_log")
    heads: dict[str, int] = {}
    archive = _Archive()
    records = _watched(export.chunks, heads)
    async with aclosing(archive.member("audit.jsonl", records)) as sent:
        async for chunk in sent:
            yield chunk
    for name, content in claims.items():
        yield archive.whole(name, content)
    keys = await reader.read("list_audit_keys")
    yield archive.whole("keys.jsonl", _ENCODER.encode(keys) + b"\n")
    states = [line async for line in _states(reader, pages, heads)]
    yield archive.whole("checkpoints.jsonl", b"".join(states))
    log, size = list(heads.items())[-1]
    manifest = {
        "format": FORMAT,
        "tenant_id": str(reader.principal.tenant),
        "log_id": log,
        "size": size,
        "since": f"{since:%Y-%m-%dT%H:%M:%S.%f}Z",
        "created_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        "files": dict(sorted(archive.digests.items())),
    }
    yield archive.whole("manifest.json", _ENCODER.encode(manifest))
    yield archive.end()


_TOO_LARGE = (
    "This report is too large to download here. Save it with the command pqkeep report migration."
)


async def _watched(
    chunks: AsyncGenerator[bytes, None], heads: dict[str, int]
) -> AsyncGenerator[bytes, None]:
    """Yield an export; note the size of each of its logs."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.startswith(_EXPORT):
                head = msgspec.json.decode(chunk.partition(b"\n")[0])
                heads[head["log_id"]] = head["size"]
            yield chunk


async def _claims(
    reader: Reader, since: datetime, pages: list[Any]
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Yield the claims by file. Add the pages of the inventory to ``pages``."""
    size = 0
    async for page in _following(
        reader, "list_inventory", since=since.isoformat(), limit=MAX_INVENTORY_LISTED
    ):
        size += len(_ENCODER.encode(page))
        if size > MOST_OF_CLAIMS:
            raise invalid(_TOO_LARGE)
        pages.append(page)
    yield "inventory.json", _ENCODER.encode({"pages": pages})
    yield "rules.json", _ENCODER.encode(await reader.read("list_rules"))
    campaigns = [
        _campaign(msgspec.to_builtins(row), await reader.read("get_campaign", name=row.name))
        for row in (await reader.read("list_campaigns")).campaigns
    ]
    yield "campaigns.json", _ENCODER.encode({"campaigns": campaigns})
    sources = [
        await reader.read("get_external_keys", source=row.source)
        for row in (await reader.read("list_external_keys")).sources
    ]
    yield "external.json", _ENCODER.encode({"sources": sources})
    number = 0
    async for made in _following(reader, "get_cbom"):
        number += 1
        yield "cbom.json" + ("" if number == 1 else "." + str(number)), _ENCODER.encode(made.cbom)


async def _following(reader: Reader, name: str, **values: object) -> AsyncGenerator[Any, None]:
    """Yield all pages of a list."""
    after: object = None
    while True:
        page = await reader.read(name, after=after, **values)
        yield page
        following = getattr(page, "next", None) or None
        if following in {None, msgspec.UNSET, after}:
            return
        after = following


def _campaign(row: Json, progress: Any) -> Json:
    """Return a campaign with its scans. Its moves are counted from the records."""
    found = msgspec.to_builtins(progress)
    return {**{name: found[name] for name in row}, "left": found["left"]}


async def _states(
    reader: Reader, pages: list[Any], heads: Mapping[str, int]
) -> AsyncGenerator[bytes, None]:
    """Yield the checkpoints of the inventory's pages, and their proofs up to the export."""
    for log, size in sorted({(page.as_of.log_id, page.as_of.size) for page in pages}):
        named = log if len(heads) > 1 else None
        found = await reader.read(
            "list_audit_checkpoints",
            after=size - 1,
            limit=1,
            algorithm=Algorithm.ML_DSA_65.value,
            log=named,
        )
        yield _ENCODER.encode(found) + b"\n"
        head = heads.get(log, 0)
        if size < head:
            proof = await reader.read("prove_audit_consistency", first=size, second=head, log=named)
            yield _ENCODER.encode(proof) + b"\n"

"""Saves a migration report: a directory that ``pqkeep audit verify`` verifies offline.

    from pqkeep.migration import save_report

    report = save_report(client, "report", since=datetime(2026, 1, 1, tzinfo=UTC))

docs/migration.md lists the files, and says which claims they prove. It needs the extra
``pqkeep[audit]``.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from pqkeep import inputs
from pqkeep._call import in_path
from pqkeep.audit import Report
from pqkeep.audit._migration import (
    CAMPAIGNS,
    CBOM,
    CHECKPOINTS,
    COUNTS,
    EXPORT,
    EXTERNAL,
    FORMAT,
    INVENTORY,
    KEYS,
    MANIFEST,
    RULES,
    TEXT,
    count,
    counts_of,
    limits_of,
    text_of,
    verify_report,
)
from pqkeep.client import Client
from pqkeep.errors import MalformedResponseError, NotFoundError

ATTEMPTS = 3
"""The most attempts. A key that changes meanwhile makes an inconsistent report."""
WAIT_SECONDS = 15.0
"""The most seconds to wait for the checkpoint of the newest record."""
_MAX_PAGES = 10_000

Json = dict[str, Any]


def save_report(
    client: Client,
    directory: str | os.PathLike[str],
    *,
    since: datetime,
    signed_by: str | None = None,
) -> Report:
    """Save a report in a new directory. Return the result of its verification.

    ``since`` is a time with an offset from UTC: moves, warnings and refusals count from there.
    ``signed_by`` is the key that signs the bill of materials: a keyring, a slash, and ML-DSA-65 or
    ML-DSA-87. The directory appears when it is complete; only its owner can read it.

    Raises the client's errors, OSError and FileExistsError.
    """
    target = Path(directory)
    if target.exists():
        raise FileExistsError(f"{target} exists already")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pqkeep-", dir=target.parent) as made:
        for attempt in range(1, ATTEMPTS + 1):
            folder = Path(made) / str(attempt)
            folder.mkdir(mode=0o700)
            _save(client, folder, since.astimezone(UTC), signed_by)
            report = verify_report(folder)
            if report.is_verified or attempt == ATTEMPTS:
                folder.rename(target)
                return report
    raise AssertionError("the last attempt returns")


def _wait_for_counts(client: Client) -> None:
    """Wait until the inventory counts the newest record. A checkpoint takes about a second."""
    newest = next(client.audit.records(order="desc", page_size=1), None)
    until = time.monotonic() + WAIT_SECONDS
    while newest is not None and time.monotonic() < until:
        with suppress(NotFoundError):  # no checkpoint yet
            if _data(client, "/inventory", {"limit": 1})["as_of"]["size"] >= newest.id:
                return
        time.sleep(0.3)


def _save(client: Client, folder: Path, since: datetime, signed_by: str | None) -> None:
    _wait_for_counts(client)
    parts: dict[str, Json] = {
        INVENTORY: {"pages": list(_pages(client, since))},
        RULES: _data(client, "/rules/algorithms"),
        CAMPAIGNS: {"campaigns": list(_campaigns(client))},
        EXTERNAL: {"sources": list(_sources(client))},
    }
    _save_cbom(client, folder, signed_by)
    client.audit.export(folder / EXPORT)
    (folder / KEYS).write_text(_line(_data(client, "/audit/keys")), "utf-8")
    (folder / CHECKPOINTS).write_text("".join(_states(client, folder, parts)), "utf-8")
    begin = f"{since:%Y-%m-%dT%H:%M:%S.%f}Z"
    tally = count(folder / EXPORT, limits_of(parts[INVENTORY]["pages"]), begin)
    parts[COUNTS] = counts_of(tally)
    for name, part in parts.items():
        (folder / name).write_text(json.dumps(part, ensure_ascii=False, indent=1), "utf-8")
    manifest: Json = {
        "format": FORMAT,
        "tenant_id": tally.tenant,
        "log_id": tally.logs[-1],
        "size": tally.size,
        "since": begin,
        "created_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
    }
    (folder / TEXT).write_text(text_of(manifest, parts, tally), "utf-8")
    files = {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    manifest["files"] = dict(sorted(files.items()))
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")


def _pages(client: Client, since: datetime) -> Iterator[Json]:
    after: object = None
    for _ in range(_MAX_PAGES):
        query = {"since": since.isoformat(), "after": after, "limit": 50}
        page = _data(client, "/inventory", query)
        yield page
        if page.get("next") in {None, after}:
            return
        after = page["next"]
    raise MalformedResponseError("the pages of the inventory do not end", field="next")


def _campaigns(client: Client) -> Iterator[Json]:
    """Yield each campaign with its scans. Its moves are counted from the records."""
    for campaign in _data(client, "/campaigns")["campaigns"]:
        progress = _data(client, f"/campaigns/{in_path(campaign['name'])}")
        yield {**{name: progress[name] for name in campaign}, "left": progress["left"]}


def _sources(client: Client) -> Iterator[Json]:
    for source in _data(client, "/inventory/external")["sources"]:
        yield _data(client, f"/inventory/external/{in_path(source['source'])}")


def _save_cbom(client: Client, folder: Path, signed_by: str | None) -> None:
    """Save the documents of the bill of materials, with their signatures and the public keys."""
    after: str | None = None
    for number in range(1, _MAX_PAGES):
        made = client.inventory.cbom(signed_by=signed_by, after=after)
        file = folder / (CBOM if number == 1 else f"{CBOM}.{number}")
        if made.jws is None:
            text = json.dumps(made.document, ensure_ascii=False, separators=(",", ":"))
            file.write_text(text, "utf-8")
        else:
            signed = inputs.read_signature(made.jws.encode())
            if not isinstance(signed, inputs.Jws):
                raise MalformedResponseError("the response has no JWS", field="jws")
            file.write_bytes(signed.content)
            Path(f"{file}.jws").write_text(made.jws + "\n", "ascii")
        if made.next in {None, after}:
            break
        after = made.next
    else:
        raise MalformedResponseError("the bills of materials do not end", field="next")
    if signed_by is not None:
        keyring = signed_by.rpartition("/")[0]
        keys = client.inventory.public_keys(keyring)
        (folder / "jwks.json").write_text(json.dumps({"keys": keys}), "utf-8")


def _states(client: Client, folder: Path, parts: Mapping[str, Json]) -> Iterator[str]:
    """Yield the checkpoints of the inventory's pages, and their proofs up to the export."""
    heads: dict[str, int] = {}
    with (folder / EXPORT).open(encoding="utf-8") as file:
        for line in file:
            if line.startswith('{"type":"export"'):
                head = json.loads(line)
                heads[head["log_id"]] = head["size"]
    pages = parts[INVENTORY]["pages"]
    for log, size in sorted({(page["as_of"]["log_id"], page["as_of"]["size"]) for page in pages}):
        named = log if len(heads) > 1 else None
        newest = {"after": size - 1, "limit": 1, "algorithm": "Dilithium3", "log": named}
        yield _line(_data(client, "/audit/checkpoints", newest))
        head = heads.get(log, 0)
        if size < head:
            proof = {"first": size, "second": head, "log": named}
            yield _line(_data(client, "/audit/consistency", proof))


def _data(client: Client, path: str, query: Mapping[str, object] | None = None) -> Json:
    return dict(client.inventory.evidence(path, query))


def _line(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"

"""The invariants of an installation's data after any kills. Each check returns its violations.

They use only the log's documentation: the record's text and the tree are computed here.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey
from tests.crash_recovery.client import Promise
from tests.crash_recovery.snapshot import Snapshot

SIGNED_WITH = "Dilithium3"
CONTEXT = b"pqkeep/v1/audit-checkpoint"
TILE_LEVELS = 8
CREATING = ("generate-key", "rotate-key")
USED = frozenset(
    {
        *("encrypt", "decrypt", "re-encrypt", "encapsulate", "decapsulate", "wrap", "unwrap"),
        *("sign", "verify", "sign-hash", "verify-hash", "sign-mu", "verify-mu", "sign-jws"),
        *("generate-data-key", "compute-mac", "verify-mac"),
    }
)
SHOWN = 5
"""The most rows in a finding."""

Findings = Iterator[str]


def everything(snapshot: Snapshot, promises: Sequence[Promise]) -> dict[str, list[str]]:
    """Return all violations by check. Every check is listed, also without violations."""
    found = {"promises": list(promises_are_kept(snapshot, promises))}
    return found | {name: list(check(snapshot)) for name, check in CHECKS.items()}


def promises_are_kept(snapshot: Snapshot, promises: Iterable[Promise]) -> Findings:
    """Every response has exactly one record, with the same facts."""
    records = defaultdict(list)
    for record in snapshot.records:
        records[record.request_id].append(record)
    for promise in promises:
        *earlier, answered = promise.request_ids
        found = records[answered] + [
            record for each in earlier for record in records[each] if record.event_id is not None
        ]  # an operation with a key that is asked for again is another operation
        if len(found) != 1:
            yield f"{promise.operation} {promise.request_ids[-1]} has {len(found)} records"
            continue
        (record,) = found
        said = record.tenant_id, record.operation, record.outcome, record.principal
        if said != (promise.tenant_id, promise.operation, promise.outcome, promise.principal):
            yield f"{promise} is recorded as {said}"
        if promise.key_version not in (None, record.key_version):
            yield f"{promise} is recorded for key version {record.key_version}"


def nothing_is_recorded_twice(snapshot: Snapshot) -> Findings:
    """No request and no event has two records."""
    for name in ("request_id", "event_id"):
        counted = Counter(getattr(record, name) for record in snapshot.records)
        yield from (
            records_of_one(name, value, count)
            for value, count in counted.items()
            if value is not None and count > 1
        )


def records_of_one(name: str, value: str, count: int) -> str:
    """Return a description of several records with one id."""
    return f"{name} {value} has {count} records"


def numbers_have_no_gaps(snapshot: Snapshot) -> Findings:
    """Ids and every tenant's numbers count from 1 without gaps; times never decrease."""
    last: Counter[str] = Counter()
    at = 0
    for place, record in enumerate(snapshot.records, 1):
        if record.id != place:
            yield f"record {record.id} is in place {place}"
            return
        last[record.tenant_id] += 1
        if record.number != last[record.tenant_id]:
            yield f"record {place} has number {record.number}, not {last[record.tenant_id]}"
        if record.recorded_at_us < at:
            yield f"record {place} is older than the one before"
        at = record.recorded_at_us


def keys_are_what_the_log_says(snapshot: Snapshot) -> Findings:
    """Replaying the log gives exactly the present keys and statuses."""
    rings: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for record in snapshot.records:
        if record.outcome != "success" or record.event_id is not None:
            continue
        problem = _do_again(rings[record.tenant_id, record.keyring, record.algorithm], record)
        if problem:
            yield f"record {record.id}: {problem}"
    there: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for key in snapshot.keys:
        ring = there[str(key.tenant_id), key.keyring, key.algorithm]
        if key.version != len(ring) + 1:
            yield f"{key.algorithm} of {key.tenant_id} has no version {len(ring) + 1}"
        ring.append(key.status)
        if (key.sealed_seed is None) != (key.status == "archived"):
            yield f"{key.algorithm} {key.version} of {key.tenant_id}: {key.status} and its seed"
    for name in rings.keys() | there.keys():
        if rings.get(name, []) != there.get(name, []):
            yield f"{name}: the log makes {rings.get(name)}, and there is {there.get(name)}"
    if {
        (str(ring.tenant_id), ring.keyring, ring.algorithm) for ring in snapshot.key_revisions
    } != there.keys():
        yield "there are keys without versions"


def _do_again(ring: list[str], record: Any) -> str | None:
    """Replay a record on a key; return the violation."""
    if record.operation in CREATING:
        if record.key_version <= len(ring):
            return None  # an Idempotency-Key had the first answer given again
        if record.key_version != len(ring) + 1:
            return f"version {record.key_version} is made after {len(ring)}"
        is_active = bool(ring) and ring[-1] == "active"
        if is_active != (record.operation == "rotate-key"):
            return f"{record.operation} with {ring[-1:]}"
        if is_active:
            ring[-1] = "retired"
        ring.append("active")
    elif record.operation in ("retire-key", "archive-key"):
        if record.key_version > len(ring):
            return f"version {record.key_version} is not there"
        ring[record.key_version - 1] = record.operation.partition("-")[0] + "d"
    elif record.operation in USED and not 1 <= record.key_version <= len(ring):
        return f"{record.operation} with version {record.key_version} of {len(ring)}"
    return None


def accounts_are_what_the_log_says(snapshot: Snapshot) -> Findings:
    """Every tenant and API key has exactly one event, and every event its object."""
    events: dict[str, Counter[tuple[str, int | None]]] = defaultdict(Counter)
    for record in snapshot.records:
        if record.outcome == "success" and record.event_id is not None:
            events[record.operation][record.tenant_id, record.key_version] += 1
    tenants = Counter((str(tenant.id), None) for tenant in snapshot.tenants)
    if events["create-tenant"] != tenants:
        yield f"tenants and their events differ: {_difference(events['create-tenant'], tenants)}"
    made = Counter((str(key.tenant_id), key.version) for key in snapshot.api_keys)
    told = events["create-api-key"] + events["rotate-api-key"]
    if told != made:
        yield f"API keys and their events differ: {_difference(told, made)}"
    unexplained: Counter[str] = Counter()
    for key in snapshot.api_keys:
        name = str(key.tenant_id), key.version
        if key.status == "revoked":
            unexplained[name[0]] += name not in events["revoke-api-key"]
        elif name in events["revoke-api-key"]:
            yield f"API key {name} is active, and its revocation is in the log"
    rotations = Counter(tenant for tenant, _ in events["rotate-api-key"])
    if +unexplained != rotations:
        yield f"{+unexplained} API keys were replaced, and {rotations} rotations are in the log"
    if snapshot.outbox:
        yield f"{len(snapshot.outbox)} events still wait in the outbox"


def _difference(one: Counter[Any], other: Counter[Any]) -> list[Any]:
    return [*(one - other), *(other - one)][:SHOWN]


def uses_are_counted(snapshot: Snapshot) -> Findings:
    """Each key's use count equals its records up to the checkpoint."""
    covered = max((each.size for each in snapshot.checkpoints), default=0)
    uses = Counter(
        (record.tenant_id, record.keyring, record.algorithm, record.key_version)
        for record in snapshot.records[:covered]
        if record.operation in USED
        and record.outcome in ("success", "verification-failed")
        and record.key_version is not None
    )
    for record in snapshot.records[:covered]:
        if record.target is not None and record.outcome == "success":
            keyring, algorithm, version = record.target.split("/")
            uses[record.tenant_id, keyring, algorithm, int(version)] += 1
    counted: Counter[Any] = Counter()
    for row in snapshot.usage:  # each operation of each principal has a row
        if row.keyring:
            counted[row.tenant_id, row.keyring, row.algorithm, row.key_version] += row.uses
    if uses != counted:
        yield f"uses are counted wrongly for {_difference(uses, counted)}"


def the_tree_is_the_records(snapshot: Snapshot) -> Findings:
    """Every tile and checkpoint root equals the one computed from the records."""
    tiles = {(tile.level, tile.position): tile.hash for tile in snapshot.tiles}
    roots = {each.size: each.root for each in snapshot.checkpoints}
    made, grown = tree(snapshot, roots)
    yield from (f"there are no {size} records for a checkpoint" for size in roots.keys() - grown)
    yield from (
        f"the checkpoint of {size} has another root" for size in grown if grown[size] != roots[size]
    )
    yield from (f"tile {name} is not right" for name in made if made[name] != tiles.get(name))
    yield from (f"tile {name} is of nothing" for name in tiles.keys() - made)


def tree(
    snapshot: Snapshot, sizes: Iterable[int]
) -> tuple[dict[tuple[int, int], bytes], dict[int, bytes]]:
    """Return the tiles of the records by level and position, and the roots by size."""
    wanted = set(sizes)
    stack: list[tuple[int, bytes]] = []
    tiles: dict[tuple[int, int], bytes] = {}
    roots: dict[int, bytes] = {}
    for size, record in enumerate(snapshot.records, 1):
        level, top = 0, sha256(b"\0" + text(record)).digest()
        while stack and stack[-1][0] == level:
            level, top = level + 1, sha256(b"\1" + stack.pop()[1] + top).digest()
            if level % TILE_LEVELS == 0:
                tiles[level, (size >> level) - 1] = top
        stack.append((level, top))
        if size in wanted:
            roots[size] = _root(stack)
    return tiles, roots


def _root(stack: Sequence[tuple[int, bytes]]) -> bytes:
    top = stack[-1][1]
    for _, left in reversed(stack[:-1]):
        top = sha256(b"\1" + left + top).digest()
    return top


def checkpoints_are_signed(snapshot: Snapshot) -> Findings:
    """Every checkpoint has a signature by the log's own key."""
    public = {
        key.version: MLDSA65PublicKey.from_public_bytes(key.public_key)
        for key in snapshot.keys
        if key.algorithm == SIGNED_WITH and not any(key.tenant_id.bytes)
    }
    for each in snapshot.checkpoints:
        if each.algorithm != SIGNED_WITH:
            continue
        try:
            public[each.key_version].verify(
                each.signature, signed_text(snapshot.log_id, each), CONTEXT
            )
        except InvalidSignature:
            yield f"the checkpoint of {each.size} has a bad signature"
    if not any(each.algorithm == SIGNED_WITH for each in snapshot.checkpoints):
        yield "there is no checkpoint"


def signed_text(log_id: str, checkpoint: Any) -> bytes:
    """Return the text that a checkpoint's signature signs."""
    root = b64encode(checkpoint.root).decode()
    lines = (CONTEXT.decode(), log_id, checkpoint.size, root, instant(checkpoint.at_us))
    return "".join(f"{line}\n" for line in lines).encode()


def text(record: Any) -> bytes:
    """Return the text of a record, whose hash is the leaf."""
    happened, fingerprint = record.happened_at_us, record.public_key_sha256
    said: Mapping[str, object] = {
        **{name: getattr(record, name) for name in _AS_IT_IS},
        "happened_at": None if happened is None else instant(happened),
        "recorded_at": instant(record.recorded_at_us),
        "nonce": record.nonce.hex(),
        "public_key_sha256": None if fingerprint is None else fingerprint.hex(),
    }
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def instant(microseconds: int) -> str:
    """Return a time of the log in microseconds since 1970."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_AS_IT_IS = (
    *(
        "algorithm",
        "campaign",
        "event_id",
        "format",
        "id",
        "key_version",
        "keyring",
        "keyring_revision",
        "number",
    ),
    *(
        "operation",
        "outcome",
        "policy",
        "principal",
        "request_id",
        "rule",
        "source_address",
        "target",
        "tenant_id",
    ),
)
CHECKS: Mapping[str, Callable[[Snapshot], Findings]] = {
    "nothing twice": nothing_is_recorded_twice,
    "no gaps": numbers_have_no_gaps,
    "keys": keys_are_what_the_log_says,
    "accounts": accounts_are_what_the_log_says,
    "uses": uses_are_counted,
    "tree": the_tree_is_the_records,
    "checkpoints": checkpoints_are_signed,
}


def the_export_is_the_log(snapshot: Snapshot, exported: bytes) -> Findings:
    """The export has every record up to its checkpoint, with valid proofs."""
    lines = [json.loads(line) for line in exported.splitlines()]
    (checkpoint,) = (line for line in lines if line["type"] == "checkpoint")
    records = [line for line in lines if line["type"] == "record"]
    size, root = checkpoint["size"], b64decode(checkpoint["root"])
    if [line["record"]["id"] for line in records] != list(range(1, size + 1)):
        yield f"it has {len(records)} records, and the checkpoint {size}"
    if lines[-1] != {"type": "end", "records": size}:
        yield "it does not end with how many records it has"
    for line, record in zip(records, snapshot.records, strict=False):
        if line["record"] != json.loads(text(record)):
            yield f"record {record.id} is another in the export"
        if _proven(line, size) != root:
            yield f"the proof of record {record.id} does not lead to the root"


def _proven(line: Mapping[str, Any], size: int) -> bytes:
    """Return the root of an inclusion proof (RFC 9162, section 2.1.3.2)."""
    said = json.dumps(
        line["record"], sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()
    top, place, last = sha256(b"\0" + said).digest(), line["record"]["id"] - 1, size - 1
    for step in map(b64decode, line["proof"]):
        if place & 1 or place == last:
            top = sha256(b"\1" + step + top).digest()
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            top = sha256(b"\1" + top + step).digest()
        place, last = place >> 1, last >> 1
    return top

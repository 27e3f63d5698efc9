"""Verifies a migration report: its files against the records of its own export.

The export and its checkpoint are the evidence. Everything else in the report is a claim, and each
claim is computed again from the verified records. docs/migration.md says which claims are provable.
"""

import errno
import json
import re
import tempfile
from base64 import b64decode, urlsafe_b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from pqkeep.audit._archive import DamagedError, TruncatedError, is_archive, unpack
from pqkeep.audit._formats import MalformedError, canonical, parse
from pqkeep.audit._verification import verify
from pqkeep.audit.report import Finding, Kind, Report
from pqkeep.verification import verify as verify_signature

FORMAT = "pqkeep/v1/migration-report"
DOWNLOAD = "pqkeep/v1/migration-download"
"""The format of a report from the portal. Such a report has no counts and no text."""
MANIFEST, EXPORT, TEXT = "manifest.json", "audit.jsonl", "report.md"
INVENTORY, RULES, CAMPAIGNS = "inventory.json", "rules.json", "campaigns.json"
EXTERNAL, CBOM, COUNTS, KEYS = "external.json", "cbom.json", "counts.json", "keys.jsonl"
CHECKPOINTS = "checkpoints.jsonl"
REQUIRED = (EXPORT, CHECKPOINTS, KEYS, INVENTORY, RULES, CAMPAIGNS, EXTERNAL, CBOM, COUNTS, TEXT)
"""Every report has these files. ``cbom.json`` has a JWS beside it if it is signed."""
_REQUIRED_OF: Mapping[object, Sequence[str]] = {
    FORMAT: REQUIRED,
    DOWNLOAD: [name for name in REQUIRED if name not in {COUNTS, TEXT}],
}
LAG_SECONDS = 120
"""The most seconds between an export and the first use that its inventory does not count."""
_EVIDENCE = (EXPORT, CHECKPOINTS, KEYS)
LARGEST = 256 * 1024 * 1024
"""The most bytes of a file. The files of the evidence may be larger."""

_USING = frozenset(
    {
        *("encrypt", "decrypt", "encapsulate", "decapsulate", "wrap", "unwrap", "re-encrypt"),
        *("generate-data-key", "sign", "verify", "sign-hash", "verify-hash", "sign-jws", "sign-mu"),
        *("verify-mu", "compute-mac", "verify-mac"),
    }
)
_USED = frozenset({"success", "verification-failed"})
_MAKES_KEY = frozenset({"generate-key", "rotate-key", "import-key"})
_CHANGES_RULES = frozenset({"put-rule", "delete-rule", "override-rule"})
_SYMMETRIC = frozenset({"XAES-256-GCM", "HMAC-SHA-256", "HMAC-SHA-512"})
_OTHER = "other"
_NO_RULES = sha256(b"[]").hexdigest()
_jws_algorithms: Mapping[str, str] = {"ML-DSA-65": "Dilithium3", "ML-DSA-87": "ML-DSA-87"}
_is_source = re.compile(r"([^/]+)/sha256-([0-9a-f]{64})").fullmatch

Json = dict[str, Any]
KeyName = tuple[str, str, int]
"""Keyring, algorithm and version."""
Name = TypeVar("Name", bound=str | KeyName)


@dataclass(slots=True)
class Uses:
    """The number of uses, and the first and the last time."""

    count: int = 0
    first: str | None = None
    last: str | None = None

    def add(self, at: str) -> None:
        """Count a use."""
        self.count += 1
        self.first = at if self.first is None else min(self.first, at)
        self.last = at if self.last is None else max(self.last, at)


@dataclass(slots=True)
class Tally:
    """The facts that the records of an export show."""

    tenant: str = ""
    logs: list[str] = field(default_factory=list)
    size: int = 0
    uses: dict[tuple[KeyName | None, str, str, str], Uses] = field(default_factory=dict)
    """By key version, algorithm, principal and operation. None: not the tenant's own key."""
    made: dict[KeyName, Json] = field(default_factory=dict)
    """The record that made a key version, by key version."""
    destroyed: set[KeyName] = field(default_factory=set)
    rules: Json | None = None
    """The newest record of a change of the rules."""
    rule_changes: list[Json] = field(default_factory=list)
    campaigns: dict[str, Json] = field(default_factory=dict)
    """The newest record of each campaign's definition."""
    scans: set[tuple[str, str, str]] = field(default_factory=set)
    """Campaign, principal and policy of each record of a scan. The policy has the file's digest."""
    external: dict[str, Json | None] = field(default_factory=dict)
    """The newest import of each source; None if the rule was removed later."""
    moved: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """The number of re-encryptions by campaign, source and target."""
    denied: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    warned: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """The number of warnings by rule, principal, operation and key."""
    uncounted: str | None = None
    """The time of the first use that the inventory's checkpoint does not cover."""
    signed_at: str = ""
    """The time of the newest signed checkpoint."""
    people: list[Json] = field(default_factory=list)
    """Records of changes that name who approved them."""


Limit = Callable[[KeyName | None], tuple[str, int, str]]
"""Returns log, size and first time of the records to count for a key version."""


def records_of(path: Path, tally: Tally) -> Iterator[tuple[str, Json]]:
    """Yield the log and the content of each record of an export; note its head in the tally."""
    log = ""
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b'{"type":"export"'):
                head = _object(parse(line))
                log = str(head.get("log_id"))
                tally.tenant = str(head.get("tenant_id"))
                tally.logs.append(log)
                tally.size = int(head.get("size") or 0)
            elif line.startswith(b'{"type":"record"'):
                yield log, _object(_object(parse(line)).get("record"))


def count(path: Path, limit: Limit, since: str) -> Tally:
    """Return the facts in an export. ``since`` limits the counts of moves, refusals and warnings."""
    tally = Tally()
    for log, record in records_of(path, tally):
        for name, principal, operation in _uses_in(record):
            counted, size, first = limit(name)
            # A tenant that moved between shards has its earlier uses in earlier logs.
            is_counted = log != counted or record["id"] <= size
            if not is_counted:
                tally.uncounted = tally.uncounted or record["recorded_at"]
            elif record["recorded_at"] >= first:
                place = name, record["algorithm"], principal, operation
                tally.uses.setdefault(place, Uses()).add(record["recorded_at"])
        _add_change(tally, record)
        if record["recorded_at"] >= since:
            _add_outcome(tally, record)
    return tally


def _uses_in(record: Json) -> Iterator[tuple[KeyName | None, str, str]]:
    """Yield the key version, the principal and the operation of each use in a record."""
    operation, keyring, version = record["operation"], record["keyring"], record["key_version"]
    is_use = (
        record["event_id"] is None
        and record["outcome"] in _USED
        and operation in _USING
        and record["algorithm"] is not None
        and (keyring is None) is (version is None)
    )
    if not is_use:
        return
    name = None if keyring is None else (keyring, record["algorithm"], version)
    yield name, record["principal"], operation
    if operation == "re-encrypt" and record["target"] is not None:
        yield _named(record["target"]), record["principal"], "re-encrypt-target"


def _named(text: str) -> KeyName:
    keyring, algorithm, version = text.rsplit("/", 2)
    return keyring, algorithm, int(version)


def _add_change(tally: Tally, record: Json) -> None:
    operation = record["operation"]
    if record["outcome"] not in {"success", "completed"}:
        return
    if operation in _CHANGES_RULES:
        tally.rules = record
        tally.rule_changes.append(record)
    elif operation in {"put-campaign", "add-campaign-scan"}:
        _add_campaign(tally, record)
    elif operation in {"import-external-keys", "remove-external-keys"}:
        found = _is_source(record["target"] or "")
        if found:
            tally.external[found[1]] = record if operation.startswith("import") else None
    elif record["keyring"] is not None and record["key_version"] is not None:
        name = record["keyring"], record["algorithm"], record["key_version"]
        if operation in _MAKES_KEY and record["public_key_sha256"] is not None:
            tally.made[name] = record
        elif operation == "archive-key":
            tally.destroyed.add(name)
    if record["principal"].startswith("user:") and operation in _APPROVALS:
        tally.people.append(record)


def _add_campaign(tally: Tally, record: Json) -> None:
    if record["operation"] == "put-campaign":
        tally.campaigns[record["campaign"]] = record
    else:
        tally.scans.add((record["campaign"], record["principal"], record["policy"]))


_APPROVALS = frozenset(
    {
        *(*_CHANGES_RULES, "put-campaign", "close-campaign", "schedule-archive", "disable-key"),
        *("begin-canary", "end-canary"),
    }
)


def _add_outcome(tally: Tally, record: Json) -> None:
    key = "/".join(
        "-" if value is None else str(value)
        for value in (record["keyring"], record["algorithm"], record["key_version"])
    )
    if record.get("rule") is not None and record["operation"] not in _CHANGES_RULES:
        place = record["rule"], record["principal"], record["operation"], key
        if record["outcome"] == "success":
            tally.warned[place] += 1
        else:
            tally.denied[place] += 1
    if (
        record["operation"] == "re-encrypt"
        and record["outcome"] == "success"
        and record.get("campaign") is not None
        and record["target"] is not None
    ):
        tally.moved[record["campaign"], key, record["target"]] += 1


def counts_of(tally: Tally) -> Json:
    """Return moves, refusals and warnings in the form of ``counts.json``."""
    names = ("rule", "principal", "operation", "key")

    def rows(counter: Counter[Any], names: Sequence[str]) -> list[Json]:
        return [
            {**dict(zip(names, place, strict=True)), "count": number}
            for place, number in sorted(counter.items())
        ]

    return {
        "moved": rows(tally.moved, ("campaign", "source", "target")),
        "denied": rows(tally.denied, names),
        "warned": rows(tally.warned, names),
        "rule_changes": [_event(record) for record in tally.rule_changes],
        "approvals": [_event(record) for record in tally.people],
    }


def _event(record: Json) -> Json:
    names = ("id", "recorded_at", "operation", "principal", "rule", "campaign", "keyring")
    return {name: record.get(name) for name in names}


def limits_of(pages: Sequence[Json]) -> Limit:
    """Return the checkpoint and the first time of each key version's counts in an inventory."""
    of_key: dict[KeyName, tuple[str, int, str]] = {}
    last = ("", 0, "")
    for page in pages:
        as_of = _object(page.get("as_of"))
        last = str(as_of["log_id"]), int(as_of["size"]), str(page.get("since") or "")
        for key in page["keys"]:
            of_key[_name_of(key)] = last
    return lambda name: last if name is None else of_key.get(name, last)


def _name_of(key: Json) -> KeyName:
    return key["keyring"], key["algorithm"], key["key_version"]


class _Check:
    """The verification of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.findings: list[Finding] = []

    def fail(self, kind: Kind, file: str, message: str, record: int | None = None) -> None:
        """Add a finding about a file."""
        self.findings.append(Finding(kind, message, str(self._directory / file), None, record))

    def read(self, file: str) -> Json | None:
        """Return the JSON object of a file; None after a finding."""
        try:
            with (self._directory / file).open("rb") as opened:
                return _object(parse(opened.read(LARGEST)))
        except (OSError, MalformedError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.fail(Kind.MALFORMED, file, f"it cannot be read: {reason}")
            return None

    def run(self, file: str, check: Callable[[], None]) -> None:
        """Run a check. A file of another form is a finding, and no exception."""
        try:
            check()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
            self.fail(Kind.MALFORMED, file, "it does not have the form of this report's files")

    def require_plain_files(self) -> None:
        """Raise OSError for a link, a folder or a device, which could be read forever, and EFBIG."""
        for path in sorted(self._directory.iterdir()):
            if path.is_symlink() or not path.is_file():
                raise OSError(errno.EINVAL, "a report has no links, folders or devices", str(path))
            if path.name not in _EVIDENCE and path.stat().st_size > LARGEST:
                most = f"a file of a report has at most {LARGEST >> 20} MiB"
                raise OSError(errno.EFBIG, most, str(path))

    def by_name(self, file: str, named: Iterable[tuple[Name, Json]]) -> dict[Name, Json]:
        """Return objects by name. A name that is there twice is a finding."""
        found: dict[Name, Json] = {}
        for name, value in named:
            if name in found:
                shown = "/".join(map(str, name)) if isinstance(name, tuple) else name
                self.fail(Kind.INSERTED, file, f"{shown} is there twice")
            found[name] = value
        return found

    def check_files(self) -> Json | None:
        """Compare each file with the manifest."""
        manifest = self.read(MANIFEST)
        if manifest is None:
            return None
        form = manifest.get("format")
        if not isinstance(form, str) or form not in _REQUIRED_OF:
            self.fail(Kind.MALFORMED, MANIFEST, f"its format is not {FORMAT} or {DOWNLOAD}")
            return None
        listed = manifest.get("files")
        if not isinstance(listed, dict):
            self.fail(Kind.MALFORMED, MANIFEST, "files is missing")
            return None
        present = {path.name for path in self._directory.iterdir()} - {MANIFEST}
        for name in sorted({*listed, *_REQUIRED_OF[form]} - present):
            self.fail(Kind.MISSING, str(name), "the file is missing")
        for name in sorted(present - listed.keys()):
            self.fail(Kind.INSERTED, name, "the manifest does not name the file")
        for name in sorted(present & listed.keys()):
            if _digest(self._directory / name) != listed[name]:
                self.fail(Kind.EDITED, name, "the file is not the one that the manifest names")
        return manifest

    def check_uses(self, inventory: Json, tally: Tally) -> None:
        """Compare the inventory with the records."""
        pages = inventory["pages"]
        listed = self.by_name(
            INVENTORY, ((_name_of(key), key) for page in pages for key in page["keys"])
        )
        for page in pages:
            if page["as_of"]["log_id"] not in tally.logs or page["as_of"]["size"] > tally.size:
                self.fail(
                    Kind.NOT_CONNECTED,
                    INVENTORY,
                    f"it counts {page['as_of']['size']} records of log {page['as_of']['log_id']}; "
                    f"the export has {tally.size} of {tally.logs[-1]}",
                )
        by_key: dict[KeyName | None, dict[tuple[str, str, str], Uses]] = {}
        for (name, algorithm, principal, operation), uses in tally.uses.items():
            by_key.setdefault(name, {})[algorithm, principal, operation] = uses
        if tally.uncounted and _seconds(tally.uncounted, tally.signed_at) > LAG_SECONDS:
            message = f"it does not count the uses from {tally.uncounted} on"
            self.fail(Kind.TRUNCATED, INVENTORY, message)
        is_merged = any(page.get("merged_principals") for page in pages)
        for name, key in listed.items():
            self._check_key(name, key, by_key.get(name, {}), is_merged=is_merged)
            self._check_life(name, key, tally)
        last = min((page["as_of"]["size"] for page in pages), default=0)
        for name, record in tally.made.items():
            if name not in listed and record["id"] <= last:
                message = f"{_shown(name)} is missing; record {record['id']} made it"
                self.fail(Kind.MISSING, INVENTORY, message, record["id"])
        if pages:
            self._check_unattributed(pages[-1], by_key.get(None, {}))

    def _check_key(
        self,
        name: KeyName,
        key: Json,
        found: Mapping[tuple[str, str, str], Uses],
        *,
        is_merged: bool,
    ) -> None:
        by_operation: dict[str, list[Uses]] = {}
        for (_, _, operation), uses in found.items():
            by_operation.setdefault(operation, []).append(uses)
        proven = {operation: _sum(uses) for operation, uses in by_operation.items()}
        said = {entry["operation"]: _stated(entry) for entry in key["operations"]}
        total = sum(number for number, _, _ in proven.values())
        if key["uses"] != total:
            self._fail_count(name, "uses", key["uses"], total)
        for operation in sorted({*proven, *said}):
            if proven.get(operation) != said.get(operation):
                was, has = said.get(operation, (0,)), proven.get(operation, (0,))
                self._fail_count(name, f"uses by {operation}", was, has)
        of_principal = {
            (principal, operation): (uses.count, uses.first, uses.last)
            for (_, principal, operation), uses in found.items()
        }
        stated = {
            (entry["principal"], entry["operation"]): _stated(entry) for entry in key["principals"]
        }
        if len(stated) < len(key["principals"]):
            self.fail(Kind.INSERTED, INVENTORY, f"{_shown(name)} has a principal twice")
        has_more = is_merged or (key["more_principals"] and len(of_principal) > len(stated))
        for place in sorted(stated if has_more else {*of_principal, *stated}):
            was, has = stated.get(place, (0,)), of_principal.get(place, (0,))
            # Above 10,000 principals a month, later uses are those of "other".
            is_less = is_merged and (was[0] < has[0] or place[0] == _OTHER)
            if was != has and not is_less:
                self._fail_count(name, f"uses by {place[1]} of {place[0]}", was, has)

    def _fail_count(self, name: KeyName, what: str, said: object, proven: object) -> None:
        message = f"{_shown(name)} has {_text(proven)} {what} in the records, not {_text(said)}"
        self.fail(Kind.WRONG_COUNT, INVENTORY, message)

    def _check_life(self, name: KeyName, key: Json, tally: Tally) -> None:
        record = tally.made.get(name)
        if record is None:
            self.fail(Kind.INSERTED, INVENTORY, f"no record made {_shown(name)}")
        elif name[1] not in _SYMMETRIC and record["public_key_sha256"] != key["fingerprint"]:
            message = f"{_shown(name)} has another fingerprint than its record {record['id']}"
            self.fail(Kind.EDITED, INVENTORY, message, record["id"])
        is_destroyed = key["private_key"] == "destroyed"
        if is_destroyed is not (name in tally.destroyed):
            said = "no record says so" if is_destroyed else "a record says that it is destroyed"
            message = f"the private key of {_shown(name)} is {key['private_key']}; {said}"
            self.fail(Kind.EDITED, INVENTORY, message)

    def _check_unattributed(self, page: Json, found: Mapping[tuple[str, str, str], Uses]) -> None:
        by_use: dict[tuple[str, str], list[Uses]] = {}
        for (algorithm, _, operation), uses in found.items():
            by_use.setdefault((algorithm, operation), []).append(uses)
        proven = {place: _sum(uses) for place, uses in by_use.items()}
        said = {
            (entry["algorithm"], entry["operation"]): _stated(entry)
            for entry in page["unattributed"]
        }
        for place in sorted({*proven, *said}):
            if proven.get(place) != said.get(place):
                message = (
                    f"the unattributed uses of {place[0]} by {place[1]} differ from the records"
                )
                self.fail(Kind.WRONG_COUNT, INVENTORY, message)

    def check_rules(self, rules: Json, inventory: Json, tally: Tally) -> None:
        """Compare the rules with the digest in the newest record of a change."""
        proven = _NO_RULES if tally.rules is None else tally.rules["public_key_sha256"]
        text = canonical([_rule(rule) for rule in rules["rules"]])
        if sha256(text).hexdigest() == proven == rules.get("sha256", proven):
            return
        names = sorted(_differing(rules["rules"], inventory["pages"]))
        which = f"; {', '.join(names)} differs from the inventory" if names else ""
        at = (
            "the records, which change no rule"
            if tally.rules is None
            else f"record {tally.rules['id']}"
        )
        message = f"the rules differ from {at}{which}"
        self.fail(Kind.EDITED, RULES, message, None if tally.rules is None else tally.rules["id"])

    def check_campaigns(self, campaigns: Json, tally: Tally) -> None:
        """Compare each campaign with the digest in the newest record of its definition."""
        listed = self.by_name(
            CAMPAIGNS, ((campaign["name"], campaign) for campaign in campaigns["campaigns"])
        )
        for name in sorted(tally.campaigns.keys() - listed.keys()):
            self.fail(Kind.MISSING, CAMPAIGNS, f"the campaign {name} is missing")
        for name, campaign in listed.items():
            record = tally.campaigns.get(name)
            digest = sha256(_definition(campaign)).hexdigest()
            if record is None:
                self.fail(Kind.INSERTED, CAMPAIGNS, f"no record has the campaign {name}")
            elif record["policy"] != f"sha256-{digest}":
                message = f"the campaign {name} differs from record {record['id']}"
                self.fail(Kind.EDITED, CAMPAIGNS, message, record["id"])
            self._check_scans(name, campaign["left"], tally)

    def _check_scans(self, name: str, left: Json, tally: Tally) -> None:
        """Require a record of each scan, and their sum."""
        scans = left["scans"]
        for scan in scans:
            if (name, scan["principal"], f"sha256-{scan['sha256']}") not in tally.scans:
                message = f"no record has the scan of {scan['place']} for the campaign {name}"
                self.fail(Kind.INSERTED, CAMPAIGNS, message)
        total = sum(scan["left"] for scan in scans) if scans else None
        if left["count"] != total:
            message = f"the scans of the campaign {name} say {total} left, not {left['count']}"
            self.fail(Kind.WRONG_NUMBER, CAMPAIGNS, message)

    def check_external(self, external: Json, tally: Tally) -> None:
        """Compare each list of keys elsewhere with the digest in its newest import."""
        listed = self.by_name(
            EXTERNAL, ((source["source"], source) for source in external["sources"])
        )
        proven = {name: record for name, record in tally.external.items() if record is not None}
        for name in sorted(proven.keys() - listed.keys()):
            self.fail(Kind.MISSING, EXTERNAL, f"the source {name} is missing")
        for name, source in listed.items():
            record = proven.get(name)
            text = canonical({"keys": source["keys"], "source": name})
            if record is None:
                self.fail(Kind.INSERTED, EXTERNAL, f"no record imported the source {name}")
            elif (
                record["target"] != f"{name}/sha256-{sha256(text).hexdigest()}"
                or record["policy"] != f"sha256-{source['document_sha256']}"
                or record["principal"].partition("/")[0] != source["imported_by"].partition("/")[0]
                or source["total"] != len(source["keys"])
                or source["moved"] != sum(key["moved"] for key in source["keys"])
            ):
                message = f"the source {name} differs from record {record['id']}"
                self.fail(Kind.EDITED, EXTERNAL, message, record["id"])

    def check_cbom(self, cbom: Json, inventory: Json, tally: Tally) -> None:
        """Compare the bill of materials with the inventory, and its signature with the records."""
        if f"tenant:{tally.tenant}" != cbom["metadata"]["component"]["bom-ref"]:
            self.fail(Kind.ANOTHER_TENANT, CBOM, "it is another tenant's")
        facts: list[tuple[KeyName, Json]] = []
        further = sorted(self._directory.glob(f"{CBOM}.[0-9]*"))
        more = [self.read(path.name) or {} for path in further if path.suffix != ".jws"]
        for component in [one for part in (cbom, *more) for one in part["components"]]:
            said = {entry["name"]: entry["value"] for entry in component.get("properties", ())}
            if "pqkeep:keyring" in said:
                key = said["pqkeep:keyring"], said["pqkeep:algorithm"]
                version = int(said["pqkeep:key-version"])
                material = component["cryptoProperties"]["relatedCryptoMaterialProperties"]
                state = {"status": said["pqkeep:status"], "fingerprint": material["id"]}
                facts.append(((*key, version), state))
        described = self.by_name(CBOM, facts)
        listed = {
            _name_of(entry): {name: entry[name] for name in ("status", "fingerprint")}
            for page in inventory["pages"]
            for entry in page["keys"]
            if not entry.get("keyring_deleted")
        }
        for name in sorted({*described, *listed}):
            if described.get(name) != listed.get(name):
                message = f"{_shown(name)} is not as in the inventory"
                self.fail(Kind.EDITED, CBOM, message)
        for jws in sorted(self._directory.glob(f"{CBOM}*.jws")):
            self._check_jws(jws, jws.with_suffix("").read_bytes(), tally)

    def _check_jws(self, path: Path, content: bytes, tally: Tally) -> None:
        """Verify a JWS by a key that the records name."""
        header_text, payload, signature = path.read_text("ascii").strip().split(".")
        header = _object(parse(_unpadded(header_text)))
        if _unpadded(payload) != content:
            self.fail(Kind.EDITED, path.name, "it contains another document")
        keys = (self.read("jwks.json") or {"keys": []})["keys"]
        algorithm = _jws_algorithms[header["alg"]]
        candidates = [key for key in keys if key["kid"] == header["kid"]]
        known = {
            record["public_key_sha256"]: name
            for name, record in tally.made.items()
            if name[1] == algorithm
        }
        for key in candidates:
            public_key = _unpadded(key["pub"])
            is_valid = verify_signature(
                f"{header_text}.{payload}".encode(),
                _unpadded(signature),
                public_key=public_key,
                algorithm=algorithm,
            )
            if is_valid and sha256(public_key).hexdigest() in known:
                return
        message = "its signature is not by a key that the records name"
        self.fail(Kind.BAD_SIGNATURE, path.name, message)


def verify_report(
    report: str | PathLike[str],
    trusted_keys: str | PathLike[str] | None = None,
    others: Sequence[str | PathLike[str]] = (),
    *,
    witnesses: Sequence[str] = (),
    least_witnesses: int | None = None,
) -> Report:
    """Verify a migration report offline, from its files alone.

    ``report`` is a directory, or the file that the portal saves. That file is unpacked into a
    temporary directory. ``others`` are more files for ``verify``, for example saved checkpoints; it
    takes the witnesses too. Without trusted keys, the result shows only that the report is
    consistent.

    Raises the errors of ``verify``, and OSError for a report with anything but files, or with a
    file of more than 256 MiB.
    """
    path = Path(report)
    if not is_archive(path):
        return _verify_folder(path, trusted_keys, others, witnesses, least_witnesses)
    with tempfile.TemporaryDirectory(prefix="pqkeep-") as made:
        try:
            unpack(path, Path(made), LARGEST, _EVIDENCE)
        except TruncatedError:
            message = "it is truncated, or another file: download it again"
            return _refused(Finding(Kind.TRUNCATED, message, str(path)))
        except DamagedError as error:
            message = "the file is not the one that was packed"
            return _refused(Finding(Kind.EDITED, message, f"{path}/{error.args[0]}"))
        verified = _verify_folder(Path(made), trusted_keys, others, witnesses, least_witnesses)
        return _renamed(verified, made, str(path))


def _refused(finding: Finding) -> Report:
    return Report(
        None, (), (), (), (), are_keys_trusted=False, findings=(finding,), further=0, notes=()
    )


def _renamed(report: Report, made: str, path: str) -> Report:
    """Return a report with the place of its files that the user knows."""

    def text(value: str) -> str:
        return value.replace(made, path)

    return replace(
        report,
        portions=tuple(replace(one, file=text(one.file)) for one in report.portions),
        checkpoints=tuple(replace(one, file=text(one.file)) for one in report.checkpoints),
        findings=tuple(
            replace(one, file=text(one.file), message=text(one.message)) for one in report.findings
        ),
        notes=tuple(map(text, report.notes)),
        proofs=tuple(replace(one, file=text(one.file)) for one in report.proofs),
        earlier=tuple(_renamed(one, made, path) for one in report.earlier),
    )


def _verify_folder(
    folder: Path,
    trusted_keys: str | PathLike[str] | None,
    others: Sequence[str | PathLike[str]],
    witnesses: Sequence[str],
    least_witnesses: int | None,
) -> Report:
    check = _Check(folder)
    check.require_plain_files()
    manifest = check.check_files()
    evidence = [folder / name for name in _EVIDENCE]
    report = verify(
        [*(path for path in evidence if path.exists()), *others],
        trusted_keys,
        witnesses=witnesses,
        least_witnesses=least_witnesses,
    )
    counts = None
    if manifest is not None:
        required = {name for name in _REQUIRED_OF[manifest["format"]] if name.endswith(".json")}
        required |= {name for name in (COUNTS,) if (folder / name).exists()}
        read = {name: check.read(name) for name in sorted(required)}
        parts = {name: part for name, part in read.items() if part is not None}
        if len(parts) == len(read):
            counts = _Claims(check, folder, manifest, parts).check(report)
    return replace(report, findings=(*check.findings, *report.findings), counts=counts)


class _Claims:
    """The checks of all parts of a report against its records."""

    def __init__(
        self, check: _Check, folder: Path, manifest: Json, parts: Mapping[str, Json]
    ) -> None:
        self._check = check
        self._folder = folder
        self._manifest = manifest
        self._parts = parts
        self._tally = Tally()

    def check(self, report: Report) -> Json | None:
        """Add a finding for each claim that the records do not show. Return the proven counts."""
        check, parts = self._check, self._parts
        check.run(EXPORT, self._count)
        tally, inventory = self._tally, parts[INVENTORY]
        if not tally.logs:
            return None
        exported = str(self._folder / EXPORT)
        if any(part.query is not None and part.file == exported for part in report.portions):
            check.fail(Kind.MISSING, EXPORT, "it has the records of a query, and not all")
        if self._manifest.get("tenant_id") != tally.tenant:
            message = "it names another tenant than the export"
            check.fail(Kind.ANOTHER_TENANT, MANIFEST, message)
        times = [anchor.at for anchor in report.checkpoints]
        tally.signed_at = max(times, default=tally.uncounted or "")
        check.run(INVENTORY, lambda: self._check_states(report))
        check.run(INVENTORY, lambda: check.check_uses(inventory, tally))
        check.run(RULES, lambda: check.check_rules(parts[RULES], inventory, tally))
        check.run(CAMPAIGNS, lambda: check.check_campaigns(parts[CAMPAIGNS], tally))
        check.run(EXTERNAL, lambda: check.check_external(parts[EXTERNAL], tally))
        check.run(CBOM, lambda: check.check_cbom(parts[CBOM], inventory, tally))
        if COUNTS in parts:
            check.run(COUNTS, self._check_counts)
        if (self._folder / TEXT).exists():
            check.run(TEXT, self._check_text)
        return counts_of(tally)

    def _count(self) -> None:
        limits = limits_of(self._parts[INVENTORY]["pages"])
        self._tally = count(self._folder / EXPORT, limits, self._manifest["since"])

    def _check_states(self, report: Report) -> None:
        """Require a signed checkpoint for each log size that a page of the inventory names."""
        signed = {
            (anchor.size, anchor.root)
            for verified in (report, *report.earlier)
            for anchor in verified.checkpoints
        }
        for page in self._parts[INVENTORY]["pages"]:
            size, root = page["as_of"]["size"], b64decode(page["as_of"]["root"])
            if (size, root) not in signed:
                message = f"no checkpoint signs this log of {size} records"
                self._check.fail(Kind.NO_CHECKPOINT, INVENTORY, message)

    def _check_counts(self) -> None:
        proven, said = counts_of(self._tally), self._parts[COUNTS]
        for name in sorted({*proven, *said}):
            if proven.get(name) != said.get(name):
                message = f"{name} is not what the records say"
                self._check.fail(Kind.WRONG_COUNT, COUNTS, message)

    def _check_text(self) -> None:
        expected = text_of(self._manifest, self._parts, self._tally)
        if (self._folder / TEXT).read_text("utf-8") != expected:
            message = "the text is not the one of this report's files"
            self._check.fail(Kind.EDITED, TEXT, message)


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise MalformedError("it is not a JSON object")
    return value


def _unpadded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _shown(name: KeyName) -> str:
    return f"{name[0]}/{name[1]}/{name[2]}"


def _text(counted: object) -> str:
    return str(counted[0] if isinstance(counted, tuple) and counted[1:] == () else counted)


def _sum(uses: Iterable[Uses]) -> tuple[int, str | None, str | None]:
    listed = list(uses)
    return (
        sum(use.count for use in listed),
        min((use.first for use in listed if use.first), default=None),
        max((use.last for use in listed if use.last), default=None),
    )


def _stated(entry: Json) -> tuple[int, str, str]:
    return entry["uses"], entry["first_used_at"], entry["last_used_at"]


def _rule(rule: Json) -> Json:
    """Return a rule in the form of the key service's digest."""
    return {
        **{name: rule[name] for name in ("name", "algorithms", "keyrings", "uses", "successor")},
        "warn_from": _second(rule["warn_from"]),
        "deny_from": _second(rule["deny_from"]),
        "exceptions": [
            {"api_key": one["api_key"], "until": _second(one["until"])}
            for one in rule["exceptions"]
        ],
    }


def _second(text: str | None) -> str | None:
    """Return an instant without its fraction, which is zero."""
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    if at.microsecond:
        raise ValueError("a rule's instant has a fraction")
    return f"{at:%Y-%m-%dT%H:%M:%S}Z"


def _differing(rules: Sequence[Json], pages: Sequence[Json]) -> set[str]:
    """Return the rules that differ from the inventory's rules in a date or successor."""
    by_name = {rule["name"]: rule for rule in rules}
    names = set()
    for page in pages:
        for key in page["keys"]:
            for assessed in key["rules"] or ():
                rule = by_name.get(assessed["rule"])
                parts = ("warn_from", "deny_from", "successor")
                if rule is None or any(rule[part] != assessed[part] for part in parts):
                    names.add(assessed["rule"])
    return names


def _definition(campaign: Json) -> bytes:
    """Return a campaign's definition in the form of the gateway's digest."""
    content = [
        [[one["keyring"], one["algorithm"], one["key_versions"]] for one in campaign["sources"]],
        [campaign["target"]["keyring"], campaign["target"]["algorithm"]],
        campaign["quiet_days"],
    ]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _counted(pages: Sequence[Json]) -> int:
    return min((page["as_of"]["size"] for page in pages), default=0)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def text_of(manifest: Json, parts: Mapping[str, Json], tally: Tally) -> str:
    """Return the report's page of text."""
    keys = [key for page in parts[INVENTORY]["pages"] for key in page["keys"]]
    statuses = Counter(f"{key['algorithm']}, {key['status']}" for key in keys)
    sources = parts[EXTERNAL]["sources"]
    elsewhere = sum(source["total"] for source in sources)
    moved_elsewhere = sum(source["moved"] for source in sources)
    lines = [
        "# Migration report",
        "",
        f"Tenant {manifest['tenant_id']}, since {manifest['since']}.",
        f"Made at {manifest['created_at']}.",
        f"The evidence is the audit log {tally.logs[-1]} up to record {tally.size}.",
        f"The uses of keys are counted up to record {_counted(parts[INVENTORY]['pages'])}.",
        "",
        "## Keys",
        "",
        *(f"- {number} of {what}" for what, number in sorted(statuses.items())),
        f"- {moved_elsewhere} of {elsewhere} keys elsewhere are moved, as their owners state",
        "",
        "## Rules",
        "",
        *(
            f"- {rule['name']} ends {', '.join(rule['algorithms'])}: warns from "
            f"{rule['warn_from'] or 'never'}, denies from {rule['deny_from'] or 'never'}"
            for rule in parts[RULES]["rules"]
        ),
        *(
            f"- {principal} was refused {_times(number)} by {rule}: {operation} with {key}"
            for (rule, principal, operation, key), number in sorted(tally.denied.items())
        ),
        *(
            f"- {principal} was warned {_times(number)} by {rule}: {operation} with {key}"
            for (rule, principal, operation, key), number in sorted(tally.warned.items())
        ),
        "",
        "## Campaigns",
        "",
        *(
            f"- {campaign}: {number} ciphertexts moved from {source} to {target}"
            for (campaign, source, target), number in sorted(tally.moved.items())
        ),
        *(
            f"- {campaign['name']}: the newest scan of {scan['place']}, by {scan['principal']} at "
            f"{scan['scanned_at']}, states that {scan['left']} are left"
            for campaign in parts[CAMPAIGNS]["campaigns"]
            for scan in campaign["left"]["scans"]
        ),
        "",
        "## What is proven",
        "",
        "| claim | proven? |",
        "|---|---|",
        *(f"| {claim} | {answer} |" for claim, answer in _CLAIMS),
        "",
    ]
    return "\n".join(lines)


_CLAIMS = (
    (
        "These uses of keys, and no others, went through the service up to the last record.",
        "Yes, against a checkpoint that somebody else keeps.",
    ),
    (
        "After a rule's date nothing was written with its algorithms.",
        "Yes, for operations that need the service. Never for other uses of a public key.",
    ),
    (
        "These numbers of ciphertexts moved from one key to another.",
        "Yes. But the ciphertexts may be the same, and the old ones may still exist.",
    ),
    (
        "Nothing is left under an old key.",
        "No. Scans that find nothing, a long time without use, and a destroyed key come closest.",
    ),
    (
        "A private key is destroyed.",
        "Yes, in the service's database. Not in earlier backups, and not where it was imported from.",
    ),
    ("A person approved the change.", "Yes: the records name people."),
    (
        "A key elsewhere is moved.",
        "No. It is the statement of the person or program that imported the list.",
    ),
)

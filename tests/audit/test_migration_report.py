"""A migration report verifies offline, and an edited one does not and says which part."""

from __future__ import annotations

import json
import os
import shutil
import stat
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import pytest
from gateway.tests.test_external_keys import RSA_2048, asset, bom
from tests.fixtures.caller import refusal_of
from tests.fixtures.installation import Installation

from pqkeep import Client
from pqkeep.audit import Report, verify_report
from pqkeep.audit._migration import LARGEST
from pqkeep.migration import save_report
from pqkeep_protocol.algorithms import Algorithm

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
Json = dict[str, Any]


def _prepared(installation: Installation, host: str = "www") -> Client:
    """Return the client of a tenant with keys, moves, refusals and keys elsewhere."""
    tenant = installation.new_tenant()
    client = Client(installation.base_url, tenant.api_key)
    for algorithm in ("Kyber768", "ML-KEM-1024", "Dilithium3", "XAES-256-GCM"):
        client.keys.generate(algorithm)
    sealed = [client.kem.encrypt(b"text", algorithm="Kyber768") for _ in range(3)]
    client.signatures.sign(b"text", algorithm="Dilithium3")
    campaign = {
        "sources": [{"algorithm": "Kyber768"}],
        "target": {"algorithm": "ML-KEM-1024"},
    }
    assert tenant.ask("PUT", "/campaigns/cards", campaign).is_success
    for one in sealed[:2]:
        body = {
            "algorithm": "Kyber768",
            "key_version": 1,
            "ciphertext": b64encode(one.ciphertext).decode(),
            "to": {"algorithm": "ML-KEM-1024"},
            "campaign": "cards",
        }
        tenant.post("/kem/re-encrypt", body)
    scan = {"place": "cards", "sha256": "5f" * 32, "scanned_at": "2026-01-31T12:00:00Z"}
    counts = [{"algorithm": "Kyber768", "key_version": 1, "count": 1}]
    tenant.post("/campaigns/cards/scans", {**scan, "counts": counts}, status=201)
    rule = {
        "algorithms": ["X-Wing"],
        "warn_from": "2026-01-01T00:00:00Z",
        "deny_from": "2026-02-01T00:00:00Z",
    }
    person = installation.person(tenant.tenant_id)
    put = person.ask_proven("PUT", "/rules/algorithms/no-x-wing", rule)
    assert put.is_success, put.text
    assert refusal_of(tenant.ask("POST", "/kms/keys/generate", {"algorithm": "X-Wing"}))[0] == 403
    client.keys.rotate("Kyber768")
    installation.archive(tenant.tenant_id, Algorithm.ML_KEM_768, 1)
    certificate = asset(
        host, "certificate", crypto={"certificateProperties": {"subjectPublicKeyRef": "rsa"}}
    )
    external = {"source": "tls", "document": bom(RSA_2048, certificate)}
    tenant.post("/inventory/external", external, status=201)
    return client


@pytest.fixture(scope="module")
def saved(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verified report."""
    directory = tmp_path_factory.mktemp("reports") / "report"
    with _prepared(installation) as client:
        report = save_report(client, directory, since=SINCE, signed_by="default/ML-DSA-65")
    assert report.is_verified, report.findings
    return directory


@pytest.fixture
def report(saved: Path, tmp_path: Path) -> Path:
    """A copy of the report, to edit."""
    copy = tmp_path / "report"
    shutil.copytree(saved, copy)
    return copy


def edit(directory: Path, name: str, change: Callable[[Any], None]) -> None:
    """Edit a JSON file, and the manifest with it, as a forger would."""
    value = json.loads((directory / name).read_text())
    change(value)
    (directory / name).write_text(json.dumps(value))
    renew(directory)


def renew(directory: Path) -> None:
    """Write the manifest's digests again."""
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["files"] = {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.name != "manifest.json"
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


def found(report: Report) -> list[tuple[str, str]]:
    """Return the file and the kind of each finding."""
    return [(Path(finding.file).name, finding.kind.value) for finding in report.findings]


def test_it_says_what_the_records_say(saved: Path) -> None:
    """Counts of moves, keys outside pqkeep and uses are in its files and its text."""
    counts = json.loads((saved / "counts.json").read_text())
    moved = {"source": "default/Kyber768/1", "target": "default/ML-KEM-1024/1"}
    assert counts["moved"] == [{"campaign": "cards", **moved, "count": 2}]
    text = (saved / "report.md").read_text()
    assert "2 ciphertexts moved from default/Kyber768/1 to default/ML-KEM-1024/1" in text
    assert "0 of 1 keys elsewhere are moved" in text
    assert (
        "the newest scan of cards, by api-key:1 at 2026-01-31T12:00:00.000Z, states that 1" in text
    )
    assert saved.stat().st_mode & 0o077 == 0


def lines_of(directory: Path) -> list[str]:
    """Return the lines of the export."""
    return (directory / "audit.jsonl").read_text().splitlines(keepends=True)


def write_lines(directory: Path, lines: list[str]) -> None:
    """Write the export again."""
    (directory / "audit.jsonl").write_text("".join(lines))
    renew(directory)


def records(lines: list[str], operation: str) -> list[int]:
    """Return the places of an operation's records in an export."""
    return [place for place, line in enumerate(lines) if f'"operation":"{operation}"' in line]


def test_an_unchanged_copy_verifies(report: Path) -> None:
    """The directory alone is enough."""
    assert verify_report(report).is_verified


@pytest.mark.threat("edited-report")
def test_a_removed_record_shows(report: Path) -> None:
    """The export is incomplete, and the counts no longer match the records."""
    lines = lines_of(report)
    del lines[records(lines, "encrypt")[0]]
    write_lines(report, lines)
    kinds = found(verify_report(report))
    assert ("audit.jsonl", "missing") in kinds
    assert ("inventory.json", "wrong-count") in kinds


@pytest.mark.threat("edited-report")
def test_a_cut_or_reordered_export_shows(report: Path) -> None:
    """An export without its end, or in another order, does not verify."""
    lines = lines_of(report)
    first, second = records(lines, "encrypt")[:2]
    swapped = list(lines)
    swapped[first], swapped[second] = lines[second], lines[first]
    write_lines(report, swapped)
    assert ("audit.jsonl", "out-of-order") in found(verify_report(report))
    write_lines(report, lines[:-3])
    assert ("audit.jsonl", "truncated") in found(verify_report(report))


def _more_uses(inventory: Json) -> None:
    key = next(key for key in inventory["pages"][0]["keys"] if key["uses"])
    key["uses"] += 1


def _fewer_uses_by_operation(inventory: Json) -> None:
    key = next(key for key in inventory["pages"][0]["keys"] if key["uses"])
    key["operations"][0]["uses"] -= 1
    key["uses"] -= 1


def _another_principal(inventory: Json) -> None:
    key = next(key for key in inventory["pages"][0]["keys"] if key["principals"])
    key["principals"][0]["principal"] = "api-key:7"


def _an_undestroyed_key(inventory: Json) -> None:
    key = next(key for key in inventory["pages"][0]["keys"] if key["private_key"] == "destroyed")
    key["private_key"] = "present"


def _a_destroyed_key(inventory: Json) -> None:
    key = next(key for key in inventory["pages"][0]["keys"] if key["private_key"] == "present")
    key["private_key"] = "destroyed"


def _no_key(inventory: Json) -> None:
    inventory["pages"][0]["keys"].pop()


def _an_invented_key(inventory: Json) -> None:
    key = inventory["pages"][0]["keys"][-1]
    inventory["pages"][0]["keys"].append({**key, "key_version": 9, "uses": 0, "operations": []})


def _another_root(inventory: Json) -> None:
    inventory["pages"][0]["as_of"]["root"] = b64encode(bytes(32)).decode()


def _a_moved_ciphertext(counts: Json) -> None:
    counts["moved"][0]["count"] += 1


def _no_refusal(counts: Json) -> None:
    assert counts["denied"][0]["rule"] == "no-x-wing"
    counts["denied"].clear()


def _another_owner(external: Json) -> None:
    external["sources"][0]["keys"][0]["owner"] = "nobody"


def _all_moved(external: Json) -> None:
    external["sources"][0]["keys"][0]["moved"] = True


def _no_source(external: Json) -> None:
    external["sources"].clear()


def _another_target(campaigns: Json) -> None:
    campaigns["campaigns"][0]["target"]["algorithm"] = "X-Wing"


def _another_scan(campaigns: Json) -> None:
    campaigns["campaigns"][0]["left"]["scans"][0]["sha256"] = "60" * 32


def _fewer_left(campaigns: Json) -> None:
    campaigns["campaigns"][0]["left"]["count"] = 0


def _an_invented_rule(rules: Json) -> None:
    rules["rules"].append(
        {
            "name": "r",
            "algorithms": ["Kyber768"],
            "keyrings": ["*"],
            "uses": ["encrypt"],
            "successor": None,
            "warn_from": None,
            "deny_from": "2027-01-01T00:00:00.000Z",
            "exceptions": [],
        }
    )


def _another_date(rules: Json) -> None:
    rules["rules"][0]["deny_from"] = "2025-02-01T00:00:00.000Z"


def _no_rule(rules: Json) -> None:
    rules["rules"].clear()


def _an_active_key_in_the_cbom(cbom: Json) -> None:
    for component in cbom["components"]:
        for entry in component.get("properties", ()):
            if entry["name"] == "pqkeep:status" and entry["value"] == "archived":
                entry["value"] = "active"


def _two_of_a_key(inventory: Json) -> None:
    keys = inventory["pages"][0]["keys"]
    used = next(place for place, key in enumerate(keys) if key["uses"])
    keys.insert(used, {**keys[used], "uses": 99})


def _another_of_more_principals(inventory: Json) -> None:
    _another_principal(inventory)
    key = next(key for key in inventory["pages"][0]["keys"] if key["principals"])
    key["more_principals"] = True


def _another_of_merged_principals(inventory: Json) -> None:
    _another_principal(inventory)
    inventory["pages"][0]["merged_principals"] = True


def _a_principal_twice(inventory: Json) -> None:
    key = next(key for key in inventory["pages"][0]["keys"] if key["principals"])
    key["principals"].insert(0, {**key["principals"][0], "uses": 99})


def _two_campaigns(campaigns: Json) -> None:
    listed = campaigns["campaigns"]
    listed.insert(0, {**listed[0], "quiet_days": 1})


def _two_sources(external: Json) -> None:
    external["sources"].insert(0, {**external["sources"][0], "moved": 1})


def _two_components(cbom: Json) -> None:
    components = cbom["components"]
    place, archived = next(
        (place, component)
        for place, component in enumerate(components)
        for entry in component.get("properties", ())
        if (entry["name"], entry["value"]) == ("pqkeep:status", "archived")
    )
    edited = json.loads(json.dumps(archived).replace('"archived"', '"active"'))
    components.insert(place, edited)


@pytest.mark.threat("edited-report")
@pytest.mark.parametrize(
    ("file", "change", "kind", "message"),
    [
        ("inventory.json", _more_uses, "wrong-count", "uses in the records"),
        ("inventory.json", _fewer_uses_by_operation, "wrong-count", "uses by"),
        ("inventory.json", _another_principal, "wrong-count", "api-key:7"),
        ("inventory.json", _an_undestroyed_key, "edited", "default/Kyber768/1"),
        ("inventory.json", _a_destroyed_key, "edited", "no record says so"),
        ("inventory.json", _no_key, "missing", "is missing; record"),
        ("inventory.json", _an_invented_key, "inserted", "no record made"),
        ("inventory.json", _another_root, "no-checkpoint", "no checkpoint signs"),
        ("counts.json", _a_moved_ciphertext, "wrong-count", "moved"),
        ("counts.json", _no_refusal, "wrong-count", "denied"),
        ("external.json", _another_owner, "edited", "the source tls"),
        ("external.json", _all_moved, "edited", "the source tls"),
        ("external.json", _no_source, "missing", "the source tls"),
        ("campaigns.json", _another_scan, "inserted", "no record has the scan of cards"),
        ("campaigns.json", _fewer_left, "wrong-number", "say 1 left, not 0"),
        ("campaigns.json", _another_target, "edited", "the campaign cards"),
        ("rules.json", _an_invented_rule, "edited", "the rules differ from"),
        ("rules.json", _another_date, "edited", "the rules differ from record"),
        ("rules.json", _no_rule, "edited", "the rules differ from record"),
        ("cbom.json", _an_active_key_in_the_cbom, "edited", "default/Kyber768/1"),
        ("inventory.json", _two_of_a_key, "inserted", "is there twice"),
        ("inventory.json", _another_of_more_principals, "wrong-count", "api-key:7"),
        ("inventory.json", _another_of_merged_principals, "wrong-count", "api-key:7"),
        ("inventory.json", _a_principal_twice, "inserted", "has a principal twice"),
        ("campaigns.json", _two_campaigns, "inserted", "cards is there twice"),
        ("external.json", _two_sources, "inserted", "tls is there twice"),
        ("cbom.json", _two_components, "inserted", "default/Kyber768/1 is there twice"),
    ],
)
def test_an_edited_claim_shows(
    report: Path, file: str, change: Callable[[Any], None], kind: str, message: str
) -> None:
    """The finding names the file and the claim, although the manifest was written again."""
    edit(report, file, change)
    findings = verify_report(report).findings
    assert any(
        Path(finding.file).name == file and finding.kind == kind and message in finding.message
        for finding in findings
    ), findings


@pytest.mark.threat("edited-report")
def test_the_text_and_the_manifest_are_checked(report: Path) -> None:
    """Another text, a missing, a new and a changed file show."""
    text = report / "report.md"
    text.write_text(text.read_text().replace("| No.", "| Yes."))
    assert ("report.md", "edited") in found(verify_report(report))
    renew(report)
    assert found(verify_report(report)) == [("report.md", "edited")]
    (report / "more.txt").write_text("")
    (report / "external.json").unlink()
    kinds = found(verify_report(report))
    assert {("more.txt", "inserted"), ("external.json", "missing")} <= set(kinds)


@pytest.mark.threat("edited-report")
@pytest.mark.parametrize("name", ["manifest.json", "inventory.json", "rules.json", "cbom.json"])
@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"pages":[{}]}', '{"rules":[{}]}'])
def test_malformed_files_are_findings(report: Path, name: str, content: str) -> None:
    """A file of any other form is a finding, and no exception."""
    (report / name).write_text(content)
    assert not verify_report(report).is_verified


def _sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)


@pytest.mark.threat("edited-report")
def test_a_report_has_plain_files_only(report: Path) -> None:
    """A link, a pipe, a folder and a file of any size are refused before anything is read."""
    strange = report / "more"
    for make in (
        partial(strange.symlink_to, "/dev/zero"),
        partial(os.mkfifo, strange),
        strange.mkdir,
        partial(_sparse_file, strange),
    ):
        make()
        with pytest.raises(OSError, match="a report") as refused:
            verify_report(report)
        assert refused.value.filename == str(strange)
        if strange.is_dir() and not strange.is_symlink():
            strange.rmdir()
        else:
            strange.unlink()


@pytest.mark.threat("edited-report")
def test_values_of_other_types_are_findings(report: Path) -> None:
    """Numbers, lists and half of a surrogate pair in place of a value raise no exception."""
    values: list[Any] = [None, [], {}, -1, "\ud800", "\x00", 10**30, True, [[]]]
    for file in ("inventory.json", "rules.json", "campaigns.json", "external.json", "cbom.json"):
        whole = (report / file).read_text()
        for number, value in enumerate(values):
            content = json.loads(whole)
            places = list(_places(content))
            holder, name = places[number * len(places) // len(values)]
            holder[name] = value
            (report / file).write_text(json.dumps(content))
            verify_report(report)
        (report / file).write_text(whole)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place of a value: its container, and its name or index there."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in items:
        yield value, name
        if isinstance(part, dict | list):
            yield from _places(part)


@pytest.mark.threat("edited-report")
def test_parts_of_two_tenants_do_not_go_together(
    report: Path, installation: Installation, tmp_path: Path
) -> None:
    """Files of another tenant's report, and a bill of materials signed by its key, show."""
    other = tmp_path / "other"
    with _prepared(installation, "other") as client:
        assert save_report(client, other, since=SINCE, signed_by="default/ML-DSA-65").is_verified
    for name in ("inventory.json", "audit.jsonl", "external.json"):
        copy = tmp_path / f"copy-{name}"
        shutil.copytree(report, copy)
        shutil.copy(other / name, copy / name)
        renew(copy)
        assert not verify_report(copy).is_verified, name
    for name in ("cbom.json.jws", "jwks.json"):
        shutil.copy(other / name, report / name)
    renew(report)
    kinds = found(verify_report(report))
    assert ("cbom.json.jws", "bad-signature") in kinds
    assert ("cbom.json.jws", "edited") in kinds


@pytest.mark.threat("edited-report")
def test_a_newer_checkpoint_of_ones_own_shows_an_old_report(
    report: Path, saved: Path, installation: Installation, tmp_path: Path
) -> None:
    """With a checkpoint that was kept elsewhere, a log that lost records does not verify."""
    keys = tmp_path / "keys.json"
    keys.write_text((saved / "keys.jsonl").read_text())
    assert verify_report(report, keys).is_verified
    forged = tmp_path / "forged.json"
    forged.write_text(
        (saved / "keys.jsonl").read_text().replace('"public_key":"', '"public_key":"A')
    )
    assert not verify_report(report, forged).is_verified


def _packed(directory: Path, made: Path) -> ZipFile:
    """Return the beginning of a report in one file, to add members to."""
    archive = ZipFile(made, "w")
    for path in sorted(directory.iterdir()):
        archive.write(path, path.name)
    return archive


def test_a_report_in_one_file_verifies(saved: Path, tmp_path: Path) -> None:
    """The file has the result of its directory, and names itself."""
    made = tmp_path / "report.zip"
    _packed(saved, made).close()
    report = verify_report(made)
    assert report.is_verified, report.findings
    assert report.counts == json.loads((saved / "counts.json").read_text())
    assert {part.file for part in report.portions} == {f"{made}/audit.jsonl"}


@pytest.mark.threat("edited-report")
@pytest.mark.parametrize(
    ("name", "mode", "form", "message"),
    [
        ("../escaped.json", 0, ZIP_STORED, "no other names"),
        ("/escaped.json", 0, ZIP_STORED, "no other names"),
        ("..", 0, ZIP_STORED, "no other names"),
        ("a\\b", 0, ZIP_STORED, "no other names"),
        ("folder/", 0, ZIP_STORED, "no other names"),
        ("link.json", stat.S_IFLNK, ZIP_STORED, "no links"),
        ("pipe.json", stat.S_IFIFO, ZIP_STORED, "no links"),
        ("rules.json", 0, ZIP_STORED, "there twice"),
        ("RULES.json", 0, ZIP_STORED, "there twice"),
        ("bomb.json", 0, ZIP_DEFLATED, "is compressed"),
    ],
)
def test_a_report_in_one_file_has_plain_members_only(
    saved: Path, tmp_path: Path, name: str, mode: int, form: int, message: str
) -> None:
    """Any other member is refused by its name, and nothing is written."""
    made = tmp_path / "in" / "report.zip"
    made.parent.mkdir()
    member = ZipInfo(name)
    member.external_attr, member.compress_type = (mode | 0o600) << 16, form
    with _packed(saved, made) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns of a name that is there twice
        archive.writestr(member, b"{}" * 1000)
    with pytest.raises(OSError, match=message) as refused:
        verify_report(made)
    assert refused.value.filename == f"{made}/{name}"
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "report.zip"]


@pytest.mark.threat("edited-report")
def test_a_huge_a_cut_and_a_damaged_file_are_named(saved: Path, tmp_path: Path) -> None:
    """A member above the limit or larger than its file is refused; other damage is a finding."""
    made = tmp_path / "report.zip"
    with _packed(saved, made) as archive:
        rules = archive.getinfo("rules.json")
    whole = made.read_bytes()
    entry = whole.index(b"PK\x01\x02", rules.header_offset)
    place = whole.index(b"rules.json", entry) - 46 + 20
    for size, message in ((LARGEST + 1, "at most 256 MiB"), (LARGEST, "larger than the report")):
        sizes = size.to_bytes(4, "little") * 2
        made.write_bytes(whole[:place] + sizes + whole[place + 8 :])
        with pytest.raises(OSError, match=message) as refused:
            verify_report(made)
        assert refused.value.filename == f"{made}/rules.json"
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        made.write_bytes(whole[:length])
        assert found(verify_report(made)) == [("report.zip", "truncated")]
    flipped = bytearray(whole)
    flipped[rules.header_offset + 45] ^= 1
    made.write_bytes(flipped)
    assert found(verify_report(made)) == [("rules.json", "edited")]

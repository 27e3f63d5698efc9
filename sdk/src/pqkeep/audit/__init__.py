"""Verifies the audit log offline: from files alone, without the service and without its code.

    from pqkeep.audit import verify

    report = verify(["export.jsonl", "checkpoints.jsonl"], trusted_keys="keys.json")
    for finding in report.findings:
        print(finding)

docs/audit.md describes the formats, and what a verified file proves. It needs the
extra ``pqkeep[audit]``; nothing else in the client loads any cryptography.
"""

from pqkeep.audit._archive import is_archive
from pqkeep.audit._formats import MalformedError, NoJsonError, parse
from pqkeep.audit._migration import verify_report
from pqkeep.audit._verification import verify
from pqkeep.audit.report import (
    Anchor,
    Continued,
    Finding,
    Kind,
    Portion,
    ProvenRecord,
    Report,
    SigningKey,
    Witnessed,
)

__all__ = [
    "Anchor",
    "Continued",
    "Finding",
    "Kind",
    "MalformedError",
    "NoJsonError",
    "Portion",
    "ProvenRecord",
    "Report",
    "SigningKey",
    "Witnessed",
    "is_archive",
    "parse",
    "verify",
    "verify_report",
]

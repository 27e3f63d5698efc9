"""The largest results of the audit log fit into a frame."""

from uuid import UUID

import pytest

from pqkeep_keyservice.ledger.records import Row, record_text
from pqkeep_protocol.audit import MAX_PAGE, AnyAuditResult, Proof, Proofs, Records
from pqkeep_protocol.codec import Answer, encode
from pqkeep_protocol.keys import MAX_KEY_VERSION, MAX_RECORDED_NAME

LARGEST = 2**63 - 1
LAST_US = 253_402_300_799_999_999  # of the year 9999
LEVELS = 32
"""Of a tree with four billion records."""


def text(letters: int) -> str:
    """Return the longest text of some characters, in bytes."""
    return "\U0010ffff" * letters


LINE = record_text(
    Row(
        id=LARGEST,
        format=1,
        tenant_id=str(UUID(int=0)),
        number=LARGEST,
        recorded_at_us=LAST_US,
        nonce=bytes(16),
        principal=text(128),
        operation=text(32),
        algorithm=text(32),
        key_version=MAX_KEY_VERSION,
        outcome=text(32),
        request_id=text(128),
        source_address=text(64),
        policy=text(128),
        event_id=str(UUID(int=0)),
        happened_at_us=LAST_US,
        public_key_sha256=bytes(32),
        keyring_revision=MAX_KEY_VERSION,
        keyring="k" * 128,
        target=f"{'k' * 128}/{'x' * 20}/{MAX_KEY_VERSION}",
        rule="r" * MAX_RECORDED_NAME,
        campaign="c" * MAX_RECORDED_NAME,
    )
)
"""A record with the longest texts that an event or an attribution can have."""


@pytest.mark.parametrize(
    "page",
    [
        Records(lines=(LINE,) * MAX_PAGE, next=LARGEST),
        Proofs(proofs=(Proof(LINE, (bytes(32),) * LEVELS),) * MAX_PAGE),
    ],
    ids=["records", "proofs"],
)
def test_a_page_of_the_longest_records_fits_into_a_frame(page: AnyAuditResult) -> None:
    """The largest page of the longest records, with proofs, fits into a frame."""
    assert encode(Answer(2**64 - 1, page))

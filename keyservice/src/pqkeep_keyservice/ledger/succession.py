"""The record by which a log continues another: the first one after a restore from a backup.

It says, in the fields of every record:

    operation    continue-log
    request_id   the id of the log that is continued
    policy       checkpoint-SIZE-ROOT: the last checkpoint that it had signed in the backup; SIZE in
                 decimal, ROOT in hexadecimal
    key_version  the first version of the keys that are made from then on, and sign the new log

The records before it are those of the log that is continued.
"""

from uuid import UUID

from pqkeep_keyservice.ledger.merkle import EMPTY_ROOT
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.keys import INSTALLATION, KeyVersion


def succession_record(log: UUID, last: Checkpoint | None, first_version: KeyVersion) -> NewRecord:
    """Return the record that continues a log after its last checkpoint, None if it has none."""
    size, root = (0, EMPTY_ROOT) if last is None else (last.size, last.root)
    return NewRecord(
        tenant=INSTALLATION,
        principal="operator",
        operation=KeyServiceEvent.CONTINUE_LOG,
        algorithm=None,
        key_version=first_version,
        outcome=Outcome.SUCCESS,
        request_id=str(log),
        source_address="",
        policy=f"checkpoint-{size}-{root.hex()}",
    )

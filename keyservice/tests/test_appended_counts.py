"""A checkpoint's counts from memory equal the counts of the records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pqkeep_keyservice.ledger.append import MAX_RECORDS, Appended, Commit
from pqkeep_keyservice.ledger.key_usage import count_all
from pqkeep_keyservice.ledger.records import NewRecord, target_text
from pqkeep_keyservice.ledger.uses import Counting
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.audit_events import AuditEvent, KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyringName, KeyVersion, TenantId

if TYPE_CHECKING:
    from collections.abc import Callable

    from pqkeep_keyservice.storage.store import KeyStore

    Sql = Callable[..., list[Any]]

TENANTS = TenantId(uuid4()), TenantId(uuid4())
TARGETS = (
    None,
    target_text(KeyringName("default"), Algorithm.X_WING, KeyVersion(2)),
    target_text(KeyringName("other"), Algorithm.ML_KEM_768, KeyVersion(1)),
)
RECORDS = st.builds(
    NewRecord,
    tenant=st.sampled_from(TENANTS),
    principal=st.sampled_from(["p", "q", "r"]),
    operation=st.sampled_from([*Operation, *AuditEvent, *KeyServiceEvent]),
    algorithm=st.sampled_from([Algorithm.ML_KEM_768, Algorithm.X_WING]),
    key_version=st.sampled_from([None, 1, 2]),
    outcome=st.sampled_from([*Outcome, *ErrorKind, "ERR_POLICY_001"]),
    request_id=st.just("r"),
    source_address=st.just("a"),
    policy=st.just("y"),
    event_id=st.one_of(st.none(), st.uuids().map(str)),
    happened_at_us=st.none(),
    public_key_sha256=st.none(),
    keyring_revision=st.none(),
    keyring=st.sampled_from([None, KeyringName("default"), KeyringName("other")]),
    target=st.sampled_from(TARGETS),
    rule=st.sampled_from([None, "cnsa-2.0"]),
    campaign=st.sampled_from([None, "to-x-wing"]),
)
TABLES = "key_usage", "key_totals", "uses", "use_principals", "operation_counts", "campaign_moves"


def counted(sql: Sql) -> list[Counter[tuple[Any, ...]]]:
    """Return the content of the tables of counts."""
    return [Counter(tuple(row) for row in sql(f"SELECT * FROM {table}")) for table in TABLES]  # noqa: S608


async def save_checkpoint(store: KeyStore) -> None:
    """Store a checkpoint of the whole log, with an invalid signature."""
    log, frontier = await store.frontier()
    checkpoint = Checkpoint(
        log_id=log,
        size=frontier.size,
        root=frontier.root(),
        at_us=1,
        algorithm=Algorithm.ML_DSA_65,
        key_version=KeyVersion(1),
        signature=b"",
    )
    await store.add_checkpoint(checkpoint)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
@given(commits=st.lists(st.lists(RECORDS, max_size=6), min_size=1, max_size=5), data=st.data())
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_counts_from_memory_are_those_of_the_records(
    store: KeyStore, sql: Sql, commits: list[list[NewRecord]], data: st.DataObject
) -> None:
    """After any records and checkpoints, the tables equal a scan of the records."""
    await store.check()
    for records in commits:
        await store.commit([(record, None) for record in records])
        if data.draw(st.booleans()):
            await save_checkpoint(store)
    await save_checkpoint(store)
    from_memory = counted(sql)
    for table in TABLES:
        sql(f"DELETE FROM {table}")  # noqa: S608
    sql("UPDATE audit_log SET counted_until = 0")
    await store.database.write(count_all, Counting())
    assert from_memory == counted(sql)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_what_is_not_in_memory_is_read(store: KeyStore, sealer: Any, sql: Sql) -> None:
    """Records that another store appended are counted too, and only once."""
    record = NewRecord(
        TENANTS[0], "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y",
        keyring=KeyringName("default"),
    )  # fmt: skip
    await store.check()
    await store.commit([(record, None)] * 3)
    again = type(store)(store.database, sealer)
    await again.check()
    await again.commit([(record, None)] * 2)
    for _ in range(2):
        await save_checkpoint(again)
        assert [row[0] for row in sql("SELECT uses FROM key_usage")] == [5]
    await again.commit([(record, None)])
    await save_checkpoint(again)
    assert [row[0] for row in sql("SELECT uses FROM key_usage")] == [6]


def test_only_whole_stretches_are_known() -> None:
    """Commits are returned only for exactly the records that they cover."""
    appended = Appended(10)
    commits = [Commit(size, size, {}) for size in (12, 15, 20)]
    for commit in commits:
        appended.add(commit)
    assert appended.between(10, 20) == commits
    assert appended.between(12, 15) == commits[1:2]
    assert appended.between(20, 20) == []
    for begin, end in ((9, 20), (11, 20), (10, 14), (10, 21)):
        assert appended.between(begin, end) is None
    appended.forget(15)
    assert appended.between(15, 20) == commits[2:]
    assert appended.between(12, 20) is None


def test_memory_is_bounded() -> None:
    """Without a checkpoint, the oldest commits are dropped, and later read again."""
    appended = Appended(0)
    for size in range(1, MAX_RECORDS + 10):
        appended.add(Commit(size, size, {}))
    assert appended.between(0, MAX_RECORDS + 9) is None
    assert len(appended.between(9, MAX_RECORDS + 9) or []) == MAX_RECORDS

"""Executes requests about the audit log. Reading it adds no record."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TypeVar, TypeVarTuple, assert_never

import msgspec
import sqlalchemy as sa

from pqkeep_keyservice import clock
from pqkeep_keyservice.audit import checkpoint_signer
from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.audit.note_signer import NoteSigner
from pqkeep_keyservice.audit.witnesses import Witnesses
from pqkeep_keyservice.keys.changes import CommitOutcome
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger import checkpoints, search
from pqkeep_keyservice.ledger.campaigns import find_migration
from pqkeep_keyservice.ledger.evidence import find_evidence, statement_text
from pqkeep_keyservice.ledger.key_usage import (
    find_key_usage,
    find_operation_counts,
    list_key_usage,
    preview_rules,
)
from pqkeep_keyservice.ledger.merkle import (
    DamagedLogError,
    frontier,
    has_format,
    log_size,
    subtrees,
)
from pqkeep_keyservice.ledger.records import (
    FORMATS,
    Formats,
    NewRecord,
    Row,
    event_record,
    record_text,
)
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS
from pqkeep_keyservice.ledger.search import Page
from pqkeep_keyservice.live.key_material import KeyCache, KeyringCache
from pqkeep_keyservice.live.rules import RuleCache
from pqkeep_keyservice.live.tenant_gate import TenantGate
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.inventory import find_inventory, find_uses, survey_keys
from pqkeep_keyservice.storage.keyrings import find_keyring_names
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.audit import (
    MAX_SURVEYED,
    AnyAuditRequest,
    AnyAuditResult,
    AuditKey,
    AuditKeys,
    Checkpoints,
    Consistency,
    CountOperations,
    CountRecords,
    DeniedUses,
    EventRefusal,
    ExportRecords,
    FindEvidence,
    FindKeyrings,
    FoundEvidence,
    FoundKeyrings,
    GetMigration,
    GetNote,
    GetSubtrees,
    GetUsage,
    Inventory,
    InventoryKey,
    KeySurvey,
    ListAuditKeys,
    ListCheckpoints,
    ListInventory,
    ListRecords,
    ListUsage,
    ListUses,
    ListWitnesses,
    NewCheckpoint,
    Note,
    PreviewRules,
    Proof,
    Proofs,
    ProveConsistency,
    ProveRecords,
    ProveSuccessions,
    Recorded,
    RecordEvents,
    Records,
    RefusedEvent,
    Reported,
    ReportSubmission,
    SignCheckpoint,
    Submissions,
    Subtrees,
    SurveyKeys,
    TakeSubmissions,
    Usage,
    WitnessStates,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.fair_queue import FairQueue, QueueFullError, QueueTimeoutError
from pqkeep_protocol.keyrings import AGREED_LABELS
from pqkeep_protocol.keys import INSTALLATION, KeyStatus, TenantId
from pqkeep_protocol.rules import Rule
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

SEARCHES = 2
"""Searches that run at once, at most one per tenant."""
MAX_WAITING = 64
"""Searches that may wait, over all tenants; see FairQueue."""
EVIDENCE_SECONDS = 1.0
"""The time after which a statement is signed about the records that were read."""
WAIT_SECONDS = 10.0
"""The time after which the gateway has given up."""


class AuditService:
    """Records events, lists and proves records, and signs checkpoints."""

    def __init__(  # noqa: PLR0913, PLR0917 - one part for each kind of request
        self,
        store: KeyStore,
        key_cache: KeyCache,
        keyring_cache: KeyringCache,
        log: AuditLog,
        checkpoint_signer: CheckpointSigner,
        note_signer: NoteSigner,
        witnesses: Witnesses,
        gate: TenantGate,
        rules: RuleCache,
    ) -> None:
        self._store = store
        self._key_cache = key_cache
        self._keyring_cache = keyring_cache
        self._log = log
        self._checkpoint_signer = checkpoint_signer
        self._note_signer = note_signer
        self._witnesses = witnesses
        self._gate = gate
        self._rules = rules
        self._searches = FairQueue[TenantId, int](
            range(SEARCHES), per_subject=1, max_waiting=MAX_WAITING
        )

    @property
    def waiting_searches(self) -> int:
        """The number of searches that wait for their turn."""
        return self._searches.waiting

    async def respond(self, request: AnyAuditRequest) -> AnyAuditResult:
        """Return the result of a request. Raises KeyServiceError."""
        try:
            return await self._answer(request)
        except KeyServiceError:
            raise
        except DamagedLogError:
            kind = ErrorKind.RECORD_NOT_FOUND
        except DatabaseUnavailableError:
            kind = ErrorKind.UNAVAILABLE
        except Exception:  # noqa: BLE001 - an unexpected error needs a response too
            _LOG.exception("request failed", request=type(request).__name__)
            kind = ErrorKind.INTERNAL
        raise KeyServiceError(kind)

    async def _answer(  # noqa: C901, PLR0911, PLR0912 - one flat table, checked by assert_never
        self, request: AnyAuditRequest
    ) -> AnyAuditResult:
        match request:
            case RecordEvents():
                return await self._record(request)
            case ListRecords():
                page = await self._search(request.tenant, search.list_records, request)
                return Records(lines=page.lines, next=page.next)
            case CountRecords():
                return await self._search(request.tenant, search.count_records, request)
            case FindEvidence():
                return await self._evidence(request)
            case ProveRecords():
                proofs = await self._search(request.tenant, search.prove_records, request)
                return Proofs(proofs=proofs)
            case ProveConsistency():
                path = await self._store.database.query(search.prove_consistency, request)
                return Consistency(path=path)
            case ProveSuccessions():
                proofs = await self._store.database.query(search.prove_successions, request.size)
                return Proofs(proofs=proofs)
            case ExportRecords():
                page = await self._search(request.tenant, export_records, request)
                return Records(lines=page.lines, next=page.next)
            case GetSubtrees():
                return Subtrees(hashes=await self._store.database.query(subtrees_of, request))
            case ListCheckpoints():
                return Checkpoints(
                    checkpoints=await self._store.database.query(
                        checkpoints.list_checkpoints, request
                    )
                )
            case SignCheckpoint():
                signing = self._checkpoint_signer.sign(request.algorithm, now=request.now)
                return NewCheckpoint(checkpoint=await signing)
            case GetNote():
                return Note(text=await self._note_signer.note(request.covering))
            case TakeSubmissions():
                return Submissions(submissions=await self._witnesses.take())
            case ReportSubmission():
                await self._witnesses.report(request)
                return Reported()
            case ListWitnesses():
                return WitnessStates(witnesses=await self._witnesses.find_states())
            case ListAuditKeys():
                return await self._keys()
            case GetUsage():
                return await self._usage(request)
            case ListUsage():
                await self._gate.require(request.tenant)
                await self._require_keyring(KeyringId(request.tenant, request.keyring))
                return await self._search(request.tenant, list_key_usage, request)
            case PreviewRules():
                await self._gate.require(request.tenant)
                return await self._search(request.tenant, preview_rules, request, clock.now())
            case SurveyKeys():
                return await self._survey(request)
            case GetMigration():
                return await self._search(request.tenant, find_migration, request)
            case ListInventory():
                return await self._inventory(request)
            case ListUses():
                await self._gate.require(request.tenant)
                uses = await self._search(request.tenant, find_uses, request)
                if uses is None:
                    raise KeyServiceError(ErrorKind.RECORD_NOT_FOUND)
                return uses
            case FindKeyrings():
                names = await self._search(request.tenant, find_keyring_names, request)
                return FoundKeyrings(names=names)
            case CountOperations():
                return await self._search(request.tenant, find_operation_counts, request)
            case _:
                assert_never(request)

    async def _search(
        self,
        tenant: TenantId,
        function: Callable[[sa.Connection, *Arguments], T],
        *arguments: *Arguments,
    ) -> T:
        """Run a query that may read many records. Each tenant has one at a time."""
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        try:
            search = await self._searches.acquire(tenant, deadline)
        except QueueFullError:
            raise KeyServiceError(ErrorKind.OVERLOADED) from None
        except QueueTimeoutError:
            raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
        try:
            return await self._store.database.query(function, *arguments)
        finally:
            self._searches.release(tenant, search)

    async def _evidence(self, request: FindEvidence) -> FoundEvidence:
        """State which records match a query, and sign the statement.

        It covers as many records as can be read in EVIDENCE_SECONDS.
        """
        ids: list[int] = []
        proofs: list[Proof] = []
        part = request
        until = asyncio.get_running_loop().time() + EVIDENCE_SECONDS
        while True:
            page = await self._search(request.tenant, find_evidence, part)
            ids.extend(page.ids)
            proofs.extend(page.proofs)
            left = request.limit - len(ids)
            if (
                not left
                or page.through == request.size
                or until < asyncio.get_running_loop().time()
            ):
                break
            part = msgspec.structs.replace(part, after=page.through, limit=left)
        statement = statement_text(request, page.checkpoint, ids, page.through)
        version, signature = await self._checkpoint_signer.sign_statement(statement)
        return FoundEvidence(
            statement=statement,
            key_version=version,
            signature=signature,
            proofs=tuple(proofs),
            through=page.through,
        )

    async def _record(self, request: RecordEvents) -> Recorded:
        newest_us, now_us = self._store.recorded_at_us, clock.now_us()
        records: list[NewRecord] = []
        refused: list[RefusedEvent] = []
        for event in request.events:
            record = event_record(event, newest_us, now_us)
            if isinstance(record, EventRefusal):
                refused.append(RefusedEvent(event.id, record))
            else:
                records.append(record)
        outcomes = await asyncio.gather(*map(self._log.commit, records))
        if any(outcome is not CommitOutcome.DURABLE for outcome in outcomes):
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        return Recorded(refused=tuple(refused))

    async def _keys(self) -> AuditKeys:
        keys = [
            await self._key_cache.get(KeyName(INSTALLATION, algorithm))
            for algorithm in checkpoint_signer.ALGORITHMS
        ]
        return AuditKeys(
            log_id=await self._store.database.query(checkpoints.log_id),
            note_key=await self._note_signer.verifier_key(),
            keys=tuple(
                AuditKey(versions.algorithm, entry.info.version, entry.info.public_key)
                for versions in keys
                for entry in versions.entries
            ),
        )

    async def _require_keyring(self, keyring: KeyringId) -> None:
        """Raise KEYRING_NOT_FOUND if the keyring does not exist or is deleted."""
        (await self._keyring_cache.get(keyring)).require_exists()

    async def _inventory(self, request: ListInventory) -> Inventory:
        """Return a page of key versions as they are now, with the counted uses."""
        await self._gate.require(request.tenant)
        page = await self._search(request.tenant, find_inventory, request)
        if page is None:
            raise KeyServiceError(ErrorKind.RECORD_NOT_FOUND)
        rules: tuple[Rule, ...] | None = None
        with suppress(DamagedKeyError):  # logged where the rules are enforced
            rules = await self._rules.list(request.tenant)
        keys: list[InventoryKey] = []
        for name, version in page.versions:
            entry = (await self._key_cache.get(name)).entry(version)
            keyring = await self._keyring_cache.get(KeyringId(name.tenant, name.keyring))
            place = name.keyring, name.algorithm.value, version
            principals = page.principals.get(place, [])
            info = entry.info
            keys.append(
                InventoryKey(
                    keyring=name.keyring,
                    algorithm=name.algorithm,
                    version=version,
                    status=info.status,
                    created_at=info.created_at,
                    retired_at=entry.retired_at,
                    archive_at=info.archive_at,
                    imported=info.imported,
                    disabled_until=info.disabled_until,
                    rotation_at=_rotation_at(keyring, entry),
                    has_private_key=entry.sealed is not None,
                    fingerprint=(
                        info.public_key
                        if ALGORITHMS[info.algorithm].is_symmetric
                        else sha256(info.public_key).digest()
                    ),
                    is_keyring_deleted=keyring.is_deleted,
                    labels={
                        label: value
                        for label, value in keyring.info.labels.items()
                        if label in AGREED_LABELS
                    },
                    operations=tuple(page.operations.get(place, ())),
                    principals=tuple(principals[: request.principals]),
                    has_more_principals=len(principals) > request.principals,
                )
            )
        return Inventory(
            counted=page.counted,
            since_us=page.since_us,
            keys=tuple(keys),
            total=page.total,
            has_more=page.has_more,
            unattributed=page.unattributed,
            has_other_principals=page.has_other_principals,
            rules=rules,
        )

    async def _survey(self, request: SurveyKeys) -> KeySurvey:
        """Return the keys that need attention, and the uses that rules will deny soon."""
        await self._gate.require(request.tenant)
        now = clock.now()
        survey = await self._search(request.tenant, survey_keys, request, now)
        until = now + timedelta(days=request.denied_days)
        try:
            rules = await self._rules.list(request.tenant)
        except DamagedKeyError:  # logged where the rules are enforced
            rules = ()
        denied: list[DeniedUses] = []
        for rule in rules:
            if rule.deny_from is not None and now < rule.deny_from <= until:
                preview = PreviewRules(tenant=request.tenant, rules=(rule,))
                found = await self._search(request.tenant, preview_rules, preview, now)
                uses = sum(use.uses for use in found.uses)
                if uses:
                    denied.append(DeniedUses(rule.name, rule.deny_from, uses))
        denied.sort(key=lambda uses: (uses.deny_from, uses.rule))
        return KeySurvey(
            old=survey.old,
            unused=survey.unused,
            scheduled=survey.scheduled,
            denied=tuple(denied[:MAX_SURVEYED]),
        )

    async def _usage(self, request: GetUsage) -> Usage:
        await self._gate.require(request.tenant)
        await self._require_keyring(KeyringId(request.tenant, request.keyring))
        name = KeyName(request.tenant, request.algorithm, request.keyring)
        versions = await self._key_cache.get(name)
        versions.entry(request.version)
        uses, last = await self._store.database.query(find_key_usage, request)
        return Usage(uses=uses, last_used_us=last)


def _rotation_at(keyring: Keyring, entry: KeyEntry) -> datetime | None:
    """Return when a version is rotated automatically, or None."""
    info, days = entry.info, keyring.info.rotation_days
    is_rotated = (
        info.status is KeyStatus.ACTIVE
        and info.archive_at is None
        and not keyring.is_deleted
        and not ALGORITHMS[info.algorithm].is_legacy
    )
    return info.created_at + timedelta(days=days) if days and is_rotated else None


MAX_BYTES = 1024 * 1024
"""Bytes of texts after which a message is full: a quarter of a frame. The last text may exceed
it."""


def export_records(
    connection: sa.Connection, request: ExportRecords, formats: Formats = FORMATS
) -> Page:
    """Return the next page of records. Raises DamagedLogError if the log is too small."""
    if request.size > log_size(connection):
        raise DamagedLogError
    id_ = AUDIT_RECORDS.c.id
    query = sa.select(AUDIT_RECORDS).where(
        has_format(formats), id_ > request.after, id_ <= request.size
    )
    lines: list[bytes] = []
    length, last = 0, request.size
    rows = connection.execute(query.order_by(id_).limit(request.limit)).all()
    for row in map(Row._make, rows):
        lines.append(record_text(row, formats))
        length, last = length + len(lines[-1]), row.id
        if length >= MAX_BYTES:
            break
    return Page(tuple(lines), last if last < request.size else None)


def subtrees_of(
    connection: sa.Connection, request: GetSubtrees, formats: Formats = FORMATS
) -> tuple[bytes, ...]:
    """Return the complete subtrees of the tree of ``size``. Raises DamagedLogError."""
    if request.size > log_size(connection):
        raise DamagedLogError
    return frontier(request.size, subtrees(connection, formats)).hashes

"""Subscriptions, invoices and applied notices in SQL."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.entitlements import Subscription, TenantStatus, Tier
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import (
    insert_if_absent,
    microseconds,
    read_transaction,
    time_of,
    transaction,
)
from pqkeep_gateway.storage.idempotency import add_idempotency_key, find_idempotency_key
from pqkeep_gateway.storage.schema import BILLING_NOTICES, CONTRACTS, INVOICES, TENANTS
from pqkeep_gateway.storage.tenant_status import change_under_mac, lock_tenant
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Idempotency


class ContractStatus(StrEnum):
    """Whether the tier is in force."""

    ACTIVE = "active"
    UNPAID = "unpaid"
    """The contract is not in force until it is paid."""
    ENDED = "ended"
    """The contract has ended. This status is final."""


@dataclass(frozen=True, slots=True)
class Contract:
    """One subscription. A tenant has at most one that has not ended."""

    id: UUID
    tenant: TenantId
    tier: Tier
    status: ContractStatus
    started_at: datetime
    period_start: datetime
    period_end: datetime
    as_of: datetime
    """The time of the last change or notice."""
    price_cents: int = 0
    """The price of this period; 0 with an external provider."""
    cancel_at_period_end: bool = False
    external_id: str | None = None
    """An external provider's identifier; None for our own contracts."""
    revision: int = 1

    @property
    def subscription(self) -> Subscription:
        """The state of the tenant's subscription."""
        is_in_force = self.status is ContractStatus.ACTIVE
        return Subscription.ACTIVE if is_in_force else Subscription.ENDED


@dataclass(frozen=True, slots=True)
class Invoice:
    """An amount owed for a period; negative: a credit."""

    id: UUID
    tenant: TenantId
    tier: Tier
    amount_cents: int
    currency: str
    period_start: datetime
    period_end: datetime
    created_at: datetime
    external_id: str | None = None
    """An external provider's identifier."""


@dataclass(frozen=True, slots=True)
class Change:
    """The next value of a contract, its audit event and its invoice."""

    old: Contract | None
    new: Contract
    operation: AuditEvent
    invoice: Invoice | None = None


class BilledElsewhereError(Exception):
    """The contract belongs to an external provider, and cannot be changed here."""


@dataclass(frozen=True, slots=True)
class BillingResult:
    """The result of a checkout or a cancellation."""

    contract: Contract | None
    """The contract in force now."""
    is_pending: bool = False
    """Whether the payment provider must confirm the change first."""
    checkout_url: str | None = None
    """The customer's payment page."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result for repetitions of the same Idempotency-Key."""

    idempotency: Idempotency
    result: BillingResult
    at: datetime


class ContractChangedError(Exception):
    """Another request changed the contract first; repeat with its new value."""


class DuplicateNoticeError(Exception):
    """The notice or its invoice was already applied."""


NOTICE_LIFETIME = timedelta(days=90)
"""The time for which a notice's identifier is stored. Providers repeat notices far sooner."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(BillingResult)


class SqlBilling:
    """Contracts and invoices in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find_running(self, tenant: TenantId) -> Contract | None:
        """Return a tenant's contract that has not ended, or None."""
        return await self._find(sa.and_(CONTRACTS.c.tenant_id == tenant, IS_RUNNING))

    async def find_by_external_id(self, external_id: str) -> Contract | None:
        """Return an external provider's contract, ended or not."""
        return await self._find(CONTRACTS.c.external_id == external_id)

    async def list_due(self, now: datetime) -> Sequence[Contract]:
        """Return our own contracts with an expired period.

        A contract of a suspended tenant is due only if it is cancelled.
        """
        is_active = TENANTS.c.status == TenantStatus.ACTIVE
        query = (
            sa.select(CONTRACTS)
            .join(TENANTS, TENANTS.c.id == CONTRACTS.c.tenant_id)
            .where(
                CONTRACTS.c.period_end_us <= microseconds(now),
                CONTRACTS.c.external_id.is_(None),
                IS_RUNNING,
                sa.or_(CONTRACTS.c.cancel_at_period_end, is_active),
            )
        )
        async with read_transaction(self._engine) as connection:
            return [contract_of(row) for row in await connection.execute(query)]

    async def save_change(
        self,
        change: Change,
        audit_event: Event,
        stored: StoredResult | None = None,
        notice: str | None = None,
    ) -> None:
        """Replace a contract, put its tier into force, and add its invoice.

        Raises ContractChangedError, DuplicateNoticeError.
        """
        new = change.new
        try:
            async with transaction(self._engine) as connection:
                now = time_of(audit_event.at_us)
                if notice is not None:
                    await _add_notice(connection, notice, now)
                await save_contract(connection, change.old, new)
                if change.old is not None or new.status is not ContractStatus.ENDED:
                    await _put_into_force(connection, new, now)
                if change.invoice is not None:
                    await connection.execute(sa.insert(INVOICES), _invoice_row(change.invoice))
                await _add_result(connection, stored, audit_event.tenant)
                await add_audit_event(connection, audit_event)
        except sa.exc.IntegrityError:
            raise ContractChangedError from None

    async def save_result(self, stored: StoredResult | None, audit_event: Event) -> None:
        """Store a result, unless its Idempotency-Key already has one."""
        try:
            async with transaction(self._engine) as connection:
                await _add_result(connection, stored, audit_event.tenant)
                await add_audit_event(connection, audit_event)
        except sa.exc.IntegrityError:
            return  # the same request was sent twice concurrently

    async def find_result(
        self, idempotency: Idempotency | None, now: datetime
    ) -> BillingResult | None:
        """Return the result of an earlier request. Raises IdempotencyKeyReusedError."""
        if idempotency is None:
            return None
        async with read_transaction(self._engine) as connection:
            row = await find_idempotency_key(connection, idempotency, now)
        return None if row is None else _DECODER.decode(row.result)

    async def add_invoice(self, invoice: Invoice, audit_event: Event, notice: str) -> None:
        """Add an external provider's invoice. Raises DuplicateNoticeError."""
        try:
            async with transaction(self._engine) as connection:
                await _add_notice(connection, notice, invoice.created_at)
                await connection.execute(sa.insert(INVOICES), _invoice_row(invoice))
                await add_audit_event(connection, audit_event)
        except sa.exc.IntegrityError:
            raise DuplicateNoticeError from None

    async def list_invoices(self, tenant: TenantId) -> tuple[Invoice, ...]:
        """Return a tenant's invoices, newest first."""
        query = (
            sa.select(INVOICES)
            .where(INVOICES.c.tenant_id == tenant)
            .order_by(INVOICES.c.created_at_us.desc(), INVOICES.c.id)
        )
        async with read_transaction(self._engine) as connection:
            return tuple(_invoice(row) for row in await connection.execute(query))

    async def _find(self, condition: sa.ColumnElement[bool]) -> Contract | None:
        async with read_transaction(self._engine) as connection:
            query = sa.select(CONTRACTS).where(condition)
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else contract_of(row)


async def _add_notice(connection: AsyncConnection, notice: str, now: datetime) -> None:
    """Store a notice's identifier, and remove expired ones. Raises DuplicateNoticeError."""
    row = {"id": notice, "received_at_us": microseconds(now)}
    if not await insert_if_absent(connection, BILLING_NOTICES, row):
        raise DuplicateNoticeError
    is_expired = BILLING_NOTICES.c.received_at_us <= microseconds(now - NOTICE_LIFETIME)
    await connection.execute(sa.delete(BILLING_NOTICES).where(is_expired))


async def _put_into_force(connection: AsyncConnection, contract: Contract, now: datetime) -> None:
    changes = {
        "tier": contract.tier,
        "subscription": contract.subscription,
        "updated_at_us": microseconds(now),
    }
    await change_under_mac(connection, contract.tenant, changes)


async def _add_result(
    connection: AsyncConnection, stored: StoredResult | None, tenant: TenantId
) -> None:
    if stored is not None:
        result = _ENCODER.encode(stored.result)
        await add_idempotency_key(
            connection, stored.idempotency, stored.at, tenant_id=tenant, result=result
        )


def _invoice_row(invoice: Invoice) -> dict[str, object]:
    return {
        "id": invoice.id,
        "tenant_id": invoice.tenant,
        "tier": invoice.tier,
        "amount_cents": invoice.amount_cents,
        "currency": invoice.currency,
        "period_start_us": microseconds(invoice.period_start),
        "period_end_us": microseconds(invoice.period_end),
        "created_at_us": microseconds(invoice.created_at),
        "external_id": invoice.external_id,
    }


def _invoice(row: sa.Row[Any]) -> Invoice:
    return Invoice(
        id=row.id,
        tenant=TenantId(row.tenant_id),
        tier=Tier(row.tier),
        amount_cents=row.amount_cents,
        currency=row.currency,
        period_start=time_of(row.period_start_us),
        period_end=time_of(row.period_end_us),
        created_at=time_of(row.created_at_us),
        external_id=row.external_id,
    )


IS_RUNNING = CONTRACTS.c.status != ContractStatus.ENDED


async def save_contract(connection: AsyncConnection, old: Contract | None, new: Contract) -> None:
    """Replace a contract. Raises ContractChangedError.

    If another contract began meanwhile, the insert raises sqlalchemy.exc.IntegrityError.
    """
    await lock_tenant(connection, new.tenant)
    if old is not None and old.id == new.id:
        await _update(connection, old, _row(new))
        return
    if old is not None:
        await _update(connection, old, {"status": ContractStatus.ENDED})
    await connection.execute(sa.insert(CONTRACTS), _row(new))


async def end_contract(connection: AsyncConnection, tenant: TenantId) -> None:
    """End a tenant's running contract, if there is one."""
    await lock_tenant(connection, tenant)
    end = sa.update(CONTRACTS).where(CONTRACTS.c.tenant_id == tenant, IS_RUNNING)
    await connection.execute(
        end.values(status=ContractStatus.ENDED, revision=CONTRACTS.c.revision + 1)
    )


def contract_of(row: sa.Row[Any]) -> Contract:
    """Return the contract in a row of CONTRACTS."""
    return Contract(
        id=row.id,
        tenant=TenantId(row.tenant_id),
        tier=Tier(row.tier),
        status=ContractStatus(row.status),
        started_at=time_of(row.started_at_us),
        period_start=time_of(row.period_start_us),
        period_end=time_of(row.period_end_us),
        as_of=time_of(row.as_of_us),
        price_cents=row.price_cents,
        cancel_at_period_end=row.cancel_at_period_end,
        external_id=row.external_id,
        revision=row.revision,
    )


def _row(contract: Contract) -> dict[str, object]:
    return {
        "id": contract.id,
        "tenant_id": contract.tenant,
        "tier": contract.tier,
        "status": contract.status,
        "started_at_us": microseconds(contract.started_at),
        "period_start_us": microseconds(contract.period_start),
        "period_end_us": microseconds(contract.period_end),
        "as_of_us": microseconds(contract.as_of),
        "price_cents": contract.price_cents,
        "cancel_at_period_end": contract.cancel_at_period_end,
        "external_id": contract.external_id,
        "revision": contract.revision,
    }


async def _update(connection: AsyncConnection, old: Contract, values: dict[str, object]) -> None:
    is_unchanged = sa.and_(CONTRACTS.c.id == old.id, CONTRACTS.c.revision == old.revision)
    update = sa.update(CONTRACTS).where(is_unchanged)
    change = update.values({"revision": old.revision + 1, **values})
    if (await connection.execute(change)).rowcount == 0:
        raise ContractChangedError

"""Billing in SQL."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.storage.contracts import RUNNING, contract_of, put_contract
from pqkeep_gateway.storage.database import add_unless_there, microseconds, time_of, transaction
from pqkeep_gateway.storage.idempotency import find_earlier, remember
from pqkeep_gateway.storage.outbox import put
from pqkeep_gateway.storage.schema import BILLING_NOTICES, CONTRACTS, INVOICES, TENANTS
from pqkeep_gateway.tenancy.billing import Answer, ContractChangedError, DuplicateNoticeError, Kept
from pqkeep_gateway.tenancy.contracts import Change, Contract, ContractStatus, Invoice
from pqkeep_gateway.tenancy.tenants import TenantStatus
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Idempotency

REMEMBERED = timedelta(days=90)
"""How long a notice is known again: far longer than any provider repeats one."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Answer)


class SqlBilling:
    """A BillingStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def running(self, tenant: TenantId) -> Contract | None:
        """Return the tenant's contract that has not ended."""
        return await self._one(sa.and_(CONTRACTS.c.tenant_id == tenant, RUNNING))

    async def find(self, external_id: str) -> Contract | None:
        """Return a contract that is billed elsewhere, ended or not."""
        return await self._one(CONTRACTS.c.external_id == external_id)

    async def due(self, now: datetime) -> Sequence[Contract]:
        """Return what is billed here and has come to the end of its period."""
        goes_on = TENANTS.c.status == TenantStatus.ACTIVE
        query = (
            sa.select(CONTRACTS)
            .join(TENANTS, TENANTS.c.id == CONTRACTS.c.tenant_id)
            .where(
                CONTRACTS.c.period_end_us <= microseconds(now),
                CONTRACTS.c.external_id.is_(None),
                RUNNING,
                sa.or_(CONTRACTS.c.cancel_at_period_end, goes_on),
            )
        )
        async with transaction(self._engine) as connection:
            return [contract_of(row) for row in await connection.execute(query)]

    async def apply(
        self, change: Change, made: Event, kept: Kept | None = None, notice: str | None = None
    ) -> None:
        """Put a contract in its old one's place, its tier in force, and keep the line and the event.

        Raises ContractChangedError, DuplicateNoticeError.
        """
        new = change.new
        try:
            async with transaction(self._engine) as connection:
                now = time_of(made.at_us)
                await _hear(connection, notice, now)
                await put_contract(connection, change.old, new)
                if change.old is not None or new.status is not ContractStatus.ENDED:
                    await _put_in_force(connection, new, now)
                if change.invoice is not None:
                    await connection.execute(sa.insert(INVOICES), _invoice_row(change.invoice))
                await _keep(connection, kept, made)
                await put(connection, (made,))
        except sa.exc.IntegrityError:
            raise ContractChangedError from None

    async def keep(self, kept: Kept | None, made: Event) -> None:
        """Keep an answer, unless there is one to its key, and the event."""
        try:
            async with transaction(self._engine) as connection:
                await _keep(connection, kept, made)
                await put(connection, (made,))
        except sa.exc.IntegrityError:
            return  # the same request came twice at once

    async def earlier(self, idempotency: Idempotency | None, now: datetime) -> Answer | None:
        """Return what was answered to an Idempotency-Key. Raises IdempotencyKeyReusedError."""
        if idempotency is None:
            return None
        async with transaction(self._engine) as connection:
            row = await find_earlier(connection, idempotency, now)
        return None if row is None else _DECODER.decode(row.answer)

    async def add_invoice(self, invoice: Invoice, made: Event, notice: str) -> None:
        """Keep a line that was billed elsewhere. Raises DuplicateNoticeError."""
        try:
            async with transaction(self._engine) as connection:
                await _hear(connection, notice, invoice.created_at)
                await connection.execute(sa.insert(INVOICES), _invoice_row(invoice))
                await put(connection, (made,))
        except sa.exc.IntegrityError:
            raise DuplicateNoticeError from None

    async def invoices(self, tenant: TenantId) -> tuple[Invoice, ...]:
        """Return a tenant's lines, the newest first."""
        query = (
            sa.select(INVOICES)
            .where(INVOICES.c.tenant_id == tenant)
            .order_by(INVOICES.c.created_at_us.desc(), INVOICES.c.id)
        )
        async with transaction(self._engine) as connection:
            return tuple(_invoice(row) for row in await connection.execute(query))

    async def _one(self, which: sa.ColumnElement[bool]) -> Contract | None:
        async with transaction(self._engine) as connection:
            row = (await connection.execute(sa.select(CONTRACTS).where(which))).one_or_none()
        return None if row is None else contract_of(row)


async def _hear(connection: AsyncConnection, notice: str | None, now: datetime) -> None:
    """Remember a notice, and forget what is older than any that can come again."""
    if notice is None:
        return
    row = {"id": notice, "heard_at_us": microseconds(now)}
    if not await add_unless_there(connection, BILLING_NOTICES, row):
        raise DuplicateNoticeError
    old = BILLING_NOTICES.c.heard_at_us <= microseconds(now - REMEMBERED)
    await connection.execute(sa.delete(BILLING_NOTICES).where(old))


async def _put_in_force(connection: AsyncConnection, contract: Contract, now: datetime) -> None:
    await connection.execute(
        sa.update(TENANTS)
        .where(TENANTS.c.id == contract.tenant)
        .values(
            tier=contract.tier,
            subscription=contract.subscription,
            updated_at_us=microseconds(now),
        )
    )


async def _keep(connection: AsyncConnection, kept: Kept | None, made: Event) -> None:
    if kept is not None:
        answer = _ENCODER.encode(kept.answer)
        await remember(connection, kept.idempotency, kept.at, tenant_id=made.tenant, answer=answer)


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

"""Last uses of credentials in SQL: columns of the credentials' tables, and networks of API keys.

A network that is new for an API key opens a notice. There is no notice on the API key's first day,
and none after MAX_NETWORKS networks: then it is not bound to a place.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.last_uses import ApiKeyVersion, LastUse
from pqkeep_gateway.access.networks import neighbours_of
from pqkeep_gateway.notices import Details, NoticeKind
from pqkeep_gateway.storage.database import insert_if_absent, microseconds, transaction
from pqkeep_gateway.storage.notices import api_key_name, open_notice
from pqkeep_gateway.storage.schema import API_KEY_NETWORKS, API_KEYS, OPERATORS
from pqkeep_protocol.audit_events import API_KEY
from pqkeep_protocol.keys import TenantId

MAX_NETWORKS = 20
"""Networks of an API key that are stored."""
LEARNING = timedelta(days=1)
"""The time after the first use in which new networks open no notice."""


class SqlLastUses:
    """Last uses of API keys and operators' credentials in the database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def save(self, uses: Mapping[bytes, Sequence[LastUse]]) -> None:
        """Store uses by credential digest, but never over newer ones. Raises UnavailableError."""
        rows = [
            {
                "of": digest,
                "at": microseconds(date_of(found[-1].at)),
                "source_address": found[-1].source_address,
            }
            for digest, found in uses.items()
        ]
        async with transaction(self._engine) as connection:
            for table in (API_KEYS, OPERATORS):
                await connection.execute(_update(table), rows)
            await _save_networks(connection, uses)

    async def save_administration(self, administered: Mapping[ApiKeyVersion, float]) -> None:
        """Store when API keys last did more than use keys. Raises UnavailableError."""
        at = sa.bindparam("at", type_=sa.BigInteger)
        stored = API_KEYS.c.last_administered_at_us
        update = (
            sa.update(API_KEYS)
            .where(
                API_KEYS.c.tenant_id == sa.bindparam("tenant"),
                API_KEYS.c.version == sa.bindparam("of"),
                sa.or_(stored.is_(None), stored < at),
            )
            .values(last_administered_at_us=at)
        )
        rows = [
            {"tenant": tenant, "of": version, "at": microseconds(date_of(seconds))}
            for (tenant, version), seconds in administered.items()
        ]
        async with transaction(self._engine) as connection:
            await connection.execute(update, rows)


_KNOWN: tuple[sa.Column[Any], ...] = (
    API_KEYS.c.digest,
    API_KEYS.c.tenant_id,
    API_KEYS.c.version,
    API_KEYS.c.name,
    API_KEY_NETWORKS.c.network,
    API_KEY_NETWORKS.c.first_used_at_us,
)


async def _save_networks(
    connection: AsyncConnection, uses: Mapping[bytes, Sequence[LastUse]]
) -> None:
    """Store the networks of API keys, and open notices about new ones."""
    known = (
        sa.select(*_KNOWN)
        .outerjoin(
            API_KEY_NETWORKS,
            sa.and_(
                API_KEY_NETWORKS.c.tenant_id == API_KEYS.c.tenant_id,
                API_KEY_NETWORKS.c.version == API_KEYS.c.version,
            ),
        )
        .where(API_KEYS.c.digest.in_(uses))
        .order_by(API_KEYS.c.tenant_id, API_KEYS.c.version)
    )
    of_key: dict[bytes, list[sa.Row[Any]]] = {}
    for row in (await connection.execute(known)).all():
        of_key.setdefault(row.digest, []).append(row)
    for digest, rows in of_key.items():
        await _save_new(connection, rows, uses[digest])


async def _save_new(
    connection: AsyncConnection, rows: Sequence[sa.Row[Any]], uses: Sequence[LastUse]
) -> None:
    networks = {row.network for row in rows if row.network is not None}
    first_us = min((row.first_used_at_us for row in rows if row.network is not None), default=None)
    for use in uses:
        network = neighbours_of(use.source_address)
        if not network or network in networks or len(networks) >= MAX_NETWORKS:
            continue
        networks.add(network)
        now = date_of(use.at)
        new = {
            "tenant_id": rows[0].tenant_id,
            "version": rows[0].version,
            "network": network,
            "first_used_at_us": microseconds(now),
        }
        is_new = await insert_if_absent(connection, API_KEY_NETWORKS, new)
        if is_new and first_us is not None and first_us <= microseconds(now - LEARNING):
            name = api_key_name(rows[0].version, rows[0].name)
            details = Details(names=(name,), at=now, source_address=use.source_address)
            subject = f"{API_KEY}{rows[0].version}"
            kind = NoticeKind.API_KEY_NEW_NETWORK
            await open_notice(connection, TenantId(rows[0].tenant_id), kind, subject, details, now)


def _update(table: sa.Table) -> sa.Update:
    """Return the update of a credential's row.

    The statement's parameter ``of`` identifies the credential in the table.
    """
    at = sa.bindparam("at", type_=sa.BigInteger)
    stored = table.c.last_used_at_us
    return (
        sa.update(table)
        .where(table.c.digest == sa.bindparam("of"), sa.or_(stored.is_(None), stored < at))
        .values(last_used_at_us=at, last_used_from=sa.bindparam("source_address"))
    )

"""Webhooks, and their deliveries."""

import asyncio
from collections.abc import Mapping

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.http.errors import not_found
from pqkeep_gateway.notices import KINDS, TENANT_KINDS
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.views.people import addresses
from pqkeep_gateway.webhooks import Problem

SHOWN = 25
"""Deliveries on one page."""
PROBLEMS: Mapping[Problem, str] = {
    Problem.ADDRESS: "the host has no public address",
    Problem.CONNECTION: "no connection, or closed without a response",
    Problem.TLS: "the certificate is not valid",
    Problem.TIMEOUT: "no response in time",
    Problem.RESPONSE: "the response was not HTTP",
    Problem.EXPIRED: "given up after three days",
    Problem.DISABLED: "given up, because the webhook was disabled",
}


KINDS_OF_TENANTS = tuple((kind.value, KINDS[kind].title) for kind in TENANT_KINDS)
"""The kinds of notices, with their titles."""


async def _read(visit: Visit) -> Content:
    return {"listed": await visit.reader.section("list_webhooks"), "kinds": KINDS_OF_TENANTS}


async def _read_webhook(visit: Visit) -> Content:
    reader, wanted = visit.reader, visit.path["webhook"]
    listed = await reader.read("list_webhooks")
    webhook = next((webhook for webhook in listed.webhooks if webhook.id == wanted), None)
    if webhook is None:
        raise not_found("There is no such webhook.")
    deliveries, names = await asyncio.gather(
        reader.section(
            "list_webhook_deliveries",
            webhook=wanted,
            limit=SHOWN,
            after=visit.query.get("after") or None,
        ),
        addresses(reader),
    )
    return {
        "webhook": webhook,
        "deliveries": deliveries,
        "names": names,
        "PROBLEMS": PROBLEMS,
        "kinds": KINDS_OF_TENANTS,
        "titles": dict(KINDS_OF_TENANTS),
    }


PAGES = (
    Page(
        path="/webhooks",
        title="Webhooks",
        template="webhooks/list.html",
        permission=Permission.USE_WEBHOOKS,
        read=_read,
        icon="webhook",
    ),
    Page(
        path="/webhooks/{webhook}",
        title="Webhook",
        template="webhooks/webhook.html",
        permission=Permission.USE_WEBHOOKS,
        read=_read_webhook,
        parent="/webhooks",
    ),
)

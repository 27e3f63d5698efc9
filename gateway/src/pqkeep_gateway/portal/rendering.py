"""Renders templates as HTML."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import jinja2
from markupsafe import Markup

from pqkeep_gateway.portal import assets
from pqkeep_gateway.portal.outcomes import outcome

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_AGES = (
    (timedelta(days=365), "year"),
    (timedelta(days=30), "month"),
    (DAY, "day"),
    (HOUR, "hour"),
    (MINUTE, "minute"),
)


class Templates:
    """The templates. All values are escaped. They are compiled at the first request."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader(__package__),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
        )
        self._environment.globals["asset"] = assets.url
        self._environment.filters.update(
            address=address,
            age=age,
            many=many,
            moment=moment,
            noun=noun,
            number=number,
            outcome=outcome,
            second=second,
            span=span,
            until=until,
        )
        self._compiled: asyncio.Task[None] | None = None

    async def render(self, name: str, content: Mapping[str, Any]) -> bytes:
        """Return a page as HTML."""
        if self._compiled is None:
            self._compiled = asyncio.create_task(asyncio.to_thread(self._compile))
        if not self._compiled.done():
            await asyncio.shield(self._compiled)
        return self._environment.get_template(name).render(content).encode()

    def _compile(self) -> None:
        for name in self._environment.list_templates():
            self._environment.get_template(name)


def instant(timestamp: str) -> datetime:
    """Read a timestamp of the API."""
    return datetime.fromisoformat(timestamp)


def age(timestamp: str | datetime | None, now: datetime | None = None) -> str:
    """Return a past time relative to now: ``3 days ago``."""
    if timestamp is None:
        return "never"
    then = instant(timestamp) if isinstance(timestamp, str) else timestamp
    past = (now or datetime.now(UTC)) - then
    return f"{_span(past)} ago" if past >= MINUTE else "just now"


def until(timestamp: str, now: datetime | None = None) -> str:
    """Return a future time relative to now, rounded to the nearest unit: ``in 3 days``."""
    ahead = instant(timestamp) - (now or datetime.now(UTC))
    if ahead < MINUTE:
        return "in less than a minute"
    whole = -(-ahead // MINUTE) * MINUTE
    unit, name = next((unit, name) for unit, name in _AGES if whole >= unit)
    return f"in {many((2 * whole + unit) // (2 * unit), name)}"


def moment(timestamp: str) -> str:
    """Return a timestamp to the minute, in UTC: ``2026-01-31 12:00``."""
    return instant(timestamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def second(timestamp: str) -> str:
    """Return a timestamp to the second, in UTC: ``2026-01-31 12:00:05``."""
    return instant(timestamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: int | None) -> str:
    """Return a number with separated thousands; ``unlimited`` for None."""
    return "unlimited" if value is None else f"{value:,}"


def noun(value: int | None, name: str) -> str:
    """Return a noun for a number: ``tenant`` or ``tenants``."""
    return name if value == 1 else f"{name}s"


def many(value: int, name: str) -> str:
    """Return a number with its noun: ``1 day``, ``1,200 records``."""
    return f"{number(value)} {noun(value, name)}"


def address(email: str) -> Markup:
    """Return an e-mail address that may break before its @."""
    return Markup("<wbr>@").join(email.split("@"))


def span(seconds: int) -> str:
    """Return a duration: ``1 h 5 min``, ``59 min``, ``45 s``."""
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if not hours:
        return f"{minutes} min" if minutes else f"{seconds} s"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _span(length: timedelta) -> str:
    unit, name = next((unit, name) for unit, name in _AGES if length >= unit)
    return many(length // unit, name)

"""Renders templates as HTML."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.utils import pass_context
from markupsafe import Markup, escape

from pqkeep_gateway.languages import (
    ENGLISH,
    LANGUAGES,
    current,
    gettext,
    ngettext,
    said,
    translated,
)
from pqkeep_gateway.portal import assets, phrases
from pqkeep_gateway.portal.outcomes import outcome

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_AGES = (
    (timedelta(days=365), "year"),
    (timedelta(days=30), "month"),
    (DAY, "day"),
    (HOUR, "hour"),
    (MINUTE, "minute"),
)
_AGO = {
    "year": ("{count} year ago", "{count} years ago"),
    "month": ("{count} month ago", "{count} months ago"),
    "day": ("{count} day ago", "{count} days ago"),
    "hour": ("{count} hour ago", "{count} hours ago"),
    "minute": ("{count} minute ago", "{count} minutes ago"),
}
_AHEAD = {
    "year": ("in {count} year", "in {count} years"),
    "month": ("in {count} month", "in {count} months"),
    "day": ("in {count} day", "in {count} days"),
    "hour": ("in {count} hour", "in {count} hours"),
    "minute": ("in {count} minute", "in {count} minutes"),
}


class _Generator(CodeGenerator):
    """Compiles templates with messages in place of their texts."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        super().visit_Template(phrases.mark(node), frame)


class _Environment(jinja2.Environment):
    code_generator_class = _Generator


class Templates:
    """The templates. All values are escaped. They are compiled at the first request."""

    def __init__(self) -> None:
        self._environment = _Environment(
            loader=jinja2.PackageLoader(__package__),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
        )
        self._environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
        self._environment.globals["asset"] = assets.url
        self._environment.globals["languages"] = LANGUAGES
        self._environment.filters.update(
            phrases.FILTERS,
            address=address,
            age=_spoken(age),
            many=_spoken(many),
            moment=moment,
            noun=_spoken(noun),
            number=_spoken(number),
            outcome=_spoken(lambda recorded: said(outcome(recorded))),
            problem=_spoken(problem),
            said=_spoken(said),
            second=second,
            span=span,
            until=_spoken(until),
        )
        self._compiled: asyncio.Task[None] | None = None

    async def render(self, name: str, content: Mapping[str, Any]) -> bytes:
        """Return a page as HTML."""
        if self._compiled is None:
            self._compiled = asyncio.create_task(asyncio.to_thread(self._compile))
        if not self._compiled.done():
            await asyncio.shield(self._compiled)
        return self._environment.get_template(name).render(content, language=current()).encode()

    def _compile(self) -> None:
        for name in self._environment.list_templates():
            self._environment.get_template(name)


def _spoken(function: Callable[..., str]) -> Callable[..., str]:
    """Return a filter that runs at each rendering, because its result depends on the language."""

    @pass_context
    def filter_(_: Context, *values: Any) -> str:
        return function(*values)

    return filter_


def instant(timestamp: str) -> datetime:
    """Read a timestamp of the API."""
    return datetime.fromisoformat(timestamp)


def age(timestamp: str | datetime | None, now: datetime | None = None) -> str:
    """Return a past time relative to now: ``3 days ago``."""
    if timestamp is None:
        return gettext("never")
    then = instant(timestamp) if isinstance(timestamp, str) else timestamp
    past = (now or datetime.now(UTC)) - then
    if past < MINUTE:
        return gettext("just now")
    unit, name = next((unit, name) for unit, name in _AGES if past >= unit)
    return _counted(past // unit, *_AGO[name])


def until(timestamp: str, now: datetime | None = None) -> str:
    """Return a future time relative to now, rounded to the nearest unit: ``in 3 days``."""
    ahead = instant(timestamp) - (now or datetime.now(UTC))
    if ahead < MINUTE:
        return gettext("in less than a minute")
    whole = -(-ahead // MINUTE) * MINUTE
    unit, name = next((unit, name) for unit, name in _AGES if whole >= unit)
    return _counted((2 * whole + unit) // (2 * unit), *_AHEAD[name])


def moment(timestamp: str) -> str:
    """Return a timestamp to the minute, in UTC: ``2026-01-31 12:00``."""
    return instant(timestamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def second(timestamp: str) -> str:
    """Return a timestamp to the second, in UTC: ``2026-01-31 12:00:05``."""
    return instant(timestamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: int | None) -> str:
    """Return a number with separated thousands; ``unlimited`` for None."""
    if value is None:
        return gettext("unlimited")
    text = f"{value:,}"
    return text if current() == ENGLISH else text.replace(",", "\N{NARROW NO-BREAK SPACE}")


def noun(value: int | None, name: str) -> str:
    """Return a noun for a number: ``tenant`` or ``tenants``."""
    return ngettext(name, f"{name}s", 0 if value is None else value)


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


def problem(message: str) -> Markup:
    """Return an error of the API. It is marked as English if it has no translation."""
    text = translated(message)
    if text is not None:
        return escape(text)
    return Markup('<span lang="en">{}</span>').format(message)


def _counted(count: int, one: str, several: str) -> str:
    return ngettext(one, several, count).replace("{count}", number(count))

"""Client names in a user's list of sessions, from the header User-Agent.

Clients can send any header. The name only helps users to recognize their own sessions. It has
letters, digits and a few punctuation marks.
"""

import re

MAX_USER_AGENT = 256
"""Characters of the header that are stored."""

_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("SamsungBrowser", "Samsung Internet"),
    ("Firefox", "Firefox"),
    ("FxiOS", "Firefox"),
    ("CriOS", "Chrome"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
)
"""Parts of the header, and the browsers that send them. The first match counts: Edge sends
``Chrome`` and ``Safari``, too."""
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iOS"),
    ("Windows", "Windows"),
    ("Macintosh", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
_first_product = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}", re.ASCII).match


def stored_user_agent(header: bytes) -> str:
    """Return the first MAX_USER_AGENT printable characters of a header."""
    text = header.decode("latin-1")
    return "".join(character for character in text if character.isprintable())[:MAX_USER_AGENT]


def client_name(user_agent: str) -> str | None:
    """Return the browser and its system, else the first product's name, else None."""
    browser = _named(_BROWSERS, user_agent)
    if browser is None:
        product = _first_product(user_agent)
        return None if product is None else product.group()
    system = _named(_SYSTEMS, user_agent)
    return browser if system is None else f"{browser} on {system}"


def _named(table: tuple[tuple[str, str], ...], user_agent: str) -> str | None:
    return next((name for part, name in table if part in user_agent), None)

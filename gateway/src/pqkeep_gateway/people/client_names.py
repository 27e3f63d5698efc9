"""What a client is called in the list of a person's sessions, from its header User-Agent.

Anyone can send any header: the name helps people to recognize their own sessions, and nothing is
decided by it. It is letters, digits and a few marks, whatever was sent.
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
"""Parts of the header and the browsers that send them; each also sends those of some further down."""
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
    """Return the printable characters of a header, so many of them as are stored."""
    text = header.decode("latin-1")
    return "".join(each for each in text if each.isprintable())[:MAX_USER_AGENT]


def client_name(user_agent: str) -> str | None:
    """Return a browser and its system, or else the first product's name; None where there is none."""
    browser = _named(_BROWSERS, user_agent)
    if browser is None:
        product = _first_product(user_agent)
        return None if product is None else product.group()
    system = _named(_SYSTEMS, user_agent)
    return browser if system is None else f"{browser} on {system}"


def _named(table: tuple[tuple[str, str], ...], user_agent: str) -> str | None:
    return next((name for part, name in table if part in user_agent), None)

"""Text that does nothing to a terminal, whatever a file, a tenant or an answer says."""


def printable(text: str) -> str:
    """Return text without control characters; each becomes a question mark."""
    return "".join(each if each.isprintable() else "?" for each in text)

"""Failing closed."""


class UnavailableError(Exception):
    """Something that a decision needs is out of reach. The answer is no: 503."""


class OverloadedError(UnavailableError):
    """Too much waits already; nothing was begun."""

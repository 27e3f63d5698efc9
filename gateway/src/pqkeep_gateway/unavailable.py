"""Errors for failing closed."""

from pqkeep_protocol.commits import WriteProblem


class UnavailableError(Exception):
    """A part that a decision needs is unavailable. The request is refused with 503."""

    def __init__(self, problem: WriteProblem = WriteProblem.NO_RESPONSE) -> None:
        super().__init__(problem)
        self.problem = problem


class OverloadedError(UnavailableError):
    """Too much work is waiting; nothing was begun."""

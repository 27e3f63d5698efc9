"""Errors for failing closed."""

from pqkeep_protocol.commits import WriteProblem


class UnavailableError(Exception):
    """A part that a decision needs is unavailable. The request is refused with 503."""

    def __init__(self, problem: WriteProblem = WriteProblem.NO_RESPONSE, cause: str = "") -> None:
        """Take the problem, and a text for the operator with the part's address and the cause."""
        super().__init__(problem)
        self.problem = problem
        self.cause = cause


class OverloadedError(UnavailableError):
    """Too much work is waiting; nothing was begun."""

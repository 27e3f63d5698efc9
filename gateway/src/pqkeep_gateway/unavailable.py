"""Failing closed."""

from pqkeep_protocol.commits import WriteProblem


class UnavailableError(Exception):
    """Something that a decision needs is out of reach. The answer is no: 503."""

    def __init__(self, problem: WriteProblem = WriteProblem.NO_RESPONSE) -> None:
        super().__init__(problem)
        self.problem = problem


class OverloadedError(UnavailableError):
    """Too much waits already; nothing was begun."""

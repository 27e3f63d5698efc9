"""Why there is nothing to report."""


class BenchmarkError(Exception):
    """A measurement is missing or worthless. The message is for the person who asked for it."""

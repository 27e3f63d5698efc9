"""The error of a benchmark that cannot report."""


class BenchmarkError(Exception):
    """A measurement failed or would be misleading. The message is for the person who started it."""

"""The error of a benchmark without a result."""


class BenchmarkError(Exception):
    """A measurement failed or would be misleading. The message is for the person who started it."""

"""State in memory while the process runs: key versions, expanded keys, locks, workers."""

MAX_WAITING = 96
"""Requests that may wait in one queue, for changes or for worker processes. It is well below
MAX_IN_FLIGHT of a connection, so that a full queue leaves capacity for other requests."""

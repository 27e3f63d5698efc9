"""What is held in memory while the process runs: key versions, expanded keys, locks, workers."""

MAX_WAITING = 96
"""Requests in one queue, of changes or for worker processes: well below MAX_IN_FLIGHT of a connection,
so that other requests never wait behind a queue."""

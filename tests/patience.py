"""How long a test waits for what must come: a program that hangs ends then, and no busy machine does."""

from __future__ import annotations

PATIENCE = 150.0
"""Seconds. Half of a test's time limit, so that the wait itself fails, with what it waited for."""

"""The log lines about a value that cannot be looked up."""

import asyncio

import pytest

from pqkeep_protocol import cached
from pqkeep_protocol.cached import Cached


@pytest.mark.parametrize("has_answered", [True, False])
async def test_a_part_that_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, has_answered: bool
) -> None:
    """A failure is logged at once after a success, and at a start once the part had time to start."""
    monkeypatch.setattr(cached, "START_SECONDS", 0.05)
    fails = not has_answered

    async def find() -> int:
        if fails:
            raise OSError
        return 1

    value = Cached(find, 0, name="x", seconds=0, wait_seconds=1)
    assert await value.get() == has_answered
    assert caplog.records == []
    fails = True
    await asyncio.sleep(0 if has_answered else 0.1)
    assert await value.get() == 0
    assert "a part does not answer what it is asked" in caplog.text

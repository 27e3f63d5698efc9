"""What the tests of all parts share: real servers, and which tests run in the same process."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings
from tests.work_units import WorkUnits
from xdist.remote import Producer

pytest.register_assert_rewrite("tests.fixtures")
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
pytest_plugins = [
    "tests.fixtures.certificate",
    "tests.fixtures.installation",
    "tests.fixtures.key_service",
    "tests.fixtures.link",
    "tests.fixtures.mail_server",
    "tests.fixtures.postgresql",
    "tests.fixtures.preloaded",
    "tests.fixtures.redis",
    "tests.fixtures.softhsm",
]


def pytest_configure() -> None:
    """Let programs under test be interrupted, also where a shell runs the tests in the background.

    A signal that is ignored stays ignored in the programs that a process starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WorkUnits:
    """Say which tests go to which process."""
    return WorkUnits(config, log)

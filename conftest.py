"""What the tests of all parts share: real servers, and which tests run in the same process."""

from __future__ import annotations

import gc
import os
import signal
from functools import cache

import pytest
from httpx2._config import create_ssl_context
from httpx2._transports import default as transports
from hypothesis import settings
from tests.compiled import compile_in_parallel
from tests.memory import keep_files_in_memory
from tests.sampling import leave_to_the_campaign, require_listed_tests, step
from tests.threats import require_known_threats
from tests.work_units import WorkUnits
from xdist.remote import Producer

vars(transports)["create_ssl_context"] = cache(create_ssl_context)
"""A TLS context reads all of the system's authorities: forty milliseconds for each client."""
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
"""Its handlers can hang in a process that a test forks after it has used gRPC."""
gc.disable()  # until the tests are collected: imports create no garbage
keep_files_in_memory()
pytest.register_assert_rewrite("tests.fixtures")
settings.register_profile("untimed", deadline=None, max_examples=100 // step(4))
settings.load_profile("untimed")
pytest_plugins = [
    "tests.fixtures.browser",
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


def pytest_configure(config: pytest.Config) -> None:
    """Let programs under test be interrupted, also where a shell runs the tests in the background.

    A signal that is ignored stays ignored in the programs that a process starts.
    """
    require_listed_tests(config.rootpath)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the tests before the processes start that run them."""
    compile_in_parallel(session.config)


def pytest_collection_finish() -> None:
    """Leave what was collected out of every later look for garbage."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the names of threats, and mark the campaign's tests before they are left out."""
    require_known_threats(items)
    leave_to_the_campaign(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WorkUnits:
    """Say which tests go to which process."""
    return WorkUnits(config, log)

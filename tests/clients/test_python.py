"""The Python client passes the behaviour suite, which the clients of other languages pass too."""

from pathlib import Path

from tests.clients.driver import RUNNERS, Suite
from tests.fixtures.installation import Installation


def test_behaviour(installation: Installation, tmp_path: Path) -> None:
    """Results, errors, retries and requests of each case are as expected."""
    with Suite(installation, tmp_path) as suite:
        assert suite.failures(suite.run(RUNNERS["python"])) == {}

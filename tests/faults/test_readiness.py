"""/readyz and /livez while each part of an installation is away, and afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.installation import Installation, running
from tests.fixtures.mail_server import MailServer
from tests.fixtures.postgresql import PostgresServer, running_postgresql
from tests.fixtures.redis import running_redis
from tests.patience import PATIENCE

from pqkeep_gateway.management.readiness import CHECK_SECONDS, WAIT_SECONDS
from pqkeep_server.initialise import Stores

ACCOUNTS = ("pqkeep_gateway", "pqkeep_accounts")
KEYS = ("pqkeep_keyservice", "pqkeep_keys")


@dataclass
class Parts:
    """An installation with all its services, and a client of its management address."""

    installation: Installation
    client: httpx2.Client
    postgresql: PostgresServer
    redis_port: int
    redis: ExitStack
    mail: MailServer

    def readiness(self) -> tuple[int, set[str], set[str]]:
        """Return the status of /readyz, its reasons, and the degraded parts."""
        response = self.client.get("/readyz")
        told = response.json()
        return response.status_code, set(told.get("reasons", ())), set(told["degraded"])

    def wait_for(self, *expected: object) -> None:
        """Wait for a state of /readyz, while /livez is 200 all the time."""
        deadline = time.monotonic() + PATIENCE
        while (told := self.readiness()) != expected:
            assert self.client.get("/livez").status_code == 200
            assert time.monotonic() < deadline, told
            time.sleep(0.05)

    @contextmanager
    def without_postgresql(self) -> Iterator[None]:
        """Stop the server of both databases."""
        self.postgresql.stop()
        yield
        self.postgresql.start()

    @contextmanager
    def without_redis(self) -> Iterator[None]:
        """Stop the rate limits' server."""
        self.redis.close()
        yield
        self.redis.enter_context(running_redis(self.redis_port))

    @contextmanager
    def without_key_service(self) -> Iterator[None]:
        """Pause the key service."""
        pid = self.installation.children()["pqkeep_keyservice"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def without_mail_server(self) -> Iterator[None]:
        """Stop the mail server, with an e-mail waiting."""
        self.mail.stop()
        tenant = self.installation.ready["tenant_id"]
        self.installation.operator().post(
            f"/tenants/{tenant}/invitations",
            {"email": "ada@example.com", "role": "viewer"},
            status=201,
        )
        yield
        self.mail.start()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """An installation on PostgreSQL and Redis, with a mail server."""
    folder, port, mail = tmp_path_factory.mktemp("parts"), processes.free_port(), MailServer()
    with ExitStack() as stack:
        postgresql = stack.enter_context(running_postgresql())
        redis = stack.enter_context(ExitStack())
        address = redis.enter_context(running_redis(port))
        mail.start()
        stack.callback(mail.stop)
        installation = stack.enter_context(
            running(
                folder,
                databases=Stores(
                    accounts=postgresql.url(*ACCOUNTS),
                    keys=postgresql.url(*KEYS),
                    redis_url=f"redis://{address}",
                ),
                settings={
                    "public_url": "https://keep.example.org",
                    "mailbox": None,
                    "smtp": {
                        "host": processes.HOST,
                        "port": mail.port,
                        "security": "none",
                        "sender": "pqkeep@example.com",
                    },
                },
            )
        )
        client = stack.enter_context(
            httpx2.Client(
                base_url=installation.ready["management_url"], timeout=PATIENCE, trust_env=False
            )
        )
        yield Parts(installation, client, postgresql, port, redis, mail)


def test_what_is_lost_is_known_within_five_seconds() -> None:
    """The known state of a part is at most this old, whether it refuses or hangs."""
    assert CHECK_SECONDS + WAIT_SECONDS < 5


@pytest.mark.parametrize(
    ("away", "status", "reasons", "degraded"),
    [
        (Parts.without_postgresql, 503, {"keys_database", "accounts_database"}, set()),
        (Parts.without_redis, 503, {"rate_limits"}, set()),
        (Parts.without_key_service, 503, {"key_service"}, set()),
        (Parts.without_mail_server, 200, set(), {"mail_server"}),
    ],
    ids=["PostgreSQL", "Redis", "key service", "mail server"],
)
def test_a_part_that_is_away_is_named(
    parts: Parts,
    away: Callable[[Parts], AbstractContextManager[None]],
    status: int,
    reasons: set[str],
    degraded: set[str],
) -> None:
    """/readyz names the failed part, /livez is 200, and all recovers without help."""
    parts.wait_for(200, set(), set())
    with away(parts):
        parts.wait_for(status, reasons, degraded)
    parts.wait_for(200, set(), set())
    assert parts.installation.demo().get("/kms/keys")["total"] == 0

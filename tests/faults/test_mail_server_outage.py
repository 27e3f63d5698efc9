"""Mail, with a real gateway and mail server: nothing is lost, and nothing is retried forever."""

from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing

import httpx2
import pytest
from tests.faults.conftest import MailingGateway
from tests.fixtures.certificate import Certificate
from tests.fixtures.mail_server import MailServer
from tests.patience import PATIENCE

PASSWORD = "the horse prefers oats"  # noqa: S105 - nobody's


@pytest.fixture
def gateway(
    mail_server: MailServer, new_mailing_gateway: Callable[[str], MailingGateway]
) -> MailingGateway:
    """An unstarted gateway with a local mail server without encryption."""
    return new_mailing_gateway(
        f"""
[smtp]
host = "127.0.0.1"
port = {mail_server.port}
security = "none"
sender = "pqkeep@example.org"
"""
    )


def invite(client: httpx2.Client, email: str) -> str:
    """Invite a person to a new tenant; return the token that the inviter sees."""
    name = {"name": str(uuid.uuid4())}
    tenant = client.post("/tenants", json=name).json()["data"]["id"]
    invited = client.post(f"/tenants/{tenant}/invitations", json={"email": email, "role": "owner"})
    assert invited.status_code == 201
    token: str = invited.json()["data"]["invitation_token"]
    return token


def waiting(gateway: MailingGateway) -> int:
    """Return the number of undelivered e-mails."""
    path = gateway.layout.gateway / "accounts.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM outgoing_mail").fetchone()
        return int(count)


def until_said(gateway: MailingGateway, text: str) -> None:
    """Wait until the gateway logs something."""
    deadline = time.monotonic() + PATIENCE
    while text not in gateway.output.read_text():
        assert time.monotonic() < deadline, gateway.output.read_text()
        time.sleep(0.05)


def until_postponed(gateway: MailingGateway) -> None:
    """Wait until no e-mail is claimed: a claim lasts a minute, even after its gateway's end."""
    path = gateway.layout.gateway / "accounts.sqlite3"
    deadline, is_claimed = time.monotonic() + PATIENCE, True
    while is_claimed:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        with closing(sqlite3.connect(path)) as connection:
            (due,) = connection.execute(
                "SELECT max(next_attempt_at_us) FROM outgoing_mail"
            ).fetchone()
        is_claimed = due > (time.time() + 30) * 1_000_000


def until_none_waits(gateway: MailingGateway) -> None:
    """Wait until no e-mail is waiting."""
    deadline = time.monotonic() + PATIENCE
    while waiting(gateway):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_e_mail_waits_for_the_server_and_outlives_the_gateway(
    gateway: MailingGateway, mail_server: MailServer
) -> None:
    """An e-mail from a mail outage arrives after a restart, and its token works."""
    with gateway.running() as client:
        token = invite(client, "ada@example.com")
        until_said(gateway, "mail delivery will be tried again")
        until_postponed(gateway)
    assert waiting(gateway) == 1
    with gateway.running() as client:
        mail_server.start()
        (message,) = mail_server.wait_for_messages(1)
        until_none_waits(gateway)
        (sent,) = re.findall(
            r"^    https://keep.example.org/portal/invitation#(\w+)\r$",
            message.get_content(),
            re.MULTILINE,
        )
        assert sent == token
        del client.headers["X-API-Key"]
        fields = {"token": sent, "password": PASSWORD}
        assert client.post("/auth/accept-invitation", json=fields).status_code == 201
    assert len(mail_server.messages) == 1
    said = gateway.output.read_text()
    assert token not in said
    assert "ada@example.com" not in said


def test_an_e_mail_arrives_encrypted(
    mail_server: MailServer,
    certificate: Certificate,
    new_mailing_gateway: Callable[[str], MailingGateway],
) -> None:
    """Mail is sent by STARTTLS, with user and password, without the cryptography package."""
    mail_server.tls, mail_server.password = certificate.context, PASSWORD.encode()
    mail_server.start()
    gateway = new_mailing_gateway(
        f"""
[smtp]
host = "127.0.0.1"
port = {mail_server.port}
sender = "pqkeep@example.org"
ca_file = "{certificate.path}"
user = "pqkeep"
password_file = "secret"
"""
    )
    secret = gateway.layout.gateway / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    with gateway.running() as client:
        token = invite(client, "ada@example.com")
        (message,) = mail_server.wait_for_messages(1)
        until_none_waits(gateway)
    assert token in message.get_content()


def test_who_is_refused_is_not_tried_for_ever(
    gateway: MailingGateway, mail_server: MailServer
) -> None:
    """A recipient that the server refuses is tried once; the next e-mail arrives."""
    mail_server.response = "550 5.1.1 unknown"
    mail_server.start()
    with gateway.running() as client:
        invite(client, "nobody@example.com")
        until_said(gateway, "the mail server: SMTPRecipientRefused 550")
        until_none_waits(gateway)
        mail_server.response = "250 OK"
        invite(client, "ada@example.com")
        mail_server.wait_for_messages(1)
    assert mail_server.recipients == ["nobody@example.com", "ada@example.com"]


def test_without_encryption_nothing_is_sent(
    mail_server: MailServer, new_mailing_gateway: Callable[[str], MailingGateway]
) -> None:
    """By default, a server without STARTTLS gets no mail."""
    gateway = new_mailing_gateway(
        f"""
[smtp]
host = "127.0.0.1"
port = {mail_server.port}
sender = "pqkeep@example.org"
"""
    )
    mail_server.start()
    with gateway.running() as client:
        invite(client, "ada@example.com")
        until_said(gateway, "mail delivery will be tried again")
    assert mail_server.recipients == []
    assert mail_server.messages == []
    assert waiting(gateway) == 1


def test_without_mail_it_is_said_what_is_missing(
    new_mailing_gateway: Callable[[str], MailingGateway],
) -> None:
    """Without a mail server, operations that need mail are 403; invitations work without mail."""
    gateway = new_mailing_gateway("")
    with gateway.running() as client:
        token = invite(client, "ada@example.com")
        del client.headers["X-API-Key"]
        for path, body in (
            ("/auth/forgot-password", {"email": "ada@example.com"}),
            ("/auth/mfa/email", {"challenge_token": "pqc_"}),
        ):
            refused = client.post(path, json=body)
            assert refused.status_code == 403
            error = refused.json()["error"]
            assert error["error_code"] == "ERR_FORBIDDEN_001"
            assert "e-mail is not configured" in error["message"]
        fields = {"token": token, "password": PASSWORD}
        assert client.post("/auth/accept-invitation", json=fields).status_code == 201
        until_none_waits(gateway)


def test_a_password_that_others_can_read_stops_the_start(
    mail_server: MailServer, new_mailing_gateway: Callable[[str], MailingGateway]
) -> None:
    """With unusable mail settings the gateway names the error and does not start."""
    gateway = new_mailing_gateway(
        """
[smtp]
host = "smtp.example.org"
user = "pqkeep"
password_file = "secret"
sender = "pqkeep@example.org"
"""
    )
    secret = gateway.layout.gateway / "secret"
    secret.write_text("only the horse knows")
    secret.chmod(0o644)
    with pytest.raises(httpx2.TransportError), gateway.running():
        pass
    said = gateway.output.read_text()
    assert f"{secret}: other users have access" in said
    assert "only the horse knows" not in said

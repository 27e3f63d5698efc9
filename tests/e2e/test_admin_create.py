"""``pqkeepd admin create`` as a program: a command invites one person, and leaks no secret."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.certificate import new_certificate
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential

PORTAL = "https://keep.example.com/"
NOBODYS_KEY = new_credential(CredentialKind.OPERATOR)

Create = Callable[..., tuple[int, str, str]]


@pytest.fixture
def key_file(installation: Installation, tmp_path: Path) -> Path:
    """A private file with the operator's credential."""
    file = tmp_path / "operator.key"
    file.write_text(installation.ready["operator_key"] + "\n")
    file.chmod(0o400)
    return file


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> str:
    """A tenant without people."""
    return new_tenant().tenant_id


@pytest.fixture
def create(
    installation: Installation,
    pqkeepd_command: Sequence[str | Path],
    key_file: Path,
    tenant: str,
) -> Create:
    """Run the command; return its status, stdout and stderr."""
    words = [*pqkeepd_command, "admin", "create"]

    def run(email: str, **options: str | Path) -> tuple[int, str, str]:
        given = {
            "email": email,
            "tenant": tenant,
            "operator-key-file": key_file,
            "url": installation.base_url,
            "public-url": PORTAL,
            **options,
        }
        ended = subprocess.run(
            [*words, *(f"--{name}={value}" for name, value in given.items())],
            env={"PATH": os.defpath, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert installation.ready["operator_key"] not in ended.stdout + ended.stderr
        return ended.returncode, ended.stdout, ended.stderr

    return run


def _email() -> str:
    return f"{uuid.uuid4()}@example.com"


def _token(said: str) -> str:
    (token,) = re.findall(r'"token":"(\w+)"', said)
    return str(token)


def test_the_command_lets_one_person_in(
    create: Create, installation: Installation, tenant: str, password: str
) -> None:
    """The command prints a link and a command with the same token, which makes one person the owner."""
    email = _email()
    status, said, errors = create(email)
    _, link, _, command = (line.strip() for line in said.splitlines())
    assert (status, errors) == (0, "")
    assert link == f"https://keep.example.com/portal/invitation#{_token(said)}"
    assert command.startswith("curl -sS https://keep.example.com/api/v1/auth/accept-invitation ")
    fields = {"token": _token(said), "password": password}
    person = installation.caller(None)
    made = person.post("/auth/accept-invitation", fields, status=201)
    assert (made["email"], made["role"], made["tenant_id"]) == (email, "owner", tenant)
    refusal = installation.caller(None).refusal("/auth/accept-invitation", fields)
    assert refusal == (401, "ERR_AUTH_001", "token")
    assert person.get("/team/invitations")["total"] == 0


def test_the_command_trusts_the_same_authority(create: Create, tmp_path: Path) -> None:
    """The printed command has the same certificate authority, quoted for the shell."""
    own = tmp_path / "the authority.pem"
    own.write_bytes(new_certificate(tmp_path).path.read_bytes())
    status, said, errors = create(_email(), **{"ca-file": own})
    assert (status, errors) == (0, "")
    words = shlex.split(said.splitlines()[-1])
    assert words[words.index("--cacert") + 1] == str(own)


def test_a_later_command_is_the_one_that_holds(
    create: Create, installation: Installation, password: str
) -> None:
    """A second invitation to an address ends the first."""
    email = _email()
    first, second = (_token(create(email, role="viewer")[1]) for _ in range(2))
    fields = {"token": first, "password": password}
    stranger = installation.caller(None)
    assert stranger.refusal("/auth/accept-invitation", fields)[:2] == (401, "ERR_AUTH_001")
    made = stranger.post("/auth/accept-invitation", {**fields, "token": second}, status=201)
    assert made["role"] == "viewer"


def test_somebody_who_is_there_already(
    create: Create, new_person: Callable[..., Caller], tenant: str
) -> None:
    """For an address with an account, the exit status is 1, and the error gives the reason."""
    email = _email()
    new_person(tenant, "viewer", email)
    status, said, errors = create(email.upper())
    assert (status, said) == (1, "")
    assert errors == "pqkeepd: an account with this e-mail address already exists\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tenant": str(uuid.UUID(int=1))}, "no such tenant"),
        ({"tenant": "a b\n"}, "the gateway does not respond"),
        ({"role": "king"}, "role must be one of"),
        ({"email": "nobody"}, "email must be an e-mail address"),
        (
            {"operator-key-file": "/nowhere/key"},
            "cannot use the operator's credential in /nowhere/key",
        ),
        ({"url": "http://127.0.0.1:1"}, "the gateway does not respond at http://127.0.0.1:1: "),
        ({"url": "http://keep.example.org"}, "the gateway's address must be https"),
        ({"url": "http://127.0.0.1:1@keep.example.org"}, "the gateway's address must be https"),
        ({"ca-file": "/nowhere/ca.pem"}, "cannot use the CA file /nowhere/ca.pem"),
    ],
)
def test_what_cannot_be(create: Create, options: dict[str, str], reason: str) -> None:
    """A mistake gives exit status 1 and one line on stderr that names it."""
    status, said, errors = create(**{"email": _email(), **options})
    assert (status, said) == (1, "")
    assert errors.startswith(f"pqkeepd: {reason}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    ["{}\nsecond line", "\xff{}", "{}x", "", pytest.param(NOBODYS_KEY, id="nobody's key")],
)
def test_a_file_with_something_else(
    create: Create, installation: Installation, tmp_path: Path, content: str
) -> None:
    """A file with more than a credential, without one, or with a wrong one is refused and not quoted."""
    file = tmp_path / "other.key"
    file.write_text(content.format(installation.ready["operator_key"]))
    file.chmod(0o400)
    status, said, errors = create(_email(), **{"operator-key-file": file})
    assert (status, said) == (1, "")
    assert "credential" in errors
    assert "pqo_" not in errors


def test_a_file_that_others_can_read(create: Create, key_file: Path) -> None:
    """A credential that others can read is refused."""
    key_file.chmod(0o444)
    status, said, errors = create(_email())
    assert (status, said) == (1, "")
    assert "0400" in errors


def test_no_secret_is_in_the_output_of_the_service(
    create: Create, installation: Installation, password: str
) -> None:
    """The service never prints the token or the password, before or after use."""
    tokens = [_token(create(_email())[1]) for _ in range(2)]
    fields = {"token": tokens[0], "password": password}
    installation.caller(None).post("/auth/accept-invitation", fields, status=201)
    installation.caller(None).refusal("/auth/accept-invitation", fields)
    for secret in (*tokens, password):
        assert secret not in installation.output

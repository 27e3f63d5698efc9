"""No person's secret is in output, errors or databases."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyotp import TOTP
from tests.e2e.secret_encodings import encodings
from tests.fixtures.caller import Caller
from tests.fixtures.installation import running
from tests.fixtures.postgresql import PostgresServer, new_databases
from tests.sampling import later

from pqkeep_server.initialise import IN_FILES, Stores

FIRST = "the first horse prefers oats"
SECOND = "the second horse is tired of them"
WRONG = "no horse has ever had this one"
COOKIES = ("service_access_token", "service_refresh_token")


@dataclass
class Walk:
    """A person who uses every function for people, and records all secrets."""

    caller: Caller
    operator: Caller
    email: str = field(default_factory=lambda: f"{uuid.uuid4()}@example.com")
    secrets: dict[str, bytes] = field(default_factory=dict)
    errors: list[bytes] = field(default_factory=list)

    def note(self, what: str, secret: str | bytes) -> Any:
        """Record a secret; return it."""
        number = sum(each.startswith(what) for each in self.secrets) + 1
        self.secrets[f"{what} {number}"] = secret.encode() if isinstance(secret, str) else secret
        return secret

    def post(self, path: str, fields: object = None, status: int = 200) -> Any:
        """Return the response of a request that must succeed, and record the cookies."""
        data = self.caller.post(path, fields, status=status)
        for name in COOKIES:
            if name in self.caller.client.cookies:
                self.note(name, self.caller.client.cookies[name])
        return data

    def refused(self, path: str, fields: object, **headers: str) -> Any:
        """Return the error of a request that must be refused."""
        response = self.caller.ask("POST", path, fields, headers=headers)
        assert response.is_client_error
        error = response.json()["error"]
        if "challenge_token" in error:
            self.note("a challenge", error.pop("challenge_token"))
        else:
            self.errors.append(response.content)
        return error

    def step_up(self, **proof: str) -> dict[str, str]:
        """Return the header of a sensitive request."""
        token = self.post("/auth/step-up", proof)["step_up_token"]
        return {"X-Step-Up-Token": self.note("a step-up token", token)}

    def come_in(self, tenant_id: str) -> None:
        """Accept one of two invitations, and try to accept it a second time."""
        for _ in range(2):
            path = f"/tenants/{tenant_id}/invitations"
            fields = {"email": self.email, "role": "owner"}
            made = self.operator.post(path, fields, status=201)
            token = self.note("an invitation", made["invitation_token"])
        accepted = {"token": token, "password": self.note("a password", FIRST)}
        self.post("/auth/accept-invitation", accepted, 201)
        self.refused("/auth/accept-invitation", accepted)
        self.refused("/auth/accept-invitation", {"token": token + "x", "password": FIRST})

    def change_password(self) -> None:
        """Change the password, after a try without proof."""
        fields = {"new_password": self.note("a password", SECOND)}
        self.refused("/auth/change-password", fields)
        self.refused("/auth/step-up", {"password": self.note("a password", WRONG)})
        headers = self.step_up(password=FIRST)
        response = self.caller.ask("POST", "/auth/change-password", fields, headers=headers)
        assert response.is_success
        self.refused("/auth/change-password", fields, **headers)
        self.refused("/auth/login", {"email": self.email, "password": FIRST})
        self.refused("/auth/login", {"email": FIRST, "password": [FIRST]})
        self.log_in()

    def log_in(self) -> None:
        """Sign in with the second password."""
        self.post("/auth/login", {"email": self.email, "password": SECOND})

    def enroll(self) -> tuple[TOTP, Sequence[str]]:
        """Set up a second factor; return the code generator and the recovery codes."""
        headers = self.step_up(password=SECOND)
        made = self.caller.ask("POST", "/auth/mfa/enroll", headers=headers).json()["data"]
        secret = self.note("a TOTP secret in base32", made["secret"])
        self.note("a TOTP secret", base64.b32decode(secret))
        self.refused("/auth/mfa/confirm", {"totp_code": secret})
        totp = TOTP(secret)
        codes: Sequence[str] = self.caller.confirm_authenticator(totp)
        for code in codes:
            self.note("a recovery code", code)
            self.note("a recovery code without dashes", code.replace("-", ""))
        return totp, codes

    def answer_challenges(self, totp: TOTP, codes: Sequence[str]) -> None:
        """Sign in with a recovery code, and refresh twice with the same token."""
        self.refused("/auth/login", {"email": self.email, "password": SECOND})
        challenge = self.secrets["a challenge 1"].decode()
        answered = {"challenge_token": challenge, "recovery_code": codes[0]}
        self.post("/auth/mfa/verify", answered)
        self.refused("/auth/mfa/verify", answered)
        self.step_up(totp_code=totp.at(int(time.time()) + 30))
        self.refused("/auth/step-up", {"totp_code": codes[0]})
        old = self.caller.client.cookies[COOKIES[1]]
        self.post("/auth/refresh")
        copied = {"Cookie": f"{COOKIES[1]}={old}", "User-Agent": "another"}
        self.refused("/auth/refresh", None, **copied)


@dataclass
class Run:
    """A finished walk, with all files that may contain its secrets."""

    walk: Walk = field(repr=False)
    output: bytes = field(repr=False)
    files: dict[str, bytes] = field(repr=False)
    files_meanwhile: dict[str, bytes] = field(repr=False)


def _contents(place: Path, since: float) -> Iterator[tuple[str, bytes]]:
    """Yield every file written since then, except mail, which is for the person."""
    for path in [place] if place.is_file() else place.rglob("*"):
        if path.is_file() and path.suffix != ".eml" and path.stat().st_mtime >= since:
            yield str(path), path.read_bytes().rstrip(b"\0")


@dataclass
class Databases:
    """The databases of a run, and a function that writes the server's memory to disk."""

    stores: Stores = IN_FILES
    places: Sequence[Path] = ()
    write: Callable[[], object] = lambda: None


@pytest.fixture(scope="module", params=["sqlite", later("postgresql")])
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Two databases, in files or on a server."""
    if request.param == "sqlite":
        yield Databases()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with new_databases(server) as stores:
        names = [url.rpartition("/")[2] for url in (stores.accounts, stores.keys)]
        find = "SELECT oid::text FROM pg_database WHERE datname = ANY(%s)"
        folders = [server.data / "base" / oid for (oid,) in server.sql(find, names)]
        places = [*folders, server.data / "pg_wal", server.output]
        yield Databases(stores, places, lambda: server.sql("CHECKPOINT"))


@pytest.fixture(scope="module")
def run(
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """A person's walk through an installation, with files read during and after it."""
    folder = tmp_path_factory.mktemp("walk")
    began = time.time() - 1

    def contents() -> dict[str, bytes]:
        databases.write()
        places = (folder / "data", *databases.places)
        return {name: each for place in places for name, each in _contents(place, began)}

    with running(folder, databases=databases.stores) as installation:
        tenant_id = installation.new_tenant().tenant_id
        walk = Walk(installation.caller(None, tenant_id), installation.operator())
        walk.come_in(tenant_id)
        walk.change_password()
        walk.answer_challenges(*walk.enroll())
        meanwhile = contents()
    return Run(walk, (folder / "output").read_bytes(), contents(), meanwhile)


def _assert_absent(walk: Walk, content: bytes, where: str) -> None:
    for what, secret in walk.secrets.items():
        assert not any(each in content for each in encodings(secret)), f"{what} is in {where}"


def test_the_walk_had_secrets_to_find(run: Run) -> None:
    """Every kind of secret occurred, would be found, and the written files are searched."""
    kinds = {what.rstrip("0123456789 ") for what in run.walk.secrets}
    assert len(kinds) == 10, kinds
    for secret in run.walk.secrets.values():
        for written in (secret, b"<%s>" % base64.b64encode(secret), secret.hex().encode()):
            assert any(each in written for each in encodings(secret))
    for files in (run.files, run.files_meanwhile):
        assert any(run.walk.email.encode() in content for content in files.values())
    assert b"pqkeep_gateway" in run.output


@pytest.mark.threat("accounts-database-reader")
def test_no_secret_is_in_a_file(run: Run) -> None:
    """No file of databases, logs or settings has a secret, during and after the run."""
    for name, content in run.files.items():
        _assert_absent(run.walk, content, name)
    for name, content in run.files_meanwhile.items():
        if content != run.files.get(name):
            _assert_absent(run.walk, content, name)


def test_no_secret_is_in_the_output(run: Run) -> None:
    """The service's output has none of the secrets."""
    _assert_absent(run.walk, run.output, "the output")


def test_no_secret_is_in_an_error(run: Run) -> None:
    """No error quotes a secret, although the refused requests were full of them."""
    assert len(run.walk.errors) >= 10
    for content in run.walk.errors:
        _assert_absent(run.walk, content, "an error")

"""The installation for generated requests: its tenants, their people, their keys."""

from __future__ import annotations

import itertools
import json
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from tests.fixtures.mailbox import Mailbox
from tests.patience import PATIENCE

TIMED_OUT = 504
TRIES = 5
ALIASES = ("ML-DSA-65", "ML-KEM-768")
"""The standards' names of algorithms with another API name."""
PASSWORD = "the horse prefers oats"  # noqa: S105 - everybody's here
WRAP = """
import base64, sys
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pqkeep.key_import import read_import_key, wrap
private = MLKEM768PrivateKey.generate()
form = (Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
wrapped = wrap(read_import_key(sys.stdin.buffer.read()), private.private_bytes(*form))
sys.stdout.write(base64.b64encode(wrapped).decode())
"""
"""A program for the client's interpreter, because this one has no cryptography."""
COOKIES = ("service_access_token", "service_refresh_token")


class _From(HTTPAdapter):
    """Sends requests from one loopback address."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Bind the connections to the address."""
        super().init_poolmanager(*args, source_address=(self._address, 0), **options)


def _addresses() -> Iterator[str]:
    return (f"127.1.{each // 250}.{each % 250 + 1}" for each in itertools.count())


@dataclass
class Person:
    """A signed-in person."""

    id: str
    email: str
    cookies: dict[str, str]


@dataclass
class Tenant:
    """One tenant with an API key and two of its people."""

    id: str
    api_key: str
    people: dict[str, Person] = field(default_factory=dict)
    """By role: ``owner`` and ``viewer``."""


@dataclass
class World:
    """An installation and its tenants.

    Preparations come from a new loopback address each time. So address limits, which the cases use
    up, do not stop them.
    """

    base_url: str
    operator: str
    mailbox: Mailbox
    client_interpreter: str
    _addresses: Iterator[str] = field(default_factory=_addresses)

    @classmethod
    def of(cls, ready: dict[str, str], client_interpreter: str) -> World:
        """Return the world of an installation, from its ready file."""
        mailbox = Mailbox(Path(ready["mailbox"]))
        return cls(ready["base_url"], ready["operator_key"], mailbox, client_interpreter)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        credential: str | None = None,
        person: Person | None = None,
        proven: bool = False,
    ) -> requests.Response:
        """Send one request with an API key, as a person, or anonymously."""
        headers = {} if credential is None else {"X-API-Key": credential}
        if proven and person is not None:
            headers["X-Step-Up-Token"] = self.step_up(person)
        with requests.Session() as session:
            session.mount("http://", _From(next(self._addresses)))
            return session.request(
                method,
                f"{self.base_url}/api/v1{path}",
                json={} if body is None else body,
                headers=headers,
                cookies=None if person is None else person.cookies,
                timeout=PATIENCE,
            )

    def call(self, method: str, path: str, body: Any = None, **who: Any) -> Any:
        """Return the data of a request that must succeed. It is repeated on a busy machine."""
        for _ in range(TRIES):
            response = self.ask(method, path, body, **who)
            if response.status_code != TIMED_OUT:
                break
        response.raise_for_status()
        return response.json()["data"]

    def step_up(self, person: Person) -> str:
        """Return a step-up token of a person without a second factor."""
        made = self.call("POST", "/auth/step-up", {"password": PASSWORD}, person=person)
        token: str = made["step_up_token"]
        return token

    def new_tenant(self) -> Tenant:
        """Make a tenant without rate limits, with its people."""
        named = {"name": f"fuzz {uuid.uuid4()}", "plan": "enterprise_plus"}
        made = self.call("POST", "/tenants", named, credential=self.operator)
        path = f"/tenants/{made['id']}"
        faster = {"requests_per_minute": 1_000_000}
        self.call("PATCH", path, faster, credential=self.operator)
        api_key = self.call("POST", path + "/api-keys", credential=self.operator)["api_key"]
        tenant = Tenant(made["id"], api_key)
        self.sign_in(tenant)
        return tenant

    def sign_in(self, tenant: Tenant) -> None:
        """Give a tenant a new owner and a new viewer with new sessions."""
        tenant.people = {role: self.new_person(tenant, role) for role in ("owner", "viewer")}

    def new_person(self, tenant: Tenant, role: str) -> Person:
        """Make a person accept an invitation."""
        invited = self.invite(tenant, role)
        accepted = {"token": invited["invitation_token"], "password": PASSWORD}
        response = self.ask("POST", "/auth/accept-invitation", accepted)
        response.raise_for_status()
        cookies = {name: str(response.cookies[name]) for name in COOKIES}
        return Person(response.json()["data"]["id"], invited["email"], cookies)

    def invite(self, tenant: Tenant, role: str) -> Any:
        """Return a new invitation from the operator, with its token."""
        path = f"/tenants/{tenant.id}/invitations"
        fields = {"email": f"{uuid.uuid4()}@example.com", "role": role}
        return self.call("POST", path, fields, credential=self.operator)

    def generate_keys(self, tenant: Tenant) -> None:
        """Give a tenant one key of each algorithm."""
        for algorithm in self.algorithms():
            named = {"algorithm": algorithm}
            self.call("POST", "/kms/keys/generate", named, credential=tenant.api_key)

    def wrap_a_private_key(self, import_key: Any) -> str:
        """Return a new private key of Kyber768, wrapped for an import key, in base64."""
        ended = subprocess.run(
            [self.client_interpreter, "-c", WRAP],
            input=json.dumps(import_key),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return ended.stdout

    def algorithms(self) -> list[str]:
        """Return all algorithms, each under one name."""
        document = requests.get(f"{self.base_url}/api/v1/openapi.json", timeout=PATIENCE)
        found: list[str] = document.json()["components"]["schemas"]["Algorithm"]["enum"]
        return [each for each in found if each not in ALIASES]

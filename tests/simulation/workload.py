"""The requests: each client of a gateway sends one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, cast
from uuid import UUID

from tests.simulation import responses
from tests.simulation.choices import Choices
from tests.simulation.gateways import Gateway
from tests.simulation.history import FindingError, KeyName
from tests.simulation.shard import Shard

from pqkeep_keyservice import clock
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import MAX_PAGE, Event, ListRecords, RecordEvents, SignCheckpoint
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, DEFAULT_SHARD, INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    BatchResults,
    CancelArchive,
    Decrypt,
    DisableKey,
    EnableKey,
    Encrypt,
    Encrypted,
    GenerateKey,
    GetActiveKey,
    Idempotency,
    Item,
    Key,
    ListKeys,
    ReEncrypt,
    ReEncrypted,
    Refused,
    Request,
    RetireKey,
    Rotated,
    RotateKey,
    ScheduleArchive,
    Sign,
    Signed,
    Target,
    UpdateKeyring,
    Verify,
)

TENANTS = tuple(TenantId(UUID(int=1 + number)) for number in range(2))
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
TRIES = 6
"""Attempts of a request that may be repeated."""


class Secret(NamedTuple):
    """The ciphertext of an acknowledged encryption."""

    tenant: TenantId
    version: KeyVersion
    ciphertext: bytes
    plaintext: bytes


class Statement(NamedTuple):
    """A signature that was acknowledged."""

    tenant: TenantId
    version: KeyVersion
    message: bytes
    signature: bytes


@dataclass
class Acknowledged:
    """The shared knowledge of all clients."""

    secrets: list[Secret] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    """The number of records that each request leaves, if any."""


def key_name(
    tenant: TenantId, algorithm: Algorithm | None, keyring: str = DEFAULT_KEYRING
) -> KeyName:
    """Return the history's name of a key."""
    return KeyName(str(tenant), keyring, str(algorithm))


class Client:
    """A client of a gateway."""

    def __init__(
        self,
        name: str,
        gateway: Gateway,
        choices: Choices,
        shards: Mapping[str, Shard],
        acknowledged: Acknowledged,
        tell: Callable[..., None],
    ) -> None:
        self._name = name
        self.gateway = gateway
        self._choices = choices
        self._shards = shards
        self._acknowledged = acknowledged
        self._tell = tell
        self._count = 0
        self._idempotency = 0

    async def work(self, steps: int) -> None:
        """Do a number of steps. Raises FindingError."""
        for _ in range(steps):
            await asyncio.sleep(self._choices.delay(0.0, 0.6))
            await self._choices.weighted(STEPS)(self)

    async def ask(self, request: Request[Any]) -> Any:
        """Return the checked result, or the kind of refusal. Raises FindingError."""
        self._count += 1
        request_id = f"{self._name}.{self._count}"
        if isinstance(request, Batch) or hasattr(request, "operation"):
            count = len(request.items) if isinstance(request, Batch) else 1
            self._acknowledged.asked[request_id] = count
        known = {name: each.server.known_commits for name, each in self._shards.items()}
        attribution = Attribution(request_id, f"api-key:{self._name}", "192.0.2.7", "allows")
        try:
            response: Any = await self.gateway.execute(request, attribution)
        except KeyServiceError as error:
            response = error.kind
        said = str(response) if isinstance(response, ErrorKind) else type(response).__name__
        self._tell("answered", request_id, type(request).__name__, said)
        self._check(request, request_id, response, known)
        return response

    def _check(
        self, request: Request[Any], request_id: str, response: Any, known: Mapping[str, int]
    ) -> None:
        if isinstance(response, ErrorKind) and response in responses.NEVER:
            raise FindingError("answers", f"{request_id}: {request!r} is refused: {response}")
        if responses.is_unknown(response):
            return
        carried_out = [
            name for name, each in self._shards.items() if each.history.carried_out(request_id)
        ]
        if len(carried_out) > (response is not ErrorKind.TENANT_MOVED):
            raise FindingError("one record", f"{request_id} is answered {response}: {carried_out}")
        if response is ErrorKind.TENANT_MOVED:
            return
        if isinstance(request, Batch):
            results = cast(BatchResults, response).results
            expected = [
                _said(item.request, result.kind if isinstance(result, Refused) else result)
                for item, result in zip(request.items, results, strict=True)
            ]
        elif hasattr(request, "operation"):
            expected = [_said(request, response)]
        elif isinstance(response, ErrorKind):
            raise FindingError("answers", f"{request_id}: {request!r} is refused: {response}")
        else:
            return
        shard = next(iter(carried_out), DEFAULT_SHARD)
        responses.check(self._shards[shard].history, request_id, expected, known[shard])

    async def repeat(self, request: Request[Any]) -> Any:
        """Repeat a request until there is a response, or too often."""
        response = await self.ask(request)
        for _ in range(TRIES):
            if not responses.is_temporary(response):
                break
            await asyncio.sleep(self._choices.delay(0.05, 2.0))
            response = await self.ask(request)
        return response

    def tenant(self) -> TenantId:
        """Return one of the tenants."""
        return self._choices.one_of(TENANTS)

    def algorithm(self) -> Algorithm:
        """Return one of the algorithms."""
        return self._choices.one_of((KEM, KEM, SIGNATURE))

    def version(self, tenant: TenantId, algorithm: Algorithm) -> KeyVersion:
        """Return an existing version, or the next one."""
        name = key_name(tenant, algorithm)
        count = max(len(each.history.keys.get(name, ())) for each in self._shards.values())
        return KeyVersion(1 + self._choices.below(count + 1))

    def idempotency(self) -> Idempotency | None:
        """Return a new Idempotency-Key, or None."""
        self._idempotency += 1
        if self._choices.happens(0.3):
            return None
        key = sha256(f"{self._name} {self._idempotency}".encode()).digest()
        return Idempotency(key, key)

    async def generate(self) -> None:
        """Generate a key."""
        request = GenerateKey(
            tenant=self.tenant(),
            algorithm=self.algorithm(),
            quota=None,
            idempotency=(idempotency := self.idempotency()),
            if_absent=self._choices.happens(0.3),
        )
        await (self.ask(request) if idempotency is None else self.repeat(request))

    async def rotate(self) -> None:
        """Rotate a key."""
        idempotency = self.idempotency()
        request = RotateKey(
            tenant=self.tenant(), algorithm=self.algorithm(), idempotency=idempotency
        )
        await (self.ask(request) if idempotency is None else self.repeat(request))

    async def race(self) -> None:
        """Change one key several times at once."""
        tenant, algorithm = self.tenant(), self.algorithm()
        changes: list[Request[Any]] = [
            self._choices.one_of(
                (
                    GenerateKey(tenant=tenant, algorithm=algorithm, quota=None),
                    RotateKey(tenant=tenant, algorithm=algorithm),
                    self._change(tenant, algorithm),
                )
            )
            for _ in range(2 + self._choices.below(3))
        ]
        await asyncio.gather(*map(self.ask, changes))

    async def change(self) -> None:
        """Change the status of a version."""
        await self.ask(self._change(self.tenant(), self.algorithm()))

    def _change(self, tenant: TenantId, algorithm: Algorithm) -> Request[Any]:
        version = self.version(tenant, algorithm)
        kind = self._choices.weighted(
            (
                (RetireKey, 6),
                (DisableKey, 3),
                (EnableKey, 5),
                (ScheduleArchive, 11),
                (CancelArchive, 2),
            )
        )
        more = {"days": 1 + self._choices.below(9)} if kind is ScheduleArchive else {}
        changing = cast(Callable[..., Request[Any]], kind)
        return changing(tenant=tenant, algorithm=algorithm, version=version, **more)

    async def encrypt(self) -> None:
        """Encrypt something."""
        request = self._encrypt()
        self._keep(request, await self.ask(request))

    async def decrypt(self) -> None:
        """Decrypt something."""
        if (secret := self._some_secret()) is not None:
            responses.require_plaintext(secret.plaintext, await self.ask(decrypting(secret)))

    async def sign(self) -> None:
        """Sign something."""
        message = self._text()
        request = Sign(tenant=self.tenant(), algorithm=SIGNATURE, version=None, message=message)
        response = await self.ask(request)
        if isinstance(response, Signed):
            self._acknowledged.statements.append(
                Statement(request.tenant, response.version, message, response.signature)
            )

    async def verify(self) -> None:
        """Verify a signature."""
        if self._acknowledged.statements:
            await self.ask(verifying(self._choices.one_of(self._acknowledged.statements)))

    async def batch(self) -> None:
        """Encrypt and decrypt several items at once."""
        tenant = self.tenant()
        secrets = [each for each in self._acknowledged.secrets if each.tenant == tenant][-3:]
        requests: list[Any] = [decrypting(secret) for secret in secrets]
        requests += [self._encrypt(tenant) for _ in range(1 + self._choices.below(3))]
        batch = Batch(tenant=tenant, items=tuple(Item(request) for request in requests))
        response = await self.ask(batch)
        if isinstance(response, BatchResults):
            for secret, result in zip(secrets, response.results, strict=False):
                responses.require_plaintext(secret.plaintext, result)
            for request, result in zip(requests, response.results, strict=True):
                self._keep(request, result)

    async def re_encrypt(self) -> None:
        """Re-encrypt a ciphertext to the active key."""
        secret = self._some_secret()
        if secret is None:
            return
        request = ReEncrypt(
            tenant=secret.tenant,
            algorithm=KEM,
            version=secret.version,
            ciphertext=secret.ciphertext,
            is_wrapped_key=False,
            target=Target(KEM),
        )
        response = await self.ask(request)
        if isinstance(response, ReEncrypted):
            again = Secret(secret.tenant, response.version, response.ciphertext, secret.plaintext)
            self._acknowledged.secrets.append(again)

    async def look(self) -> None:
        """Look keys up."""
        tenant, algorithm = self.tenant(), self.algorithm()
        await self.ask(GetActiveKey(tenant=tenant, algorithm=algorithm))
        await self.ask(ListKeys(tenant=tenant, algorithm=algorithm, status=None))

    async def read_log(self) -> None:
        """Read the newest records of a tenant, and a checkpoint."""
        tenant = self.tenant()
        before = min(each.history.numbers[str(tenant)] for each in self._shards.values())
        servers = [each.server for each in self._shards.values()]
        known = all(each.known_commits == each.commits for each in servers)
        response = await self.ask(ListRecords(tenant=tenant, limit=MAX_PAGE))
        if (
            not isinstance(response, ErrorKind)
            and known
            and len(response.lines) < min(before, MAX_PAGE)
        ):
            raise FindingError("lost", f"{len(response.lines)} of {before} records are listed")
        response = await self.ask(SignCheckpoint(tenant=INSTALLATION, algorithm=SIGNATURE))
        if not isinstance(response, ErrorKind):
            self._shards[DEFAULT_SHARD].history.check_root(
                response.checkpoint.size, response.checkpoint.root
            )

    async def report(self) -> None:
        """Report events of the gateway until they are recorded."""
        events = tuple(self._event(number) for number in range(1 + self._choices.below(3)))
        response = await self.repeat(RecordEvents(tenant=INSTALLATION, events=events))
        if not isinstance(response, ErrorKind):
            refused = {each.id for each in response.refused}  # it is too old by then
            self._acknowledged.events += [str(each.id) for each in events if each.id not in refused]

    async def limit(self) -> None:
        """Schedule the rotation and archiving of a keyring's keys."""
        rotation, archiving = self._choices.below(3), self._choices.below(3)
        await self.ask(
            UpdateKeyring(
                tenant=self.tenant(), rotation_days=rotation, archive_after_days=archiving
            )
        )

    def _event(self, number: int) -> Event:
        digest = sha256(f"{self._name} {self._count} {number}".encode()).digest()
        return Event(
            id=UUID(bytes=digest[:16]),
            at_us=clock.now_us(),
            tenant=self.tenant(),
            principal="operator",
            operation=AuditEvent.CREATE_API_KEY,
            algorithm=None,
            key_version=None,
            outcome="success",
            request_id=f"{self._name}.event.{self._count}.{number}",
            source_address="",
            policy="",
        )

    def _encrypt(self, tenant: TenantId | None = None) -> Encrypt:
        return Encrypt(
            tenant=tenant or self.tenant(), algorithm=KEM, version=None, plaintext=self._text()
        )

    def _keep(self, request: Any, response: Any) -> None:
        if isinstance(request, Encrypt) and isinstance(response, Encrypted):
            assert response.version is not None
            self._acknowledged.secrets.append(
                Secret(request.tenant, response.version, response.ciphertext, request.plaintext)
            )

    def _some_secret(self) -> Secret | None:
        secrets = self._acknowledged.secrets
        return self._choices.one_of(secrets) if secrets else None

    def _text(self) -> bytes:
        return f"{self._name} {self._count}".encode() * (1 + self._choices.below(200))


STEPS: Sequence[tuple[Callable[[Client], Awaitable[None]], int]] = (
    (Client.generate, 14),
    (Client.rotate, 8),
    (Client.change, 12),
    (Client.race, 5),
    (Client.encrypt, 12),
    (Client.decrypt, 16),
    (Client.sign, 8),
    (Client.verify, 3),
    (Client.batch, 6),
    (Client.re_encrypt, 4),
    (Client.look, 4),
    (Client.read_log, 3),
    (Client.report, 5),
    (Client.limit, 2),
)


def decrypting(secret: Secret) -> Decrypt:
    """Return the request that decrypts a ciphertext."""
    return Decrypt(
        tenant=secret.tenant, algorithm=KEM, version=secret.version, ciphertext=secret.ciphertext
    )


def verifying(statement: Statement) -> Verify:
    """Return the request that verifies a signature."""
    return Verify(
        tenant=statement.tenant,
        algorithm=SIGNATURE,
        version=statement.version,
        message=statement.message,
        signature=statement.signature,
    )


def _said(request: Any, response: Any) -> tuple[str, KeyName, int | None, str]:
    """Return the facts of a response: operation, key, version, outcome."""
    name = key_name(request.tenant, request.algorithm, request.keyring)
    version = getattr(request, "version", None)
    if isinstance(response, ErrorKind):
        return request.operation, name, version, response
    if isinstance(response, Key | Rotated):
        version = response.key.version
    elif isinstance(response, Encrypted | Signed):
        version = response.version
    return request.operation, name, version, "success"

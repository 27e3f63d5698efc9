"""Makes a large installation: ``make large``, or ``python -m benchmarks.large DIRECTORY``.

Its demo tenant has 10,000 keys in 500 keyrings, 5,000 API keys, a million records and 300 members.
They are three years old and younger. The product's own code fills both databases, with its clock
set to these years. Then ``pqkeepd dev --data DIRECTORY/data`` runs the installation, and
``benchmarks.lists`` measures it. The same numbers give the same names, ages and uses.

The people ``owner@localhost``, ``admin@example.com``, ``developer@example.com`` and
``viewer@example.com`` sign in with ``PASSWORD``.
"""

import argparse
import asyncio
import gc
import itertools
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa
import uvloop

from benchmarks.command import Report, exit_status
from benchmarks.errors import BenchmarkError
from benchmarks.installation import RATE
from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential, read_pepper
from pqkeep_gateway.access.entitlements import Entitlements, TenantStatus, Tier
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.access.scopes import Scope, scopes_text
from pqkeep_gateway.people.passwords import Passwords, hasher
from pqkeep_gateway.storage.api_keys import ApiKeyStatus
from pqkeep_gateway.storage.database import close_database, microseconds, open_database, transaction
from pqkeep_gateway.storage.schema import API_KEYS, INVITATIONS, USERS
from pqkeep_gateway.storage.shards import SqlShards
from pqkeep_gateway.storage.tenants import Tenant, add_tenant
from pqkeep_gateway.storage.users import email_key
from pqkeep_keyservice import clock
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.worker_processes import worker_settings
from pqkeep_keyservice.process import open_database as open_keys
from pqkeep_keyservice.root_key_sources.sources import read_root_keys
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import DEFAULT_SHARD, TenantId
from pqkeep_protocol.messages import AnyRequest, Attribution, CreateKeyring, GenerateKey, RotateKey
from pqkeep_server.dev import OWNER
from pqkeep_server.dev_directory import prepare, write_credentials
from pqkeep_server.initialise import IN_FILES, Layout

PASSWORD = "the horse prefers oats"  # noqa: S105 - of the test accounts
TENANT = UUID(int=37)
AGE = timedelta(days=1095)
USED_DAYS = 400
"""The last days, which have records."""
VERSIONS = (
    (Algorithm.ML_KEM_768, 6),
    (Algorithm.ML_KEM_1024, 4),
    (Algorithm.X_WING, 4),
    (Algorithm.ML_DSA_65, 4),
    (Algorithm.XAES_256_GCM, 2),
)
"""The versions of each key of a keyring."""
PER_KEYRING = sum(versions for _, versions in VERSIONS)
USES = {
    Algorithm.ML_DSA_65: (Operation.SIGN, Operation.VERIFY),
    Algorithm.XAES_256_GCM: (Operation.ENCRYPT, Operation.DECRYPT),
}
KEM_USES = (Operation.ENCRYPT, Operation.ENCRYPT, Operation.DECRYPT, Operation.ENCAPSULATE)
TEAMS = ("payments", "customers", "ledger", "identity", "archive", "reports", "mobile", "search")
DATA = ("cards", "invoices", "profiles", "tokens", "backups", "messages", "exports", "sessions")
SERVICES = (
    *("checkout", "billing", "refunds", "login", "mailer", "indexer", "importer", "exporter"),
    *("scheduler", "gateway", "reporting", "fraud", "loyalty", "support", "warehouse", "pricing"),
)
REGIONS = ("eu", "us", "ap")
PER_PROGRAM = 4
"""Programs that use a keyring."""
REFUSED_EVERY = 990
AT_ONCE = 60
HOURS = 24
_DEADLINE = 1e12
_STRIDE = 7919
"""A prime, so that neighbouring records differ in keyring and program."""


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of an installation."""

    keys: int = 10_000
    """Key versions: PER_KEYRING in each keyring."""
    api_keys: int = 5_000
    records: int = 1_000_000
    members: int = 300
    tenants: int = 2_000
    """Other tenants. They are empty."""

    @property
    def keyrings(self) -> int:
        """The number of keyrings, without the default one."""
        return self.keys // PER_KEYRING


@dataclass
class SetClock:
    """A clock that is set, and moves a microsecond at each reading."""

    us: int
    read: int = field(default=0, init=False)

    def __call__(self) -> int:
        """Return microseconds since 1970."""
        self.read += 1
        return self.us + self.read

    def set(self, moment: datetime) -> None:
        """Set the time."""
        self.us, self.read = microseconds(moment), 0


def keyring_name(number: int) -> str:
    """Return a keyring's name: ``payments.cards-000``."""
    team, data = TEAMS[number % len(TEAMS)], DATA[number // len(TEAMS) % len(DATA)]
    return f"{team}.{data}-{number:03}"


def api_key_name(version: int) -> str:
    """Return the name of an API key. The first is ``checkout``."""
    service = SERVICES[(version - 1) % len(SERVICES)]
    region = REGIONS[version % len(REGIONS)]
    return service if version <= len(SERVICES) else f"{service}-{region}-{version:04}"


def programs_of(keyring: int, api_keys: int) -> list[str]:
    """Return the principals that use a keyring. Every tenth keyring is used by checkout."""
    versions = [(keyring * 5 + place * 977) % api_keys + 1 for place in range(PER_PROGRAM)]
    if keyring % 10 == 0:
        versions[0] = 1
    return [f"api-key:{version}/{api_key_name(version)}" for version in versions]


def key_days(keyring: int, place: int, versions: int) -> Iterator[int]:
    """Yield the day on which each version of a key is generated, counted from the oldest."""
    first = (keyring * 37 + place * 11) % 600
    step = (AGE.days - first) // (versions + keyring % 5)
    return (first + number * step for number in range(versions))


class Keys:
    """Fills the key service's database, one day after the other."""

    def __init__(self, parts: KeyServiceParts, size: Size, now: datetime) -> None:
        self._parts, self._size, self._now = parts, size, now
        self._tenant = TenantId(TENANT)
        self._clock = SetClock(microseconds(now - AGE))
        clock.now_us = self._clock
        self._newest: dict[tuple[int, Algorithm], int] = {}
        self._count = itertools.count()
        self._made = 0
        self._programs = [programs_of(n, size.api_keys) for n in range(size.keyrings)]

    async def start(self) -> None:
        """Run the start checks, at the oldest time: they write the log's first records."""
        await self._parts.activation.start(DEFAULT_SHARD)

    async def fill(self, report: Report) -> None:
        """Make the keyrings, the keys and the records."""
        work = self._of_days()
        await self._execute([self._keyring(number) for number in range(self._size.keyrings)])
        for day in range(AGE.days):
            self._clock.set(self._now - AGE + timedelta(days=day))
            for number, algorithm in work.get(day, ()):
                self._newest[number, algorithm] = self._newest.get((number, algorithm), 0) + 1
            await self._execute([self._change(*key) for key in work.get(day, ())])
            left = AGE.days - day
            if left <= USED_DAYS:
                await self._record(day, left)
            if day % 100 == 0:
                report(f"day {day} of {AGE.days}: {self._parts.store.size:,} records")

    def _of_days(self) -> dict[int, list[tuple[int, Algorithm]]]:
        """Return the keys with a new version, by day."""
        work: dict[int, list[tuple[int, Algorithm]]] = {}
        for number in range(self._size.keyrings):
            for place, (algorithm, versions) in enumerate(VERSIONS):
                for day in key_days(number, place, versions):
                    work.setdefault(day, []).append((number, algorithm))
        return work

    def _keyring(self, number: int) -> AnyRequest:
        team = TEAMS[number % len(TEAMS)]
        return CreateKeyring(
            tenant=self._tenant,
            keyring=keyring_name(number),
            description=f"Keys of the team {team}",
            labels={"owner": team, "data-class": ("public", "internal", "secret")[number % 3]},
            rotation_days=0 if number % 3 else 730,
        )

    def _change(self, number: int, algorithm: Algorithm) -> AnyRequest:
        keyring = keyring_name(number)
        if self._newest[number, algorithm] == 1:
            return GenerateKey(
                tenant=self._tenant, keyring=keyring, algorithm=algorithm, quota=None
            )
        return RotateKey(tenant=self._tenant, keyring=keyring, algorithm=algorithm)

    async def _execute(self, requests: list[AnyRequest]) -> None:
        attribution = Attribution("fill", "operator", "127.0.0.1", "")
        execute = self._parts.transactions.execute
        for begin in range(0, len(requests), AT_ONCE):
            some = requests[begin : begin + AT_ONCE]
            await asyncio.gather(*(execute(request, attribution, _DEADLINE) for request in some))

    async def _record(self, day: int, left: int) -> None:
        """Add a day's records, and count them. The last day's records are hours apart."""
        done = USED_DAYS - left + 1
        goal = self._size.records * done // USED_DAYS
        pieces = HOURS if left == 1 else 1
        for piece in range(1, pieces + 1):
            share = (goal - self._made) * piece // pieces - (goal - self._made) * (
                piece - 1
            ) // pieces
            at = self._now - AGE + timedelta(days=day, hours=HOURS * piece / pieces)
            self._clock.set(at - timedelta(minutes=1))
            batch = [(self._use(left), None) for _ in range(share)]
            if batch:
                await self._parts.store.commit(batch)
            await self._parts.checkpoint_signer.sign(Algorithm.ML_DSA_65)
        self._made = goal

    def _use(self, left: int) -> NewRecord:
        """Return a use of a key. A quarter of the keyrings has none in the last 100 days."""
        count = next(self._count)
        mixed = count * _STRIDE
        number = mixed % self._size.keyrings
        if number % 4 == 3 and left <= 100:  # noqa: PLR2004
            number -= 1
        algorithm = VERSIONS[mixed // 7 % len(VERSIONS)][0]
        newest = self._newest.get((number, algorithm), 0)
        if not newest:
            algorithm = Algorithm.ML_KEM_768
            newest = self._newest.get((number, algorithm), 1)
        uses = USES.get(algorithm, KEM_USES)
        operation = uses[count % len(uses)]
        reads = operation in {Operation.DECRYPT, Operation.VERIFY}
        version = newest - 1 if reads and newest > 1 and count % 3 == 0 else newest
        programs = self._programs[number]
        return NewRecord(
            tenant=self._tenant,
            principal=programs[mixed // 11 % len(programs)],
            operation=operation,
            algorithm=algorithm,
            key_version=version,
            outcome=ErrorKind.DECRYPTION_FAILED if count % REFUSED_EVERY == 0 else Outcome.SUCCESS,
            request_id=str(UUID(int=count)),
            source_address=f"192.0.2.{mixed % 254 + 1}",
            policy="plan-includes-algorithm",
            keyring=keyring_name(number),
        )


async def fill_keys(settings_file: Path, size: Size, now: datetime, report: Report) -> None:
    """Fill a new key service's database, which has no process."""
    settings = key_service_config.read(settings_file)
    sealer = Sealer(read_root_keys(settings.root_key_sources))
    database = await open_keys(settings)
    parts = wire(
        KeyStore(database, sealer),
        sealer,
        worker_settings(settings),
        settings_file,
        sources=settings.root_key_sources,
    )
    gc.disable()  # a day is thousands of objects without cycles
    if database.dialect.name == "sqlite":
        await database.read(_hurry)
    keys = Keys(parts, size, now)
    await keys.start()
    await keys.fill(report)
    parts.close()
    await database.close()
    gc.enable()


def _hurry(connection: sa.Connection) -> None:
    """Give SQLite a large cache, and let it not wait for the disk."""
    connection.exec_driver_sql("PRAGMA cache_size = -1048576")


async def fill_accounts(settings_file: Path, size: Size, now: datetime) -> str:
    """Fill a new accounts database. Return the plaintext of the first API key."""
    settings = gateway_config.read(settings_file)
    pepper = read_pepper(settings.pepper_file)
    engine = await open_database(
        settings.database.location, settings.database_password_file, pepper=pepper
    )
    passwords = Passwords(pepper, hasher(settings.password_costs))
    people = [person async for person in _people(passwords, size, now)]
    plaintext = new_credential(CredentialKind.API_KEY)
    await SqlShards(engine).add([DEFAULT_SHARD], now - AGE)
    async with transaction(engine) as connection:
        for tenant in _tenants(size, now):
            await add_tenant(connection, tenant)
        api_keys = list(_api_keys(pepper, plaintext, size, now))
        await connection.execute(sa.insert(API_KEYS), api_keys)
        await connection.execute(sa.insert(USERS), people)
        await connection.execute(sa.insert(INVITATIONS), list(_invitations(size, now)))
    await close_database(engine)
    return plaintext


def _tenants(size: Size, now: datetime) -> Iterator[Tenant]:
    tiers = (Tier.FREE, Tier.STARTER, Tier.PROFESSIONAL, Tier.ENTERPRISE)
    first = Tenant(
        id=TenantId(TENANT),
        name="demo",
        entitlements=Entitlements(Tier.ENTERPRISE_PLUS, requests_per_minute=RATE),
        status=TenantStatus.ACTIVE,
        created_at=now - AGE,
        updated_at=now - AGE,
    )
    yield first
    for number in range(size.tenants):
        at = now - AGE * (number / size.tenants)
        is_suspended = number % 40 == 0
        yield replace(
            first,
            id=TenantId(UUID(int=1_000_000 + number)),
            name=f"{TEAMS[number % len(TEAMS)].title()} {number:04} GmbH",
            entitlements=Entitlements(tiers[number % len(tiers)]),
            status=TenantStatus.SUSPENDED if is_suspended else TenantStatus.ACTIVE,
            created_at=at,
            updated_at=at,
        )


def _api_keys(pepper: Pepper, first: str, size: Size, now: datetime) -> Iterator[dict[str, object]]:
    """Yield rows. A third is revoked, some are unused, expire soon or have expired."""
    for version in range(1, size.api_keys + 1):
        plaintext = first if version == 1 else new_credential(CredentialKind.API_KEY)
        made = now - AGE * (1 - (version - 1) / size.api_keys)
        is_revoked = version % 3 == 0
        days_left = (version % 200) - 20
        used = None if version % 7 == 0 else max(made, now - timedelta(days=version % 150, hours=1))
        scope = Scope(operations=("use",), keyrings=(f"{TEAMS[version % len(TEAMS)]}.*",))
        yield {
            "tenant_id": TENANT,
            "version": version,
            "digest": pepper.digest(plaintext),
            "last4": plaintext[-4:],
            "status": ApiKeyStatus.REVOKED if is_revoked else ApiKeyStatus.ACTIVE,
            "created_at_us": microseconds(made),
            "revoked_at_us": microseconds(made + (now - made) / 2) if is_revoked else None,
            "accepted_until_us": None,
            "last_used_at_us": None if used is None else microseconds(used),
            "last_used_from": None if used is None else f"192.0.2.{version % 254 + 1}",
            "name": api_key_name(version),
            "scopes": None if version % 10 == 1 else scopes_text([scope]),
            "expires_at_us": (
                microseconds(now + timedelta(days=days_left)) if version % 4 == 2 else None  # noqa: PLR2004
            ),
            "allowed_addresses": "192.0.2.0/24" if version % 8 == 5 else None,  # noqa: PLR2004
        }


async def _people(
    passwords: Passwords, size: Size, now: datetime
) -> AsyncIterator[dict[str, object]]:
    """Yield rows. The first person of each role has PASSWORD, the others have none."""
    roles = (Role.OWNER, Role.ADMIN, Role.DEVELOPER, Role.VIEWER)
    for number in range(size.members):
        user, role = UserId(UUID(int=2_000_000 + number)), roles[min(number % 12, 3)]
        email = f"person-{number:03}@example.com"
        password = None
        if number < len(roles):
            role = roles[number]
            email = OWNER if role is Role.OWNER else f"{role}@example.com"
            password = await passwords.hash(user, PASSWORD, "127.0.0.1")
        yield {
            "id": user,
            "tenant_id": TENANT,
            "email": email,
            "email_key": email_key(email),
            "password_hash": password,
            "role": role,
            "created_at_us": microseconds(now - AGE * (1 - number / size.members)),
            "has_mfa": number >= len(roles) and number % 3 > 0,
            "last_sign_in_at_us": (
                None if number % 9 == 8 else microseconds(now - timedelta(days=number % 120))  # noqa: PLR2004
            ),
        }


def _invitations(size: Size, now: datetime) -> Iterator[dict[str, object]]:
    for number in range(size.members // 6):
        email = f"invited-{number:03}@example.com"
        yield {
            "digest": number.to_bytes(32, "big"),
            "tenant_id": TENANT,
            "email": email,
            "email_key": email_key(email),
            "role": (Role.DEVELOPER, Role.VIEWER)[number % 2],
            "expires_at_us": microseconds(now + timedelta(hours=1 + number)),
            "id": UUID(int=3_000_000 + number),
        }


def make(directory: Path, size: Size, report: Report) -> None:
    """Make an installation in a new directory. Raises BenchmarkError."""
    layout = Layout(directory.resolve() / "data")
    if layout.directory.exists():
        raise BenchmarkError(f"{layout.directory} exists already: name another directory")
    layout.directory.mkdir(mode=0o700, parents=True)
    credentials = prepare(layout, IN_FILES)
    now = datetime.now(UTC)
    began = time.perf_counter()
    api_key = uvloop.run(fill_accounts(layout.gateway_settings, size, now))
    report(f"accounts: {time.perf_counter() - began:.0f} s")
    uvloop.run(fill_keys(layout.key_service_settings, size, now, report))
    known = {"tenant_id": str(TENANT), "api_key": api_key, "owner_password": PASSWORD}
    write_credentials(layout, replace(credentials, **known))
    report(f"made in {time.perf_counter() - began:.0f} s: pqkeepd dev --data {layout.directory}")


def main() -> int:
    """Make the installation. Exit status 1: it could not be made."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="a new directory")
    for number in fields(Size):
        option = f"--{number.name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=number.default, help=f"{number.default:,}")
    chosen = vars(parser.parse_args())
    directory = chosen.pop("directory")
    return exit_status("large", lambda report: make(directory, Size(**chosen), report))


if __name__ == "__main__":
    sys.exit(main())

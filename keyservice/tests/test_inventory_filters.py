"""Filters and orders of the inventory, compared with the same by hand."""

from __future__ import annotations

import random  # noqa: TID251 - a seed gives the same rows again
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest
import sqlalchemy as sa

from pqkeep_keyservice.ledger.schema import AUDIT_CHECKPOINTS, AUDIT_LOG
from pqkeep_keyservice.ledger.uses import Counting, Tally
from pqkeep_keyservice.storage.inventory import find_inventory
from pqkeep_keyservice.storage.schema import KEY_REVISIONS, KEYRINGS, KEYS
from pqkeep_protocol.algorithms import LEGACY, Algorithm
from pqkeep_protocol.audit import InventorySort, ListInventory
from pqkeep_protocol.keys import KeyringName, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import KeyPosition

if TYPE_CHECKING:
    from pqkeep_keyservice.storage.database import Database

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

TENANT, OTHER = TenantId(uuid4()), TenantId(uuid4())
DAY = 24 * 3600 * 1_000_000
NOW = 21_000 * DAY
KEM, WING, OLD = Algorithm.ML_KEM_768, Algorithm.X_WING, LEGACY[0]
GONE, NAMES = "gone", ("default", "payments.cards", "Payments_%", "gone")
ROTATION_DAYS = 90
USERS = "api-key:1/checkout", "api-key:2/checkout", "api-key:3/batch", "user:7"


class Made(NamedTuple):
    """A key version, and the last use of each of its users."""

    keyring: str
    algorithm: Algorithm
    version: int
    status: KeyStatus
    created: int
    archive: int | None
    imported: bool
    used: dict[str, int]

    @property
    def name(self) -> tuple[str, str, int]:
        """Its place in the order of names."""
        return self.keyring, self.algorithm.value, self.version

    @property
    def rotation(self) -> int | None:
        """The time of its automatic rotation."""
        is_rotated = self.keyring == NAMES[1] and self.status is KeyStatus.ACTIVE
        is_possible = self.algorithm is not OLD and self.archive is None
        return self.created + ROTATION_DAYS * DAY if is_rotated and is_possible else None

    def last(self, user: str = "") -> int | None:
        """The last use by users with a name, or by all users."""
        return max((at for name, at in self.used.items() if name.endswith(user)), default=None)


def some(seed: int) -> list[Made]:
    """Return key versions with all kinds of facts."""
    of = random.Random(seed)  # noqa: S311 - the same for each run
    made = []
    for keyring in NAMES:
        for algorithm in (KEM, WING, OLD):
            for version in range(1, 5):
                status = KeyStatus.ACTIVE if version == 4 else KeyStatus.RETIRED
                users = of.sample(USERS, of.randrange(len(USERS)))
                scheduled = NOW + of.randrange(40) * DAY if of.random() < 0.3 else None
                made.append(
                    Made(
                        *(keyring, algorithm, version, status, NOW - of.randrange(800) * DAY),
                        *(scheduled, of.random() < 0.3),
                        {user: NOW - of.randrange(1, 120) * DAY for user in users},
                    )
                )
    return made


def fill(connection: sa.Connection, tenant: TenantId, made: list[Made]) -> None:
    """Store key versions and their uses, by the counting's own code."""
    for name, days in ((NAMES[1], ROTATION_DAYS), (GONE, ROTATION_DAYS)):
        texts = {"description": "", "labels": "", "purposes": "", "transit_type": ""}
        numbers = ("minimum_decryption_version", "minimum_encryption_version", "archive_after_days")
        flags = "derived", "deletion_allowed", "retired_public_keys_allowed"
        row = {**texts, **dict.fromkeys(numbers, 0), **dict.fromkeys(flags, False)}
        row |= {"destruction": "scheduled" if name == GONE else None, "first_version": 1}
        row |= {"tenant_id": tenant, "name": name, "revision": 1, "rotation_days": days, "mac": b""}
        connection.execute(sa.insert(KEYRINGS), row)
    tally: Tally = {}
    for keyring, algorithm in sorted({(key.keyring, key.algorithm) for key in made}):
        of = {"tenant_id": tenant, "keyring": keyring, "algorithm": algorithm.value}
        connection.execute(sa.insert(KEY_REVISIONS), {**of, "revision": 1, "mac": b""})
    for key in made:
        place = {"tenant_id": tenant, "keyring": key.keyring, "algorithm": key.algorithm.value}
        row = {**place, "version": key.version, "status": key.status.value, "public_key": b""}
        row |= {"created_at_us": key.created, "archive_at_us": key.archive}
        row |= {"imported": key.imported, "public_key_sha256": sha256(repr(key).encode()).digest()}
        connection.execute(sa.insert(KEYS), row)
        for user, at in key.used.items():
            use = (str(tenant), *key.name, user, "encrypt", at // DAY)
            tally[use] = (key.version, at, at)
    Counting().add(connection, tally)


def add_checkpoint(connection: sa.Connection) -> None:
    """Store a checkpoint that counts no further records."""
    log = connection.execute(sa.select(AUDIT_LOG.c.log_id)).scalar() or str(uuid4())
    row = {"size": 1, "algorithm": "Dilithium3", "log_id": log, "root": b"", "at_us": NOW}
    connection.execute(sa.insert(AUDIT_CHECKPOINTS), {**row, "key_version": 1, "signature": b""})
    connection.execute(sa.delete(AUDIT_LOG))
    connection.execute(sa.insert(AUDIT_LOG), {"log_id": log, "counted_until": 1})


YEAR, MONTH = NOW - 365 * DAY, NOW - 30 * DAY
FILTERS: tuple[tuple[dict[str, Any], Callable[[Made], Any]], ...] = (
    ({}, lambda _: True),
    ({"keyring": "default"}, lambda key: key.keyring == "default"),
    ({"not_keyring": "default"}, lambda key: key.keyring != "default"),
    ({"algorithms": (KEM, OLD)}, lambda key: key.algorithm in {KEM, OLD}),
    ({"statuses": (KeyStatus.ACTIVE,)}, lambda key: key.status is KeyStatus.ACTIVE),
    ({"words": ("PAYMENTS", "v2")}, lambda key: "ayments" in key.keyring and key.version == 2),
    ({"words": ("_%",)}, lambda key: "_%" in key.keyring),
    ({"created_before_us": YEAR}, lambda key: key.created < YEAR),
    ({"created_since_us": YEAR}, lambda key: key.created >= YEAR),
    ({"used_since_us": MONTH}, lambda key: (key.last() or 0) >= MONTH),
    ({"unused_since_us": MONTH}, lambda key: (key.last() or 0) < MONTH),
    ({"used_by": "checkout"}, lambda key: key.last("/checkout")),
    ({"used_by": "api-key:2"}, lambda key: key.last("2/checkout")),
    ({"used_by": "user:7"}, lambda key: key.last("user:7")),
    ({"used_by": "check"}, lambda _: False),
    ({"not_used_by": "checkout"}, lambda key: not key.last("/checkout")),
    (
        {
            "used_by": "checkout",
            "used_since_us": MONTH,
            "algorithms": (KEM,),
            "created_before_us": YEAR,
        },
        lambda key: (
            (key.last("/checkout") or 0) >= MONTH and key.algorithm is KEM and key.created < YEAR
        ),
    ),
    (
        {"used_by": "batch", "unused_since_us": MONTH, "not_used_by": "checkout"},
        lambda key: 0 < (key.last("/batch") or 0) < MONTH and not key.last("/checkout"),
    ),
    (
        {"rotated_before_us": NOW},
        lambda key: key.rotation is not None and key.rotation < NOW,
    ),
    ({"destroyed_before_us": NOW + 9 * DAY}, lambda key: (key.archive or 2 * NOW) < NOW + 9 * DAY),
    ({"is_scheduled": True}, lambda key: key.archive is not None),
    ({"is_scheduled": False}, lambda key: key.archive is None),
    ({"is_imported": True}, lambda key: key.imported),
    ({"is_keyring_deleted": True}, lambda key: key.keyring == GONE),
    ({"is_keyring_deleted": False}, lambda key: key.keyring != GONE),
    ({"is_legacy": True}, lambda key: key.algorithm is OLD),
    ({"is_legacy": False}, lambda key: key.algorithm is not OLD),
)
VALUES: dict[InventorySort, Callable[[Made], Any]] = {
    InventorySort.NAME: lambda _: 0,
    InventorySort.ALGORITHM: lambda key: key.algorithm.value,
    InventorySort.STATUS: lambda key: key.status.value,
    InventorySort.CREATED: lambda key: key.created,
    InventorySort.LAST_USED: Made.last,
    InventorySort.USES: lambda key: key.version * len(key.used),
    InventorySort.ROTATION: lambda key: key.rotation,
    InventorySort.DESTRUCTION: lambda key: key.archive,
}


async def test_filters_orders_and_pages_are_those_of_the_rows(database: Database) -> None:
    """Each filter and order gives the result of a computation in Python, for one tenant only."""
    made = some(1)
    await database.write(fill, TENANT, made)
    await database.write(fill, OTHER, some(2))
    await database.write(add_checkpoint)

    async def ask(**values: Any) -> tuple[list[tuple[str, str, int]], int, bool]:
        page = await database.query(find_inventory, ListInventory(tenant=TENANT, **values))
        assert page is not None
        found = [(name.keyring, name.algorithm.value, int(v)) for name, v in page.versions]
        return found, page.total, page.has_more

    for values, matches in FILTERS:
        expected = sorted(key.name for key in made if matches(key))
        assert await ask(**values) == (expected, len(expected), False), values
    for sort, value in VALUES.items():
        for is_descending in (False, True):
            named = sorted(made, key=lambda key: key.name)
            if sort is InventorySort.NAME and is_descending:
                named.reverse()
            with_value = [key for key in named if value(key) is not None]
            with_value.sort(key=value, reverse=is_descending)
            ordered = with_value + [key for key in named if value(key) is None]
            whole = [key.name for key in ordered]
            asked = {"sort": sort, "is_descending": is_descending}
            assert (await ask(**asked))[0] == whole, asked
            assert await ask(**asked, offset=10, limit=7) == (whole[10:17], len(whole), True)
            assert await ask(**asked, offset=len(whole)) == ([], len(whole), False)
    everything = [key.name for key in sorted(made, key=lambda key: key.name)]
    after = KeyPosition(
        Algorithm(everything[4][1]), KeyVersion(everything[4][2]), KeyringName(everything[4][0])
    )
    assert await ask(after=after, limit=3) == (everything[5:8], len(everything), True)

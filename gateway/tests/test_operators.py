"""Named operators are added, rotated and removed, and every change is in the audit log."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from gateway.tests.world import CONCURRENCY, ROUNDS, World
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import OperatorError, OperatorPrincipal
from pqkeep_gateway.storage.operators import SqlOperators
from pqkeep_gateway.tenancy.operators import MAX_OPERATORS, Operators
from pqkeep_protocol.keys import INSTALLATION

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def store(engine: AsyncEngine) -> SqlOperators:
    """No operator."""
    return SqlOperators(engine)


@pytest.fixture
def operators(store: SqlOperators, pepper: Pepper) -> Operators:
    """The operators of a new database."""
    return Operators(store, pepper)


async def test_a_credential_is_its_operator_s(
    operators: Operators, store: SqlOperators, pepper: Pepper
) -> None:
    """Each operator's credential leads to their name only."""
    made = {name: await operators.add(name) for name in ("ada", "grace.h-1_x")}
    for name, credential in made.items():
        assert kind_of(credential) is CredentialKind.OPERATOR
        assert await store.find(pepper.digest(credential)) == OperatorPrincipal(name)
    assert await store.find(pepper.digest(made["ada"] + "x")) is None
    listed = await operators.list()
    assert [entry.name for entry in listed] == sorted(made)
    assert all(entry.added_at == entry.rotated_at for entry in listed)


async def test_a_rotation_ends_the_old_credential(
    operators: Operators, store: SqlOperators, pepper: Pepper
) -> None:
    """A rotation replaces the credential; the old one is refused."""
    old = await operators.add("ada")
    new = await operators.rotate("ada")
    assert await store.find(pepper.digest(old)) is None
    assert await store.find(pepper.digest(new)) == OperatorPrincipal("ada")
    (shown,) = await operators.list()
    assert shown.rotated_at > shown.added_at


async def test_a_removed_operator_is_nobody(
    operators: Operators, store: SqlOperators, pepper: Pepper
) -> None:
    """A removed operator's credential is refused, and the name is free for a new operator."""
    credential = await operators.add("ada")
    await operators.remove("ada")
    assert await store.find(pepper.digest(credential)) is None
    assert await operators.list() == ()
    assert await operators.add("ada") != credential
    assert await store.find(pepper.digest(credential)) is None


async def test_of_rotations_at_once_one_credential_is_valid(
    operators: Operators, store: SqlOperators, pepper: Pepper
) -> None:
    """After concurrent rotations exactly one of the new credentials is valid."""
    first = await operators.add("ada")
    made = await asyncio.gather(*(operators.rotate("ada") for _ in range(CONCURRENCY)))
    found = [await store.find(pepper.digest(key)) for key in (first, *made)]
    assert Counter(found) == {None: CONCURRENCY, OperatorPrincipal("ada"): 1}
    assert found[0] is None


async def test_a_removal_ends_what_is_rotated_at_once(
    operators: Operators, store: SqlOperators, pepper: Pepper
) -> None:
    """After a concurrent removal and rotation, neither credential is accepted."""
    for _ in range(ROUNDS):
        made = [await operators.add("ada")]

        async def rotate(credentials: list[str] = made) -> None:
            with suppress(OperatorError):
                credentials.append(await operators.rotate("ada"))

        await asyncio.gather(rotate(), operators.remove("ada"))
        assert [await store.find(pepper.digest(item)) for item in made] == [None] * len(made)
        assert await operators.list() == ()


async def test_who_is_not_there_is_not_changed(operators: Operators) -> None:
    """Rotating or removing an unknown operator is refused; adding an existing one too."""
    await operators.add("ada")
    before = await operators.list()
    for action in (operators.rotate("grace"), operators.remove("grace"), operators.add("ada")):
        with pytest.raises(OperatorError):
            await action
    assert await operators.list() == before


@pytest.mark.parametrize(
    "name", ["", "Ada", "-ada", "ada lovelace", "ada\n", "ä", "a" * 33, "a:b", "a/b"]
)
async def test_names_are_plain(operators: Operators, name: str) -> None:
    """A name with characters that a record or terminal could not show is refused."""
    with pytest.raises(OperatorError):
        await operators.add(name)
    assert await operators.list() == ()


async def test_there_are_not_too_many(operators: Operators) -> None:
    """Of concurrent additions beyond the maximum, exactly the free number succeeds."""
    for number in range(MAX_OPERATORS - 1):
        await operators.add(f"operator-{number}")
    for _ in range(ROUNDS):
        additions = (operators.add(name) for name in ("x", "y", "z"))
        outcomes = await asyncio.gather(*additions, return_exceptions=True)
        assert sorted(isinstance(outcome, OperatorError) for outcome in outcomes) == [
            False,
            True,
            True,
        ]
        listed = await operators.list()
        assert len(listed) == MAX_OPERATORS
        await operators.remove(listed[-1].name)


async def test_each_change_is_recorded(world: World) -> None:
    """The log has each change with the operator's name, and no refused one."""
    operators = Operators(SqlOperators(world.engine), world.pepper)
    await operators.add("ada")
    await operators.rotate("ada")
    await operators.remove("ada")
    for action in (operators.rotate("ada"), operators.remove("ada"), operators.add("?")):
        with pytest.raises(OperatorError):
            await action
    await world.audit_delivery.empty()
    recorded = list(world.log.recorded.values())[-3:]
    assert [entry.operation for entry in recorded] == [
        "add-operator",
        "rotate-operator",
        "remove-operator",
    ]
    for entry in recorded:
        assert entry.tenant == INSTALLATION
        assert (entry.principal, entry.policy) == ("pqkeepd", "operator-ada")

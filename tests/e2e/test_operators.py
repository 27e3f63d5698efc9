"""``pqkeepd operator`` beside a running installation."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, kind_of

if TYPE_CHECKING:
    from tests.fixtures.caller import Caller


Run = Callable[..., subprocess.CompletedProcess[str]]
"""Takes arguments, and the expected status."""


@pytest.fixture
def operator_command(
    installation: Installation, command_on: Callable[[Installation, str], Run]
) -> Run:
    """``pqkeepd operator`` on an installation's data."""
    return command_on(installation, "operator")


def recorded(operator: Caller, operation: str) -> list[dict[str, object]]:
    """Return the records of an operation, once there are any."""
    deadline = time.monotonic() + PATIENCE
    while not (records := operator.get("/audit/records", operation=operation)["records"]):
        assert time.monotonic() < deadline
    return list(records)


@pytest.mark.threat("stolen-operator-credential")
def test_a_named_operator_comes_and_goes(installation: Installation, operator_command: Run) -> None:
    """Adding, rotating and removing apply to the next request, and the log has the name."""
    first = operator_command("add", "ada").stdout.removesuffix("\n")
    assert kind_of(first) is CredentialKind.OPERATOR
    ada = installation.caller(first)
    ada.get("/tenants")
    made = ada.post("/tenants", {"name": "made by ada"}, status=201)
    second = operator_command("rotate", "ada").stdout.removesuffix("\n")
    assert ada.refusal("/tenants", {"name": "too late"}) == (401, "ERR_AUTH_001", None)
    ada_again = installation.caller(second)
    ada_again.get("/tenants")
    assert operator_command("list").stdout.startswith("ada\t")
    operator_command("remove", "ada")
    assert ada_again.refusal("/tenants", {"name": "too late"}) == (401, "ERR_AUTH_001", None)
    assert operator_command("list").stdout == ""

    operator = installation.operator()
    created = {each["tenant_id"]: each["principal"] for each in recorded(operator, "create-tenant")}
    assert created[made["id"]] == "operator:ada"
    for operation in ("add-operator", "rotate-operator", "remove-operator"):
        (record,) = recorded(operator, operation)
        assert (record["principal"], record["policy"]) == ("pqkeepd", "operator-ada")
    files = [each.read_bytes() for each in installation.data.rglob("*") if each.is_file()]
    assert not any(each.encode() in file for each in (first, second) for file in files)


def test_a_name_that_exists(operator_command: Run) -> None:
    """A second operator with a name is refused with the reason and the right command."""
    assert operator_command("add", "twice").stdout
    said = operator_command("add", "twice", status=1).stderr
    assert "an operator named twice already exists: pqkeepd operator rotate twice" in said
    operator_command("remove", "twice")


def test_what_cannot_be_done_is_said(operator_command: Run) -> None:
    """An unknown name, a bad name and a wrong folder end with status 1 and one line."""
    for arguments in (("remove", "nobody"), ("rotate", "nobody"), ("add", "No Name")):
        ended = operator_command(*arguments, status=1)
        assert ended.stdout == ""
        assert ended.stderr.startswith("pqkeepd: ")
        assert ended.stderr.count("\n") == 1

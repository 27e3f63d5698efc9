"""Each process's role on a PostgreSQL server reaches that process's database and no other."""

from __future__ import annotations

import psycopg
import pytest
from tests.fixtures.postgresql import PostgresServer

DATABASES = {"pqkeep_gateway": "pqkeep_accounts", "pqkeep_keyservice": "pqkeep_keys"}


@pytest.mark.parametrize("role", DATABASES)
def test_a_role_reaches_its_own_database(role: str, postgres_server: PostgresServer) -> None:
    """With deploy/postgresql.sql each role can connect to its database and create tables there."""
    with psycopg.connect(postgres_server.url(role, DATABASES[role])) as connection:
        connection.execute("CREATE TABLE one (number int)")
        connection.rollback()


@pytest.mark.parametrize("role", [*DATABASES, "stranger"])
def test_a_role_reaches_no_other_database(role: str, postgres_server: PostgresServer) -> None:
    """Only its own database role may connect to a database."""
    if role == "stranger":
        postgres_server.sql("CREATE ROLE stranger LOGIN")
    for owner, database in DATABASES.items():
        if owner != role:
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                psycopg.connect(postgres_server.url(role, database))

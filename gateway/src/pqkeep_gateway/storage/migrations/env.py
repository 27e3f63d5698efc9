"""Alembic's entry point: runs migrations on the connection in its configuration."""

from alembic import context

from pqkeep_gateway.storage.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()

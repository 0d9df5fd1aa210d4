"""Alembic environment: migrations run on the connection that ``upgrade`` passes."""

from alembic import context

from retrofill_core.store.tables import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()

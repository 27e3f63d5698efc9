"""The database: keyrings, root keys and idempotency records, committed with audit records."""

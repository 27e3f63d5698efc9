"""The database: keys, root keys and idempotency records, committed with audit records."""

"""The audit log: one durable record for each operation, before its response leaves."""

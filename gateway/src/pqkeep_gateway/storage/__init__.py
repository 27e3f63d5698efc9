"""The accounts database: tenants, people and API keys in SQL, without business rules."""

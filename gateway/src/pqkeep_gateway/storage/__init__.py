"""The accounts database: tenants and API keys in SQL. No rules live here."""

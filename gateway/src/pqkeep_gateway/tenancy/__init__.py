"""Rules for tenants, their API keys and their plans, without a web framework or a database."""

"""Tenants, their API keys and their plans. Rules only: no web framework, no database."""

"""Keyrings and audit records at rest. No rules live here."""

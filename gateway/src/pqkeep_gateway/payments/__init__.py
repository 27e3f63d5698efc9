"""Providers that take money, each behind an extra of its own; only wiring names them."""

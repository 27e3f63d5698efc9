"""Payment providers, each behind an optional extra; only wiring imports them."""

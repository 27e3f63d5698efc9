"""The machinery of the HTTP API: nothing here knows what the product does."""

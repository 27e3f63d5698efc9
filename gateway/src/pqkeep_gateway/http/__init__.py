"""The machinery of the HTTP API, independent of the product's features."""

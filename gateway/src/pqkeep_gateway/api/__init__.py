"""The HTTP API: one module for each part of the interface, one row for each endpoint."""

"""The HTTP API: one file a part of the interface, one row an endpoint."""

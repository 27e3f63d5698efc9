"""The JSON API over ASGI: endpoints as rows, errors from one table, one envelope."""

"""The key service: the only code that ever holds a private key.

It knows tenants as ids, speaks framed messages on one socket, and has no HTTP, users or plans.
Read it in this order: ``server``, ``transaction``, ``dispatch``, ``operations``, ``keys``,
``crypto``.
"""

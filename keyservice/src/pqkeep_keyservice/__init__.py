"""The key service: the only code that ever holds a private key.

It knows tenants only as ids, exchanges framed messages over sockets, and has no HTTP, users or
plans. Reading order: ``server``, ``transaction``, ``operations``, ``keys``, ``crypto``.
"""

"""Algorithms, without tenants, versions or storage.

Primitives come from pyca/cryptography and pqcrypto; this package combines them.
"""

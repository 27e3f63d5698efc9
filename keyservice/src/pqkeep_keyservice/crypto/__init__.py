"""Algorithms, and nothing about tenants, versions or storage.

Primitives come from pyca/cryptography; this package arranges them.
"""

"""The face for clients of Vault Transit: other paths, the same operations (docs/transit.md)."""

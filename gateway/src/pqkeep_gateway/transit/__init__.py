"""An API for clients of Vault Transit: the same operations under other paths (docs/transit.md)."""

"""How fast pqkeep is, against what it is built on. `make bench` runs it; see docs/performance.md."""

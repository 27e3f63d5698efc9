"""Benchmarks of pqkeep and of the libraries it is built on; see docs/performance.md."""

"""The baselines for comparison: library calls, a minimal service, the audit log alone."""

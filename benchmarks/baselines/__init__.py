"""What pqkeep is compared with: library calls, a minimal service, the audit log alone."""

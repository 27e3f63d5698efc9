"""What is held in memory while the process runs: keyrings, expanded keys, locks, workers."""

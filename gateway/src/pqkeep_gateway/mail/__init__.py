"""What pqkeep writes to people, and that it arrives."""

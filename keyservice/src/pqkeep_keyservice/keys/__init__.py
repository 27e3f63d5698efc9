"""A tenant's keys as values: every lifecycle rule, and the sealing of seeds."""

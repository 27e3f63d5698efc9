"""Keys of a tenant as values: the key with every lifecycle rule, and how seeds are sealed."""

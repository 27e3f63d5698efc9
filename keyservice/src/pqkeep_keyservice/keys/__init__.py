"""Keys of a tenant as values: the keyring with every lifecycle rule, and how seeds are sealed."""

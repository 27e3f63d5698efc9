"""``make release``: what people install pqkeep from, in one folder, the same bytes from the same commit."""

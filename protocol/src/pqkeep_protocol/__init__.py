"""What the gateway and the key service agree on, and nothing else.

Both processes import this package; neither imports the other. It does no cryptography and keeps
no secrets. It needs the standard library and msgspec, so reading it is reading the whole of what
can cross the wall.
"""

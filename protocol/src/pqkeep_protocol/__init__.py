"""The protocol between the gateway and the key service.

Both processes import this package; neither imports the other. It does no cryptography and keeps
no secrets. It needs the standard library and msgspec, so that this package alone shows everything
that the two processes can send each other.
"""

"""The protocol between the gateway and the key service.

Both processes import this package; neither imports the other. It does no cryptography. It defines
every message that the two processes can exchange. Except for ``startup``, which reads settings and
secret files and writes logs, it keeps no secrets and needs only the standard library and msgspec.
"""

"""The encodings in which a leaked secret can appear."""

import base64
from collections.abc import Iterator


def encodings(secret: bytes) -> Iterator[bytes]:
    """Return every form in which a secret could appear."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for shift in range(3):
        # The characters in the middle are the same wherever base64 began to count.
        yield base64.b64encode(bytes(shift) + secret)[4:-4]
        yield base64.urlsafe_b64encode(bytes(shift) + secret)[4:-4]
    yield repr(secret)[2:-1].encode()

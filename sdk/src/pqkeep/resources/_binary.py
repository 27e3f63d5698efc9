"""Bytes on their way out."""

import base64


def encoded(data: bytes) -> str:
    """Return bytes as the service reads them."""
    return base64.b64encode(data).decode("ascii")

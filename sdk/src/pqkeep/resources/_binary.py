"""Bytes on their way out."""

import base64


def encoded(data: bytes) -> str:
    """Return bytes as the service reads them."""
    return base64.b64encode(data).decode("ascii")


def encoded_or_none(data: bytes | None) -> str | None:
    """Return bytes as the service reads them; None leaves them out."""
    return None if data is None else encoded(data)


def encoded_key(public_key: bytes | str) -> str:
    """Return a public key as the service reads it: PEM as it is, bytes as base64."""
    return public_key if isinstance(public_key, str) else encoded(public_key)


def encoded_key_or_none(public_key: bytes | str | None) -> str | None:
    """Return a public key as the service reads it; None leaves it out."""
    return None if public_key is None else encoded_key(public_key)

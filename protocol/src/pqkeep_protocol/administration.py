"""Requests of an operator's command to the key service."""

from typing import Annotated

from msgspec import Meta

from pqkeep_protocol.messages import Request, Result

Count = Annotated[int, Meta(ge=0)]


class RootKeys(Result, frozen=True, kw_only=True, tag="root-keys"):
    """The progress of a rotation of the root key."""

    in_use: tuple[int, ...]
    """Ids of the root keys that private keys are sealed under, or may be, in order."""
    remaining: Count
    """Keyrings that are not wholly under the newest yet: a private key or the MAC."""
    damaged: Count
    """How many of them are not what was stored."""


class ReloadRootKeys(Request[RootKeys], frozen=True, kw_only=True, tag="reload-root-keys"):
    """Read the settings again, and use the root keys they name.

    The tenant is INSTALLATION. Errors: UNAVAILABLE if the root keys are not the right ones; the key
    service's log says why, and nothing is changed.
    """

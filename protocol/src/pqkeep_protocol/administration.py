"""What an operator's command asks of the key service."""

from typing import Annotated

from msgspec import Meta

from pqkeep_protocol.messages import Request, Result

Count = Annotated[int, Meta(ge=0)]


class RootKeys(Result, frozen=True, kw_only=True, tag="root-keys"):
    """How far the private keys are on their way to the newest root key."""

    in_use: tuple[int, ...]
    """Ids of root keys that private keys are sealed under, or may be, in order."""
    left: Count
    """Private keys that are not sealed under the newest."""
    damaged: Count
    """Those of them that could not be unsealed."""


class ReloadRootKeys(Request[RootKeys], frozen=True, kw_only=True, tag="take-up-root-keys"):
    """Read the settings again, and use the root keys they name.

    The tenant is INSTALLATION. Errors: UNAVAILABLE if they do not fit; the key service's log says
    why, and nothing is changed.
    """

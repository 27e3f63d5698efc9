"""Why there is no root key."""

from pqkeep_protocol.startup.settings import ConfigError


class RootKeyUnavailableError(ConfigError):
    """A root key cannot be had now, and could be later: its token or its command does not answer."""

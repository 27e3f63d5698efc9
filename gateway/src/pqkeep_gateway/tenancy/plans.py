"""The terms of each tier: plans.toml, overridden by the operator's own file."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.documents import decode_toml
from pqkeep_protocol.keyrings import MAX_KEYRINGS
from pqkeep_protocol.startup.settings import ConfigError, read_file

AtLeastOne = Annotated[int, Meta(ge=1)]
Unlimited = Literal["unlimited"]


class PlanTerms(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The terms of one tier."""

    monthly_price_usd: Annotated[int, Meta(ge=0)]
    """US dollars a month; for the enterprise tiers the minimum."""
    self_service: bool
    """Whether tenants can subscribe to it themselves."""
    requests_per_minute: AtLeastOne
    """The most requests of a tenant in any 60 seconds."""
    operations_per_month: AtLeastOne | Unlimited
    """The most successful key operations in a calendar month (UTC)."""
    pqc_keys: AtLeastOne | Unlimited
    """The most active PQC keys of a tenant, for all algorithms together."""
    keyrings: Annotated[int, Meta(ge=1, le=MAX_KEYRINGS)]
    """The most keyrings of a tenant, including ``default``."""
    api_keys: AtLeastOne
    """The most active API keys of a tenant."""
    algorithms: frozenset[Algorithm]
    """The algorithms for encryption and signing. Every plan can decrypt and verify with all."""
    key_wrap: bool
    """Whether symmetric keys can be wrapped. Every plan may unwrap."""


Plans = Mapping[Tier, PlanTerms]


def bound(value: int | Unlimited) -> int | None:
    """Return a limit of a plan; None: unlimited."""
    return value if isinstance(value, int) else None


def read(own: Path | None = None) -> Plans:
    """Read the plans; each value in the own file replaces the default. Raises ConfigError."""
    ours = files(__package__).joinpath("plans.toml").read_bytes()
    plans = _decode("plans.toml", ours)
    if own is not None:
        for tier, terms in _decode(str(own), read_file(own, "plans")).items():
            plans[tier] = plans[tier] | terms
    try:
        return msgspec.convert(plans, dict[Tier, PlanTerms])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{own or 'plans.toml'}: {error}") from None


def _decode(name: str, data: bytes) -> dict[Tier, dict[str, Any]]:
    try:
        return decode_toml(data.decode(), dict[Tier, dict[str, Any]])
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None

"""Puts the gateway together. The only file that names concrete classes."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import ASGIApp

from pqkeep_gateway.access.authentication import Authenticator
from pqkeep_gateway.access.credentials import read_pepper
from pqkeep_gateway.access.rate_limit import RateLimiter
from pqkeep_gateway.config import Config
from pqkeep_gateway.http import api_keys, health, kem, key_operation, keys, signature, tenants
from pqkeep_gateway.http.app import create_app
from pqkeep_gateway.key_client import KeyClient
from pqkeep_gateway.storage.database import open_database
from pqkeep_gateway.storage.tenancy import SqlApiKeys, SqlTenants
from pqkeep_gateway.tenancy import plans
from pqkeep_gateway.tenancy.api_keys import ApiKeys
from pqkeep_gateway.tenancy.tenants import Tenants


@dataclass(frozen=True, slots=True)
class Gateway:
    """What runs: the application, and what it depends on."""

    app: ASGIApp
    key_client: KeyClient
    engine: AsyncEngine


async def assemble(config: Config) -> Gateway:
    """Open what the settings name and put the parts together. Raises ConfigError."""
    pepper = read_pepper(Path(config.pepper_file))
    terms = plans.read()
    engine = await open_database(config.database)
    key_client = KeyClient(config.key_service_socket)
    sql_api_keys = SqlApiKeys(engine)
    authenticator = Authenticator(sql_api_keys, pepper, bytes.fromhex(config.operator_digest))
    overlap = timedelta(seconds=config.api_key_overlap_seconds)
    all_tenants = Tenants(SqlTenants(engine), authenticator.forget)
    api = (
        *(key_operation.endpoint(row, key_client) for row in kem.OPERATIONS),
        *(key_operation.endpoint(row, key_client) for row in signature.OPERATIONS),
        *keys.endpoints(key_client, terms),
        *tenants.endpoints(all_tenants, RateLimiter(), open_signup=config.signup == "open"),
        *api_keys.endpoints(
            all_tenants, ApiKeys(sql_api_keys, terms, pepper, authenticator.forget, overlap)
        ),
    )
    outside = (health.endpoint(key_client.is_reachable),)
    return Gateway(create_app(api, outside, authenticator), key_client, engine)

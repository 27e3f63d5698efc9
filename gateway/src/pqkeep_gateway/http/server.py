"""How uvicorn is set up: as little of it as can be, and nothing logged or told by it."""

import asyncio
from collections.abc import Callable, Sequence

import uvicorn
from starlette.types import ASGIApp


def configuration(
    app: ASGIApp,
    *,
    protocol: Callable[..., asyncio.Protocol] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    headers: Sequence[tuple[str, str]] = (),
    drain_seconds: int | None = None,
) -> uvicorn.Config:
    """Return what uvicorn needs to know to serve an application over this protocol.

    The protocol, address and drain count only where uvicorn listens itself.
    """
    return uvicorn.Config(
        app,
        interface="asgi3",
        host=host,
        port=port,
        http=protocol or "httptools",  # type: ignore[arg-type]  # uvicorn calls it
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=list(headers),
        timeout_graceful_shutdown=drain_seconds,
    )

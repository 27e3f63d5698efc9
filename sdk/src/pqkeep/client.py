"""The client: one service, one API key, and the resources behind them."""

from types import TracebackType
from typing import Self

from pqkeep._transport import Transport
from pqkeep.resources import Kem, Keys, Signatures


class Client:
    """Talks to one pqkeep service as one tenant. Threads may share it.

    Close it, or use it in a ``with`` statement.
    """

    def __init__(self, base_url: str, api_key: str, *, timeout: float = 30.0) -> None:
        """Take the service's address, without ``/api/v1``, and a timeout in seconds.

        Raises ValueError for what can be neither an address nor an API key.
        """
        self._transport = Transport(base_url, api_key, timeout)
        self.kem = Kem(self._transport)
        self.signatures = Signatures(self._transport)
        self.keys = Keys(self._transport)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pqkeep.Client, {self._transport!r}>"

"""Requests to endpoints without a method of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pqkeep._call import Call, Query, change, get
from pqkeep._data import Data
from pqkeep._operation import Operation

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Requests(Generic[T_co]):
    """Requests with the client's credential, retries and errors."""

    _transport: T_co

    @Operation
    def send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        query: Query | None = None,
        idempotency_key: str | None = None,
    ) -> Call[Mapping[str, object]]:
        """Send a request, and return the response's ``data`` unchanged.

        ``path`` comes after ``/api/v1``; names in it must be quoted. Fields that are None are left
        out. Every request but GET gets an Idempotency-Key, by default a new one.
        """
        if method == "GET":
            return get(path, Data.unchanged, query)
        call = change(path, Data.unchanged, body, method=method, query=query)
        return replace(call, idempotency_key=idempotency_key)

"""The health of the service, the state of the installation, and its operators; tools; requests.

The state and the operators need the operator's credential.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pqkeep._call import Call, Query, change, get, post
from pqkeep._data import Data, encoded
from pqkeep._operation import Operation
from pqkeep.models import Health, Installation, InstallationPart, Operator

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Status(Generic[T_co]):
    """The service as a whole."""

    _transport: T_co

    @Operation
    def health(self) -> Call[Health]:
        """Return if the service is ready. Raises OutOfServiceError if not."""
        return Call(method="GET", path="/healthz", read=_health)


def _health(data: Data) -> Health:
    return Health(status=data.text("status"))


FACTS = ("log", "root_key", "mail", "backups", "tenants")
"""The fields that are objects. The field of an unavailable part is null."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InstallationState(Generic[T_co]):
    """The installation's state, for operators."""

    _transport: T_co

    @Operation
    def get(self) -> Call[Installation]:
        """Return the health of each part, and the other fields of "Installation" in docs/api.md."""
        return get("/installation", _installation)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operators(Generic[T_co]):
    """Named operators. The command ``pqkeepd operators`` on the host adds and removes them."""

    _transport: T_co

    @Operation
    def list(self) -> Call[tuple[Operator, ...]]:
        """Return all named operators, with the last use of their credentials."""
        return get("/operators", lambda data: tuple(map(_operator, data.objects("operators"))))


def _installation(data: Data) -> Installation:
    return Installation(
        version=data.text("version"),
        parts=tuple(
            InstallationPart(
                name=part.text("name"),
                is_ready=part.flag("ready"),
                reason=part.text_or_none("reason"),
            )
            for part in data.objects("parts")
        ),
        facts={name: data.json_or_none(name) for name in FACTS},
        certificates={
            certificate.text("name"): certificate.time("expires_at")
            for certificate in data.objects("certificates")
        },
    )


def _operator(data: Data) -> Operator:
    return Operator(
        name=data.text("name"),
        created_at=data.time("created_at"),
        last_used_at=data.time_or_none("last_used_at"),
        last_used_from=data.text_or_none("last_used_from"),
    )


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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tools(Generic[T_co]):
    """Operations without a key."""

    _transport: T_co

    @Operation
    def hash(self, data: bytes, *, hash_algorithm: str | None = None) -> Call[bytes]:
        """Return the digest of at most 1,048,576 bytes.

        ``hash_algorithm`` is ``SHA-256`` (the default), ``SHA-224``, ``SHA-384`` or ``SHA-512``.
        For SHA-3 it is for example ``SHA3-256``.
        """
        return post(
            "/tools/hash",
            lambda response: response.binary("hash"),
            {"data": encoded(data), "hash_algorithm": hash_algorithm},
        )

    @Operation
    def random(self, *, size: int | None = None) -> Call[bytes]:
        """Return random bytes of the key service: 32, or ``size``, at most 131,072."""
        return post("/tools/random", lambda response: response.binary("random"), {"size": size})

"""Recovers the shared secrets of local files' headers: those of several files by one request."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pqkeep.cli import documents
from pqkeep.cli.armor import ArmorReader
from pqkeep.cli.failures import NOT_VERIFIED, Refusal
from pqkeep.cli.several import succeeded
from pqkeep.cli.sources import Source
from pqkeep.errors import PqkeepError

if TYPE_CHECKING:
    from pqkeep.client import Client

K = TypeVar("K")
ENVELOPE = b"pqk1."
"""How the text of an envelope begins."""
Arguments = dict[str, Any]
"""Of a method of the client, by name."""


class Encapsulated(NamedTuple):
    """What recovers a file's shared secret. A file can name any KEM ciphertext, with any key."""

    kem_ciphertext: bytes
    key_version: int
    algorithm: str
    keyring: str | None


class Recovery:
    """Asks the service for shared secrets, and remembers those that were asked for together."""

    def __init__(self, client: "Client") -> None:
        """Ask nothing yet."""
        self._client = client
        self._secrets: dict[Encapsulated, bytes | PqkeepError] = {}

    def ask(self, encapsulated: Iterable[Encapsulated]) -> None:
        """Ask for shared secrets; what is refused as a whole is asked for again."""
        ask(
            self._client.kem.decapsulate_many,
            {each: each._asdict() for each in encapsulated},
            self._secrets,
        )

    def decapsulate(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str | None
    ) -> bytes:
        """Return a shared secret. Raises PqkeepError."""
        encapsulated = Encapsulated(kem_ciphertext, key_version, algorithm, _named(keyring))
        asked = self._secrets.get(encapsulated)
        if asked is not None:
            return succeeded(asked)
        return self._client.kem.decapsulate(**encapsulated._asdict())


def ask(
    many: Callable[..., Iterator[bytes | PqkeepError]],
    items: Mapping[K, Arguments],
    found: dict[K, bytes | PqkeepError],
) -> None:
    """Ask for the results of many calls, and note each; none of a request that is refused."""
    with suppress(PqkeepError):
        found.update(zip(items, many(items.values()), strict=False))


def is_envelope(opened: Source) -> bool:
    """Return whether a file is the text of an envelope, which the service decrypts."""
    return opened.first() == b"p" and opened.first(len(ENVELOPE)) == ENVELOPE


def require_local(opened: Source, file: str) -> None:
    """Raise Refusal for what the service encrypted: it has no recipients to change."""
    if opened.first() == b"{" or is_envelope(opened):
        raise Refusal(
            f"{file} was not encrypted locally, and its header names no recipients",
            "what the service encrypted is moved by POST /kem/re-encrypt (client.kem.re_encrypt)",
            NOT_VERIFIED,
        )


def binary(opened: Source) -> Source | ArmorReader:
    """Return what reads a local file's bytes, of its text too."""
    return ArmorReader(opened) if opened.first() == b"-" else opened


def first_recipient(opened: Source) -> Encapsulated:
    """Return what recovers the shared secret of a file's first recipient, who is its writer."""
    from pqkeep.local import read_header  # noqa: PLC0415 - it loads cryptography

    first = read_header(binary(opened)).recipients[0]
    return Encapsulated(
        first.kem_ciphertext, first.key_version, first.algorithm, _named(first.keyring)
    )


def _named(keyring: str | None) -> str | None:
    return None if keyring == documents.DEFAULT_KEYRING else keyring

"""Recovers the shared secrets of local files' headers, of several files in one request."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pqkeep import inputs
from pqkeep.cli import documents
from pqkeep.cli.armor import BEGIN, LONGEST_INTRODUCTION, ArmorReader
from pqkeep.cli.failures import UNREADABLE, Refusal
from pqkeep.cli.several import succeeded
from pqkeep.cli.sources import Source
from pqkeep.errors import PqkeepError
from pqkeep.models import Ciphertext

if TYPE_CHECKING:
    from pqkeep.client import Client

K = TypeVar("K")
Arguments = dict[str, Any]
"""The arguments of a client's method, by name."""


class Form(Enum):
    """The form of encrypted data."""

    LOCAL = auto()
    TEXT = auto()
    ENVELOPE = auto()
    DOCUMENT = auto()


class Encapsulated(NamedTuple):
    """The input that recovers a file's shared secret. A file can name any KEM ciphertext and key."""

    kem_ciphertext: bytes
    key_version: int
    algorithm: str
    keyring: str | None


class Recovery:
    """Recovers shared secrets in the service, and keeps those from a joint request."""

    def __init__(self, client: "Client") -> None:
        """Send no request yet."""
        self._client = client
        self._secrets: dict[Encapsulated, bytes | PqkeepError] = {}

    def ask(self, encapsulated: Iterable[Encapsulated]) -> None:
        """Recover shared secrets in one request. If it is refused, decapsulate() asks again."""
        ask(
            self._client.kem.decapsulate_many,
            {request: request._asdict() for request in encapsulated},
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
    """Make many calls in one request, and store each result.

    Store nothing if the request is refused.
    """
    with suppress(PqkeepError):
        found.update(zip(items, many(items.values()), strict=False))


def form_of(opened: Source, file: str) -> Form:
    """Return the form of encrypted data. Raises Refusal for other data."""
    begin = opened.first(len(inputs.LOCAL))
    if begin.startswith(inputs.LOCAL):
        return Form.LOCAL
    begin = opened.first(LONGEST_INTRODUCTION)
    if BEGIN in begin:
        return Form.TEXT
    text = (inputs.as_text(begin) or "").lstrip()
    if BEGIN.decode("ascii") in text:
        raise _unreadable(file, "encrypted data as text in UTF-16", "save it as UTF-8 or ASCII")
    if text.startswith("pqk1."):
        return Form.ENVELOPE
    if text.startswith("{"):
        return Form.DOCUMENT
    is_whole = len(begin) < LONGEST_INTRODUCTION
    what = inputs.describe(begin) if is_whole else "in an unknown form"
    raise _unreadable(
        file,
        f"{what}, not data from pqkeep encrypt",
        "name a file from pqkeep encrypt",
    )


def require_local(opened: Source, file: str) -> Form:
    """Return the form. Raises Refusal for data that the service encrypted: it has no recipients."""
    form = form_of(opened, file)
    if form is Form.DOCUMENT:
        data = opened.first(documents.LARGEST)
        if not documents.is_a(data, Ciphertext):
            what = f"{inputs.describe(data)}, not data from pqkeep encrypt"
            raise _unreadable(file, what, "name a file from pqkeep encrypt")
    if form in {Form.DOCUMENT, Form.ENVELOPE}:
        raise Refusal(
            f"{file} was encrypted by the service, so it has no recipients",
            "re-encrypt it with POST /kem/re-encrypt (client.kem.re_encrypt)",
            UNREADABLE,
        )
    return form


def _unreadable(file: str, what: str, next_step: str) -> Refusal:
    return Refusal(f"{file} is {what}", next_step, UNREADABLE)


def binary(opened: Source, form: Form) -> Source | ArmorReader:
    """Return a reader of a local file's bytes, which decodes the text form."""
    return ArmorReader(opened) if form is Form.TEXT else opened


def first_recipient(opened: Source, form: Form) -> Encapsulated:
    """Return the input that recovers the shared secret of the first recipient, the writer."""
    from pqkeep.local import read_header  # noqa: PLC0415 - it loads cryptography

    first = read_header(binary(opened, form)).recipients[0]
    return Encapsulated(
        first.kem_ciphertext, first.key_version, first.algorithm, _named(first.keyring)
    )


def _named(keyring: str | None) -> str | None:
    return None if keyring == documents.DEFAULT_KEYRING else keyring

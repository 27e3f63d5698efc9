"""Moves the records of an input: decrypted at the old service, and encrypted here."""

import base64
import binascii
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from pqkeep.algorithms import Algorithm
from pqkeep.cli.choice import ENCRYPTING
from pqkeep.cli.failures import OTHER, UNAVAILABLE, Refusal, printable
from pqkeep.cli.transit_files import Columns, Outcome, Output, Record, Records, Written
from pqkeep.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
    RateLimitError,
)
from pqkeep.vault_transit import (
    OldCiphertext,
    Plaintext,
    TransitKey,
    TransitSource,
    TransitSourceError,
    Undecrypted,
)

if TYPE_CHECKING:
    from pqkeep.client import Client

IN_A_BATCH = 64
"""The most ciphertexts in one request. OpenBao takes about 1,000 texts in one, with the names."""
BYTES_IN_A_BATCH = 2 * 1024 * 1024
"""The most characters of old ciphertexts in one request."""
NAMED_FAILURES = 20
"""The most failed records that are named on standard error. The output has all."""
_PREFIX = "vault:v"
_MOST_WAITS = 60
_TYPES = {
    Algorithm.XAES_256_GCM: ("aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305"),
    Algorithm.X_WING: ("x-wing",),
    Algorithm.ML_KEM_768: ("ml-kem-768",),
    Algorithm.ML_KEM_1024: ("ml-kem-1024",),
}
"""Key types of Transit for each algorithm.

A new keyring has the old key's type if it is listed here, otherwise the first type.
"""
_OTHER_NAMES = {"ML-KEM-768": Algorithm.ML_KEM_768}


@dataclass
class _Key:
    """The key here that encrypts."""

    keyring: str
    algorithm: str
    newest_version: int


@dataclass
class Move:
    """Moves batches of records."""

    old: TransitSource
    client: "Client"
    columns: Columns
    form: Written
    is_base64: bool = field(kw_only=True)
    key: _Key = field(init=False)
    above: int | None = None
    """Versions above this one are of ciphertexts that are moved already. None: there are none."""
    moved: int = 0
    unchanged: int = 0
    failed: int = 0

    def prepare(self, keyring: str, algorithm: str, latest: int | None) -> None:
        """Look at the old key, and make the key here if it is missing. Raises Refusal.

        ``latest`` is the old key's latest version, or None to ask for it.
        """
        there = _there(self.old, latest, is_derived=self.columns.context is not None)
        self.key = _here(self.client, keyring, algorithm, there, self.form)
        self.above = there.latest_version if self.form is Written.TRANSIT else None

    def run(self, missing: Iterable[Record], output: Output, records: Records) -> None:
        """Move all missing records."""
        for batch in _batches(missing, self.columns.ciphertext):
            outcomes = self._move(batch)
            output.append([records.line_of(outcome) for outcome in outcomes])
            for outcome in outcomes:
                self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        if not outcome.error:
            is_same = outcome.new == outcome.record.values[self.columns.ciphertext]
            self.unchanged += is_same
            self.moved += not is_same
            return
        self.failed += 1
        if self.failed <= NAMED_FAILURES:
            text = f"pqkeep: line {outcome.record.line}: {outcome.error}"
            typer.echo(printable(text), err=True)
        elif self.failed == NAMED_FAILURES + 1:
            typer.echo("pqkeep: more failed lines are in the output only", err=True)

    def _move(self, batch: Sequence[Record]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        asked: list[tuple[Record, OldCiphertext]] = []
        for record in batch:
            item = self._item(record)
            if isinstance(item, Outcome):
                outcomes[record.line] = item
            else:
                asked.append((record, item))
        opened = self.old.decrypt([item for _, item in asked]) if asked else []
        try:
            ready: list[tuple[Record, OldCiphertext, Plaintext]] = []
            for (record, item), result in zip(asked, opened, strict=True):
                if isinstance(result, Undecrypted):
                    outcomes[record.line] = Outcome(record, error=result.problem)
                else:
                    ready.append((record, item, result))
            made = self._encrypted([(item, plaintext) for _, item, plaintext in ready])
            for (record, _, _), new in zip(ready, made, strict=True):
                outcomes[record.line] = (
                    Outcome(record, error=_reason(new))
                    if isinstance(new, PqkeepError)
                    else Outcome(record, new=new)
                )
        finally:
            for result in opened:
                if isinstance(result, Plaintext):
                    result.wipe()
        return [outcomes[record.line] for record in batch]

    def _item(self, record: Record) -> OldCiphertext | Outcome:
        """Return the ciphertext to decrypt, or the outcome of a record that needs no request."""
        ciphertext = record.values[self.columns.ciphertext]
        if not ciphertext or not ciphertext.isascii() or not ciphertext.isprintable():
            return Outcome(record, error="there is no ciphertext")
        version = _version(ciphertext)
        if version is None:
            return Outcome(record, error="it does not begin with vault:v and a version")
        if self.above is not None and version > self.above:
            if version <= self.key.newest_version:
                return Outcome(record, new=ciphertext)
            return Outcome(record, error=f"no key has version {version}, old or new")
        values: list[bytes | None] = []
        for name in (self.columns.context, self.columns.associated_data):
            value = None if name is None else self._bound(record.values[name])
            if name is not None and value is None:
                return Outcome(record, error=f"column {name} is not base64, or not text")
            values.append(value)
        context, associated_data = values
        return (
            Outcome(record, error="the context is empty")
            if context == b""
            else OldCiphertext(ciphertext, context, associated_data or None)
        )

    def _bound(self, text: str | None) -> bytes | None:
        if text is None:
            return None
        with suppress(ValueError):
            if self.is_base64:
                return binascii.a2b_base64(text, strict_mode=True)
            return text.encode()
        return None

    def _encrypted(
        self, items: Sequence[tuple[OldCiphertext, Plaintext]]
    ) -> list[str | PqkeepError]:
        """Return the new ciphertexts. Refused requests are sent again after a pause."""
        if not items:
            return []
        kem, form = self.client.kem, self.form
        alone = kem.encrypt_to_envelope if form is Written.ENVELOPE else kem.encrypt
        many = kem.encrypt_to_envelope_many if form is Written.ENVELOPE else kem.encrypt_many
        common = {"keyring": self.key.keyring, "algorithm": self.key.algorithm}
        values = [{"plaintext": plaintext.value, **_with(item)} for item, plaintext in items]
        try:
            made: list[Any] = self._patiently(lambda: list(many(values, **common)))
        except InvalidRequestError:  # one of them is why: each alone shows which
            made = [
                self._patiently(lambda value=value: _or_error(alone, {**value, **common}))
                for value in values
            ]
        return [_text(new, form) for new in made]

    def _patiently(self, ask: Any) -> Any:
        """Return the result of a request. It waits as long as the rate limit says."""
        for _ in range(_MOST_WAITS):
            try:
                return ask()
            except RateLimitError as error:
                time.sleep(error.retry_after or 1)
        return ask()


def _with(item: OldCiphertext) -> dict[str, bytes]:
    """Return the associated data that binds the new ciphertext as the old one was bound."""
    bound = {"context": item.context, "associated_data": item.associated_data}
    return {name: value for name, value in bound.items() if value is not None}


def _or_error(alone: Any, values: dict[str, Any]) -> Any:
    try:
        return alone(**values)
    except InvalidRequestError as error:
        return error


def _text(new: Any, form: Written) -> str | PqkeepError:
    if isinstance(new, InvalidRequestError):
        return new
    if isinstance(new, PqkeepError):
        raise new
    if form is Written.ENVELOPE:
        return str(new.envelope)
    text = base64.b64encode(new.ciphertext).decode("ascii")
    return f"{_PREFIX}{new.key_version}:{text}" if form is Written.TRANSIT else text


def _reason(error: PqkeepError) -> str:
    return f"pqkeep refuses it: {error.error_code or type(error).__name__}"


def _version(ciphertext: str) -> int | None:
    number, colon, _ = ciphertext.removeprefix(_PREFIX).partition(":")
    is_number = number.isascii() and number.isdigit() and len(number) <= 9  # noqa: PLR2004 - digits
    return int(number) if ciphertext.startswith(_PREFIX) and colon and is_number else None


def _batches(records: Iterable[Record], column: str) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        own = len(record.values[column] or "")
        if batch and (len(batch) == IN_A_BATCH or size + own > BYTES_IN_A_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += own
    if batch:
        yield batch


def _there(old: TransitSource, latest: int | None, *, is_derived: bool) -> TransitKey:
    """Return the old key. Raises Refusal if the context does not fit it."""
    if latest is not None:
        return TransitKey("", latest, is_derived, is_convergent=False)
    key = old.read_key()
    if key.is_derived != is_derived:
        raise Refusal(
            "the old key is derived: each ciphertext needs its context"
            if key.is_derived
            else "the old key is not derived: its ciphertexts have no context",
            "name the column with --context-column"
            if key.is_derived
            else "leave out --context-column",
        )
    return key


def _here(client: "Client", keyring: str, algorithm: str, there: TransitKey, form: Written) -> _Key:
    """Return the key that encrypts. A missing keyring is created.

    Raises Refusal if the algorithm cannot encrypt, or if new and old versions overlap. It also
    raises Refusal if clients of Transit could not read the new ciphertexts.
    """
    types = _TYPES.get(_OTHER_NAMES.get(algorithm, algorithm))  # type: ignore[call-overload]
    if types is None:
        raise Refusal(
            f"--algorithm {algorithm} cannot encrypt", f"name one of {', '.join(ENCRYPTING)}"
        )
    first = there.latest_version + 1
    try:
        active = client.keys.active(algorithm, keyring=keyring)
    except NotFoundError:
        try:
            client.keyrings.create(
                keyring,
                first_version=first,
                description="Moved from Transit",
                derived=there.is_derived,
                transit_type=there.type if there.type in types else types[0],
            )
        except ConflictError:
            if form is Written.TRANSIT:
                _check_type(client, keyring, algorithm, types)
        active = client.keys.generate(algorithm, keyring=keyring, if_absent=True)
    if form is Written.TRANSIT:
        if active.key_version < first:
            raise Refusal(
                f"the old key has version {there.latest_version}, and the key here has version "
                f"{active.key_version}: a reader could not tell their ciphertexts apart",
                "name a new keyring with --keyring, which is made, or write another form: --write",
            )
        _check_type(client, keyring, algorithm, types)
    return _Key(keyring, algorithm, active.key_version)


def _check_type(client: "Client", keyring: str, algorithm: str, types: Sequence[str]) -> None:
    """Raise Refusal if clients of Transit read a different algorithm, or none, in this keyring."""
    try:
        stored = client.keyrings.get(keyring).transit_type
    except PermissionDeniedError:  # the API key may only encrypt
        return
    if stored not in types:
        has = f"has the Transit type {stored}" if stored else "has no Transit type"
        raise Refusal(
            f"keyring {keyring} {has}: clients of Transit could not read {algorithm} in it",
            "name a new keyring with --keyring, which is made, or write another form: --write",
        )


@contextmanager
def refusing() -> Iterator[None]:
    """Turn TransitSourceError in the block into a Refusal."""
    try:
        yield
    except TransitSourceError as error:
        status = UNAVAILABLE if error.is_temporary else OTHER
        raise Refusal(str(error), error.next_step, status) from None


def forbid_core_dumps() -> None:
    """Keep plaintexts out of core dumps."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

"""Moves the ciphertexts of a place to a campaign's target, in batches.

An entry is replaced only if it has not changed after the read. So an interrupted run, or two runs
at once, lose nothing. What is under the target is seen by its header, and needs no state.
"""

import os
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer

from pqkeep.cli.armor import ArmorReader, ArmorWriter
from pqkeep.cli.failures import Refusal, printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.recovery import Encapsulated, Recovery
from pqkeep.cli.sources import source
from pqkeep.cli.stored import LOCAL_FORMS, Form, Stored, StoredKey
from pqkeep.cli.stores import Entry, New, Place, Result, Swap
from pqkeep.errors import (
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
    RateLimitError,
    UnavailableError,
    UnreadableInputError,
)
from pqkeep.new_files import replacement

if TYPE_CHECKING:
    from pqkeep.client import Client

T = TypeVar("T")

IN_A_BATCH = 128
BYTES_IN_A_BATCH = 2 * 1024 * 1024
NAMED_FAILURES = 20
"""The most failures and unreadable entries that are named."""
LONGEST_WAIT = 3600.0
"""Seconds without any response after which a run ends."""
_VAIN_PASSES = 3
"""Passes in a row in which only other programs changed something."""
_VAIN_PAUSE = 0.25
"""Half of the first pause after such a pass, in seconds. Each pause is twice the last one."""
_FIRST_WAIT, _LONGEST_PAUSE = 1.0, 60.0
_BETWEEN_LINES, _BETWEEN_UPDATES = 10.0, 0.5
"""Seconds between two reports of progress: in a file, and on a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKey:
    """Key versions to move away from. None means all."""

    keyring: str
    algorithm: str
    key_versions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A campaign's keys. The target's version is the active one."""

    campaign: str
    sources: tuple[SourceKey, ...]
    target: StoredKey

    def is_source(self, key: StoredKey) -> bool:
        """Return True if data of a key is to be moved."""
        return key != self.target and any(
            (source.keyring, source.algorithm) == key[:2]
            and (source.key_versions is None or key.key_version in source.key_versions)
            for source in self.sources
        )

    def key_of(self, stored: Stored) -> StoredKey:
        """Return the counted key. For local data it is a source, or the target without a source."""
        keys = stored.keys
        sources = filter(self.is_source, keys)
        return next(sources, self.target if self.target in keys else keys[0])

    def moves(self, stored: Stored, *, new_file_key: bool) -> bool:
        """Return True if data is to be moved.

        Local data with a changed header may have an older file key. With ``new_file_key`` that
        entry is moved, too.
        """
        key = self.key_of(stored)
        is_older = new_file_key and stored.header is not None and stored.header.sequence > 1
        return self.is_source(key) or (key == self.target and is_older)


class Aim(NamedTuple):
    """A plan, and the public key of its target. None if the target encrypts no local data."""

    plan: Plan
    public_key: bytes | None


@dataclass(slots=True)
class Counts:
    """The entries of a place by kind."""

    by_key: Counter[tuple[StoredKey, Form]] = field(default_factory=Counter)
    older_file_keys: int = 0
    """Local data under the target with a changed header: its file key may be older."""
    unreadable: int = 0
    unreadable_names: list[str] = field(default_factory=list)
    other: int = 0
    """Data of other programs."""
    empty: int = 0

    def add(self, entry: Entry, plan: Plan) -> None:
        """Count an entry."""
        if entry.problem is not None:
            self.unreadable += 1
            if self.unreadable <= NAMED_FAILURES:
                self.unreadable_names.append(f"{entry.name}: {entry.problem}")
        elif entry.stored is not None:
            key = plan.key_of(entry.stored)
            self.by_key[key, entry.stored.form] += 1
            header = entry.stored.header
            self.older_file_keys += (
                key == plan.target and header is not None and header.sequence > 1
            )
        elif entry.data:
            self.other += 1
        else:
            self.empty += 1

    def by_version(self) -> Mapping[StoredKey, int]:
        """Return the ciphertexts of each key version."""
        total: Counter[StoredKey] = Counter()
        for (key, _), count in self.by_key.items():
            total[key] += count
        return total


class Progress:
    """Shows counts and rate: on one line of a terminal, otherwise on lines from time to time."""

    def __init__(self, invocation: Invocation) -> None:
        self._is_wanted = not invocation.quiet
        self._is_terminal = typer.get_text_stream("stderr").isatty()
        self._began = self._shown = time.monotonic()
        self._is_open = False
        self.read = self.moved = 0

    def tick(self) -> None:
        """Show the counts, unless they were just shown."""
        now = time.monotonic()
        pause = _BETWEEN_UPDATES if self._is_terminal else _BETWEEN_LINES
        if not self._is_wanted or now - self._shown < pause:
            return
        self._shown = now
        rate = self.moved / max(now - self._began, 0.001)
        text = f"{self.read:,} read, {self.moved:,} moved, {rate:,.0f}/s"
        if self._is_terminal:
            typer.echo(f"\r\x1b[K{text}", err=True, nl=False)
            self._is_open = True
        else:
            typer.echo(f"pqkeep: {text}", err=True)

    def end_line(self) -> None:
        """Remove the line, so that other text can be written."""
        if self._is_open:
            typer.echo("\r\x1b[K", err=True, nl=False)
            self._is_open = False


class Pace:
    """Waits: for the rate limit, for the service, and for the rate that the user wants."""

    def __init__(self, invocation: Invocation, progress: Progress, rate: float | None) -> None:
        self._invocation = invocation
        self._progress = progress
        self._rate = rate
        self._next = time.monotonic()
        self.most = IN_A_BATCH
        """The most items of a batch. It shrinks if the rate limit has no place for more."""

    def keep(self, items: int) -> None:
        """Wait until this many more items may be sent."""
        if self._rate is not None:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = max(self._next, time.monotonic()) + items / self._rate

    def patiently(self, ask: Callable[[], T], *, items: int = 1) -> T:
        """Return the result of a request. Wait after 429 and 503, for at most an hour.

        Raises TooManyItemsError if the rate limit refuses so many items again and again.
        """
        pause, refused = _FIRST_WAIT, 0
        ends = time.monotonic() + LONGEST_WAIT
        while True:
            try:
                return ask()
            except (RateLimitError, UnavailableError) as error:
                refused += isinstance(error, RateLimitError)
                if refused > 1 and items > 1:
                    raise TooManyItemsError from None
                wait = float(error.retry_after or pause)
                if time.monotonic() + wait > ends:
                    raise
                self._progress.end_line()
                self._invocation.note(f"pqkeep: {error.message}; waiting for {wait:.0f} s")
                time.sleep(wait)
                pause = min(pause * 2, _LONGEST_PAUSE)


class TooManyItemsError(Exception):
    """The rate limit has no place for a batch of this size."""


OF_AN_ITEM = (PqkeepError, Refusal, UnreadableInputError, ValueError, OSError)
"""Errors of one entry that do not stop the others."""
_OF_A_REQUEST = (RateLimitError, UnavailableError)


@dataclass
class Run:
    """A run over a place."""

    client: "Client"
    invocation: Invocation
    aim: Callable[[], Aim]
    """Returns the current aim: the target may get another active version during a run."""
    place: Place
    progress: Progress
    pace: Pace
    bound: Mapping[str, bytes] = field(default_factory=dict)
    """The associated data and the context of all entries."""
    new_file_key: bool = False
    is_dry: bool = False
    moved: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """The reason of each failure, by the entry's name."""
    counts: Counts = field(default_factory=Counts)
    """The counts of the newest pass."""
    left: int = 0
    """Entries that the newest pass found and did not move."""

    def __post_init__(self) -> None:
        """Look at the target."""
        self.plan, self.public_key = self.aim()

    def run(self) -> None:
        """Move everything, in passes over the place, until nothing more can be moved.

        Moving also ends after several passes in a row in which other programs held all entries.
        """
        vain = 0
        while vain < _VAIN_PASSES:
            before = self.moved
            if not self._pass() or not self.place.is_repeatable:
                break
            vain = vain + 1 if self.moved == before else 0
            if vain:
                time.sleep(_VAIN_PAUSE * 2**vain)
        self.progress.end_line()

    def _pass(self) -> bool:
        """Pass over all entries. Return True if another pass may move more."""
        self.plan, self.public_key = self.pace.patiently(self.aim)
        self.counts, self.left = Counts(), 0
        before, changed = self.moved, 0
        for refs in self.place.pages(self._look):
            if self.is_dry:
                continue
            for chunk in _shuffled(refs, self.pace.most):
                with self.place.claim(chunk) as own:
                    changed += len(chunk) - len(own) + self._batches(self.place.read(own))
        if self.is_dry:
            return False
        self.left -= self.moved - before
        return self.moved > before or changed > 0

    def _look(self, entry: Entry) -> bool:
        self.counts.add(entry, self.plan)
        self.progress.read += 1
        self.progress.tick()
        if entry.name in self.failures or not self._is_left(entry):
            return False
        self.left += 1
        return True

    def _is_left(self, entry: Entry) -> bool:
        return entry.stored is not None and self.plan.moves(
            entry.stored, new_file_key=self.new_file_key
        )

    def _batches(self, entries: Sequence[Entry]) -> int:
        """Move entries. Return the number of entries that other programs changed meanwhile."""
        changed = len(entries)
        entries = [entry for entry in entries if self._is_left(entry)]
        changed -= len(entries)
        waiting = [*_by_size(entries)]
        while waiting:
            batch = waiting.pop(0)
            self.pace.keep(len(batch))
            try:
                results = self._move(batch)
            except TooManyItemsError:
                self.pace.most = max(1, len(batch) // 2)
                waiting[:0] = [batch[: self.pace.most], batch[self.pace.most :]]
                continue
            for entry, result in zip(batch, results, strict=True):
                changed += result is Swap.CHANGED
                self._count(entry, result)
            self.progress.tick()
        return changed

    def _count(self, entry: Entry, result: Result) -> None:
        if result is Swap.DONE:
            self.moved += 1
            self.progress.moved += 1
        elif isinstance(result, str):
            self.left -= 1
            self.failures[entry.name] = result
            if len(self.failures) <= NAMED_FAILURES:
                self.progress.end_line()
                typer.echo(printable(f"pqkeep: {entry.name}: {result}"), err=True)
            elif len(self.failures) == NAMED_FAILURES + 1:
                typer.echo("pqkeep: more failures are in the result only", err=True)

    def _move(self, batch: Sequence[Entry]) -> Sequence[Result]:
        results: dict[str, Result] = {}
        local = [entry for entry in batch if _form(entry) in LOCAL_FORMS]
        if local:
            results.update(self._move_local(local))
        new: list[New] = []
        asked = [entry for entry in batch if _form(entry) not in LOCAL_FORMS]
        for entry, made in zip(asked, self._re_encrypted(asked), strict=True):
            if isinstance(made, New):
                new.append(made)
            else:
                results[entry.name] = made
        swapped = zip(new, self.place.swap(new), strict=True) if new else ()
        results.update({one.entry.name: result for one, result in swapped})
        return [results[entry.name] for entry in batch]

    def _re_encrypted(self, entries: Sequence[Entry]) -> Sequence[New | Result]:
        """Return the new ciphertexts, or the reasons of failures."""
        kem = self.client.kem
        target = self.plan.target
        common: dict[str, Any] = {
            "to_keyring": target.keyring,
            "to_algorithm": target.algorithm,
            "campaign": self.plan.campaign,
        }
        made: dict[str, Any] = {}
        items: dict[str, dict[str, Any]] = {}
        for entry in entries:
            if entry.stored is None or not entry.stored.request:
                made[entry.name] = "a shared secret cannot be moved: agree on a new one"
            else:
                items[entry.name] = {**entry.stored.request, **self.bound, **entry.bound}
        if items:
            try:
                values = [*items.values()]
                results: list[Any] = self.pace.patiently(
                    lambda: list(kem.re_encrypt_many(values, **common)), items=len(values)
                )
            except InvalidRequestError:  # one of them is why: each alone shows which
                results = [self._alone({**item, **common}) for item in items.values()]
            made |= dict(zip(items, results, strict=True))
        return [self._new(entry, made[entry.name]) for entry in entries]

    def _alone(self, item: dict[str, Any]) -> Any:
        try:
            return self.pace.patiently(lambda: self.client.kem.re_encrypt(**item))
        except (InvalidRequestError, NotFoundError, PermissionDeniedError) as error:
            return error

    def _new(self, entry: Entry, made: Any) -> New | Result:
        if isinstance(made, str):
            return made
        if isinstance(made, PqkeepError):
            return _reason(made)
        if not made.moved or entry.stored is None:
            return Swap.CHANGED
        key = StoredKey(made.keyring, made.algorithm, made.key_version)
        if key[:2] != self.plan.target[:2] or self.plan.is_source(key):
            return "the service returned data of another key than the target"
        try:
            return New(entry, entry.stored.written(made), key)
        except UnreadableInputError as error:
            return f"the service returned data that is {error.what}"

    def _move_local(self, entries: Sequence[Entry]) -> Iterator[tuple[str, Result]]:
        """Change the headers of local data, or encrypt it again. One request opens all headers."""
        recovery = Recovery(self.client)
        asked: list[Encapsulated] = []
        for entry in entries:
            if entry.stored is not None and entry.stored.header is not None:
                first = entry.stored.header.recipients[0]
                asked.append(
                    Encapsulated(
                        first.kem_ciphertext,
                        first.key_version,
                        first.algorithm,
                        None if first.keyring == "default" else first.keyring,
                    )
                )
        if len(asked) > 1:
            recovery.ask(asked)
        for entry in entries:
            yield entry.name, self._changed(entry, recovery)

    def _changed(self, entry: Entry, recovery: Recovery) -> Result:
        stored = entry.stored
        if stored is None or stored.header is None:
            return "it was replaced meanwhile"
        if self.public_key is None:
            return f"{self.plan.target.algorithm} encrypts no local data"
        try:
            change = self._change(stored, recovery)
            if entry.data is None:
                return self._change_file(entry, stored.form, change)
            return self._change_value(entry, stored.form, change)
        except (BlockingIOError, FileNotFoundError):
            return Swap.CHANGED
        except _OF_A_REQUEST:
            raise
        except OF_AN_ITEM as error:
            return Swap.CHANGED if self._is_changed(entry) else _reason(error)

    def _is_changed(self, entry: Entry) -> bool:
        """Return True if another program changed local data since it was read."""
        for now in self.place.read([entry.ref]):
            header = None if now.stored is None else now.stored.header
            before = None if entry.stored is None else entry.stored.header
            return header != before
        return True

    def _change(self, stored: Stored, recovery: Recovery) -> dict[str, Any]:
        """Return the arguments of the functions of pqkeep.local."""
        from pqkeep.local import Recipient  # noqa: PLC0415 - it loads cryptography

        assert stored.header is not None  # noqa: S101 - for the type checker
        assert self.public_key is not None  # noqa: S101 - for the type checker
        sources = [
            recipient.fingerprint
            for recipient, key in zip(stored.header.recipients, stored.keys, strict=True)
            if self.plan.is_source(key)
        ]

        def decapsulate(kem_ciphertext: bytes, **named: Any) -> bytes:
            return self.pace.patiently(lambda: recovery.decapsulate(kem_ciphertext, **named))

        return {
            "decapsulate": decapsulate,
            "add": [Recipient(public_key=self.public_key, **self.plan.target._asdict())],
            "remove": sources,
            "new_file_key": self.new_file_key,
        }

    def _change_file(self, entry: Entry, form: Form, change: dict[str, Any]) -> Result:
        from pqkeep.local import re_encrypt_file, re_encrypt_stream  # noqa: PLC0415 - cryptography

        if form is Form.LOCAL:
            with entry.changeable() as locked:
                is_changed = re_encrypt_file(locked, **change)
            return Swap.DONE if is_changed else Swap.CHANGED
        with (
            entry.changeable() as locked,
            source(str(entry.ref), self.invocation) as opened,
            replacement(locked) as target,
        ):
            text, reader = ArmorWriter(target), ArmorReader(opened)
            re_encrypt_stream(reader, text, **change)
            text.end()
            if not reader.is_alone:
                raise Refusal("other text surrounds the encrypted data", "")
        return Swap.DONE

    def _change_value(self, entry: Entry, form: Form, change: dict[str, Any]) -> Result:
        from pqkeep.local import re_encrypt  # noqa: PLC0415 - cryptography

        data = entry.data or b""
        if form is Form.LOCAL_BASE64:
            new = b64encode(re_encrypt(b64decode(b"".join(data.split())), **change))
        elif form is Form.LOCAL_TEXT:
            reader, made = ArmorReader(BytesIO(data)), BytesIO()
            text = ArmorWriter(made)
            text.write(re_encrypt(_all(reader), **change))
            text.end()
            if not reader.is_alone:
                raise Refusal("other text surrounds the encrypted data", "")
            new = made.getvalue()
        else:
            new = re_encrypt(data, **change)
        (result,) = self.place.swap([New(entry, new, self.plan.target)])
        return result


def _all(reader: ArmorReader) -> bytes:
    return b"".join(iter(lambda: reader.read(65_536), b""))


def _form(entry: Entry) -> Form | None:
    return None if entry.stored is None else entry.stored.form


def _shuffled(refs: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield chunks in random order, so that two simultaneous runs seldom have the same one."""
    for start in sorted(range(0, len(refs), size), key=lambda _: os.urandom(8)):
        yield refs[start : start + size]


def _by_size(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        own = len(entry.data or b"")
        if batch and size + own > BYTES_IN_A_BATCH:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += own
    if batch:
        yield batch


def _reason(error: Exception) -> str:
    if isinstance(error, PqkeepError):
        code = error.error_code
        return f"{error.message}{f' ({code})' if code else ''}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)

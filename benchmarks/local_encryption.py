"""Local encryption of a file, compared with a bare loop of AES-256-GCM over the same file.

Run as ``python -m benchmarks.local_encryption --size MEBIBYTES``. Each pass is a new process. The
output is a new, synchronized file, or /dev/null. Both programs alternate, and the best round of
each counts.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.console import results_console
from benchmarks.processes import output_of, python
from pqkeep import local

MEBIBYTE = 1024 * 1024
SIZE = 256
ROUNDS = 3
SLOWEST = 20
"""MiB/s: a slower pass is aborted."""
SEGMENT = 256 * 1024
TAG = 16
NOWHERE = Path(os.devnull)
PRIVATE = MLKEM768PrivateKey.from_seed_bytes(bytes(64))
AEAD = AESGCM(bytes(32))


class Pass(Struct, frozen=True):
    """One run over the file."""

    seconds: float
    cpu_seconds: float
    peak: int
    """The process's peak memory in bytes, with its interpreter and libraries."""


class Comparison(Struct, frozen=True, kw_only=True):
    """pqkeep and the loop in one direction, with one kind of output."""

    name: str
    mebibytes: int
    pqkeep: Pass
    loop: Pass

    @property
    def speed(self) -> float:
        """MiB/s."""
        return self.mebibytes / self.pqkeep.seconds

    @property
    def ratio(self) -> float:
        """The speed as a multiple of the loop's."""
        return self.loop.seconds / self.pqkeep.seconds


def compare(
    folder: Path | None, mebibytes: int = SIZE, rounds: int = ROUNDS
) -> tuple[Comparison, ...]:
    """Measure encryption and decryption with both kinds of output.

    Raises BenchmarkError. At most three large files exist at a time, so the page cache can hold
    them.
    """
    with tempfile.TemporaryDirectory(prefix="pqkeep-bench-", dir=folder) as temporary:
        plaintext, ciphertext, looped, target = (
            Path(temporary) / name for name in ("plaintext", "ciphertext", "looped", "target")
        )
        with plaintext.open("wb") as file:
            for _ in range(mebibytes):
                file.write(os.urandom(MEBIBYTE))
        encrypted = tuple(
            _alternate("encrypt", plaintext, plaintext, to, rounds) for to in (target, NOWHERE)
        )
        _run("encrypt", plaintext, ciphertext)
        _run("loop-encrypt", plaintext, looped)
        plaintext.unlink()
        return encrypted + tuple(
            _alternate("decrypt", ciphertext, looped, to, rounds) for to in (target, NOWHERE)
        )


def table(comparisons: tuple[Comparison, ...]) -> Table:
    """Return the measurements as a table."""
    shown = Table(
        title=f"Local encryption of {comparisons[0].mebibytes} MiB, and a bare AES-256-GCM loop",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    shown.add_column("operation", no_wrap=True)
    for column in ("MiB/s", "loop", "ratio", "CPU s", "loop", "peak MiB", "loop"):
        shown.add_column(column, justify="right")
    for each in comparisons:
        shown.add_row(
            each.name,
            f"{each.speed:,.0f}",
            f"{each.mebibytes / each.loop.seconds:,.0f}",
            f"{each.ratio:.2f}",
            f"{each.pqkeep.cpu_seconds:.2f}",
            f"{each.loop.cpu_seconds:.2f}",
            f"{each.pqkeep.peak / MEBIBYTE:.0f}",
            f"{each.loop.peak / MEBIBYTE:.0f}",
        )
    return shown


def _alternate(
    direction: str, source: Path, loop_source: Path, target: Path, rounds: int
) -> Comparison:
    pqkeep: list[Pass] = []
    loop: list[Pass] = []
    for _ in range(rounds):
        pqkeep.append(_run(direction, source, target))
        loop.append(_run(f"loop-{direction}", loop_source, target))
    return Comparison(
        name=f"{direction} {'nowhere' if target == NOWHERE else 'to disk'}",
        mebibytes=loop_source.stat().st_size // MEBIBYTE,
        pqkeep=min(pqkeep, key=lambda each: each.seconds),
        loop=min(loop, key=lambda each: each.seconds),
    )


def _run(name: str, source: Path, target: Path) -> Pass:
    if target != NOWHERE:
        target.unlink(missing_ok=True)
    os.sync()  # so that no pass writes what the one before it left in the page cache
    seconds = source.stat().st_size / MEBIBYTE / SLOWEST
    command = python("benchmarks.local_encryption", "--pass", name, str(source), str(target))
    return msgspec.json.decode(output_of(command, seconds=seconds), type=Pass)


def _encrypt(source: Path, target: Path) -> None:
    key = PRIVATE.public_key().public_bytes_raw()
    to = [local.Recipient(public_key=key, algorithm="Kyber768", key_version=1)]
    if target != NOWHERE:
        local.encrypt_file(source, target, recipients=to)
        return
    with source.open("rb") as reader, target.open("wb") as writer:
        local.encrypt_stream(reader, writer, recipients=to)


def _decrypt(source: Path, target: Path) -> None:
    if target != NOWHERE:
        local.decrypt_file(source, target, decapsulate=_decapsulate)
        return
    with source.open("rb") as reader, target.open("wb") as writer:
        local.decrypt_stream(reader, writer, decapsulate=_decapsulate)


def _decapsulate(kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str) -> bytes:
    return PRIVATE.decapsulate(kem_ciphertext)


def _loop(size: int, work: Callable[[bytes, bytes, None], bytes], source: Path, to: Path) -> None:
    number = 0
    with source.open("rb") as reader, to.open("wb") as writer:
        while segment := reader.read(size):
            writer.write(work(number.to_bytes(12, "big"), segment, None))
            number += 1
        if to != NOWHERE:
            writer.flush()
            os.fsync(writer.fileno())


PASSES: Mapping[str, Callable[[Path, Path], None]] = {
    "encrypt": _encrypt,
    "decrypt": _decrypt,
    "loop-encrypt": lambda source, target: _loop(SEGMENT, AEAD.encrypt, source, target),
    "loop-decrypt": lambda source, target: _loop(SEGMENT + TAG, AEAD.decrypt, source, target),
}


def _measured(work: Callable[[Path, Path], None], source: Path, target: Path) -> Pass:
    began, cpu_began = time.perf_counter(), time.process_time()
    work(source, target)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return Pass(seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    """Compare, or run one of the passes."""
    parser = argparse.ArgumentParser(description="Measure local encryption on this machine.")
    parser.add_argument("--size", type=int, default=SIZE, help=f"MiB of the file ({SIZE})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"passes of each ({ROUNDS})")
    parser.add_argument("--directory", type=Path, help="where the temporary files go")
    parser.add_argument("--pass", dest="one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, source, target = arguments.one
        measured = _measured(PASSES[name], Path(source), Path(target))
        sys.stdout.buffer.write(msgspec.json.encode(measured))
        return
    results_console().print(table(compare(arguments.directory, arguments.size, arguments.rounds)))


if __name__ == "__main__":
    main()

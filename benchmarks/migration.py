"""Moves a PostgreSQL column of 100,000 ciphertexts and a folder of 1,000 files, and checks each.

Run as a program. It starts a PostgreSQL server and an installation on loopback. For each place, it
kills two runs of ``pqkeep campaign run``, then starts two at once, while a program changes entries.
At the end, each entry must open with the target key and have the plaintext that was written last.
"""

import argparse
import json
import os
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.fixtures.postgresql import PostgresServer, running_postgresql

from benchmarks.installation import API, RATE, ask, service
from pqkeep import Client
from pqkeep.local import read_header
from pqkeep.models import CampaignSource, CampaignTarget, Envelope

PROGRAM = Path(sysconfig.get_path("scripts")) / "pqkeep"
SOURCE, TARGET, NAME = "Kyber768", "X-Wing", "migration"
KILLED_AT = (0.25, 0.5)
"""A run is killed after it has moved these shares of a place."""
PAUSE = 0.2
"""Seconds between two looks at a place."""


@dataclass
class Place:
    """A place to move, with its arguments for the command."""

    arguments: list[str]
    total: int
    moved: Callable[[], int]
    change: Callable[[int], None]
    """Changes an entry as another program would."""
    opened: Callable[[], Iterator[tuple[int, str, bytes]]]
    """Yields number, algorithm and plaintext of each entry."""
    expected: dict[int, bytes]


def main() -> None:
    """Move and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the column")
    parser.add_argument("--files", type=int, default=1_000, help="files of the folder")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="pqkeep-bench-") as name,
        running_postgresql() as server,
        service(Path(name)) as (_, ready),
        Client(ready["base_url"], ready["api_key"]) as client,
    ):
        folder = Path(name)
        tenant = f"{ready['base_url']}{API}/tenants/{ready['tenant_id']}"
        ask("PATCH", tenant, {"requests_per_minute": RATE}, ready["operator_key"])
        for algorithm in (SOURCE, TARGET):
            client.keys.generate(algorithm, if_absent=True)
        client.campaigns.put(
            NAME,
            sources=[CampaignSource(algorithm=SOURCE)],
            target=CampaignTarget(algorithm=TARGET),
        )
        key = folder / "migration-key"
        key.write_text(ready["api_key"])
        key.chmod(0o600)
        environment = {**os.environ, "PQKEEP_URL": ready["base_url"]}
        environment["PQKEEP_API_KEY_FILE"] = str(key)
        with column(client, server, arguments.rows) as place:
            show("PostgreSQL column", place, folder, environment)
        with files(client, folder / "documents", arguments.files) as place:
            show("folder", place, folder, environment)
        records = client.audit.records(operation="re-encrypt")
        count = sum(record.campaign == NAME and record.target is not None for record in records)
        print(f"{count:,} records of moves name the campaign")


@contextmanager
def column(client: Client, server: PostgresServer, rows: int) -> Iterator[Place]:
    """Fill a column."""
    database = server.new_database("postgres")
    address = server.url("postgres", database)
    expected = {number: b"card %d" % number for number in range(rows)}
    sealed = client.kem.encrypt_to_envelope_many(
        ({"plaintext": text} for text in expected.values()), algorithm=SOURCE
    )
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE cards (id bigint PRIMARY KEY, number text, note text)")
        with connection.cursor().copy("COPY cards (id, number) FROM STDIN") as copy:
            for number, made in enumerate(sealed):
                if not isinstance(made, Envelope):
                    raise made
                copy.write_row((number, made.envelope))
        like = TARGET_PREFIX + "%"

        def moved() -> int:
            query = "SELECT count(*) FROM cards WHERE number LIKE %s"
            (count,) = connection.execute(query, (like,)).fetchone() or (0,)
            return int(count)

        def change(number: int) -> None:
            expected[number] = b"changed %d" % number
            made = client.kem.encrypt_to_envelope(expected[number], algorithm=SOURCE)
            with psycopg.connect(address) as own:
                own.execute("UPDATE cards SET number = %s WHERE id = %s", (made.envelope, number))

        def opened() -> Iterator[tuple[int, str, bytes]]:
            found = connection.execute("SELECT id, number FROM cards ORDER BY id").fetchall()
            texts = client.kem.decrypt_envelope_many({"envelope": text} for _, text in found)
            for (number, envelope), plaintext in zip(found, texts, strict=True):
                if not isinstance(plaintext, bytes):
                    raise plaintext
                is_moved = envelope.startswith(TARGET_PREFIX)
                yield number, TARGET if is_moved else SOURCE, plaintext

        url = address.replace("postgresql://", "postgresql+psycopg://")
        place = ["--sql", url, "--table", "cards", "--column", "number"]
        yield Place(place, rows, moved, change, opened, expected)
    server.drop(database)


TARGET_PREFIX = "pqk1.Ag"
"""The beginning of an envelope for X-Wing."""


@contextmanager
def files(client: Client, folder: Path, count: int) -> Iterator[Place]:
    """Fill a folder: of four files, three are encrypted locally, and one is an envelope."""
    expected = {number: b"document %d " % number * 200 for number in range(count)}

    def path(number: int) -> Path:
        return folder / str(number % 10) / f"{number}.pqk"

    def write(number: int) -> None:
        file = path(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".new")
        if number % 4:
            temporary.write_bytes(client.local.encrypt(expected[number], algorithm=SOURCE))
        else:
            made = client.kem.encrypt_to_envelope(expected[number], algorithm=SOURCE)
            temporary.write_text(made.envelope)
        temporary.replace(file)

    for number in expected:
        write(number)

    def moved() -> int:
        return sum(_algorithm(path(number)) == TARGET for number in expected)

    def change(number: int) -> None:
        expected[number] = b"changed %d " % number * 100
        write(number)

    def opened() -> Iterator[tuple[int, str, bytes]]:
        for number in expected:
            data = path(number).read_bytes()
            if number % 4:
                plaintext = client.local.decrypt(data)
            else:
                plaintext = client.kem.decrypt_envelope(data.decode())
            yield number, _algorithm(path(number)), plaintext

    yield Place([str(folder)], count, moved, change, opened, expected)


def _algorithm(path: Path) -> str:
    """Return the algorithm that the header of a file names."""
    with path.open("rb") as file:
        begin = file.read(len(TARGET_PREFIX))
        if begin.startswith(b"pqk1."):
            return TARGET if begin == TARGET_PREFIX.encode() else SOURCE
        file.seek(0)
        return read_header(file).recipients[0].algorithm


def show(name: str, place: Place, folder: Path, environment: Mapping[str, str]) -> None:
    """Move a place, check it, and print what happened."""
    began = time.perf_counter()
    for part in KILLED_AT:
        killed = _start("run", place, folder, environment)
        while (done := place.moved()) < part * place.total:
            if killed.poll() is not None:
                raise SystemExit(f"{name}: the run ended before it was killed")
            time.sleep(PAUSE)
        killed.kill()
        killed.wait()
        print(f"{name}: killed after {done:,} of {place.total:,}")
    stop = threading.Event()
    changes = threading.Thread(target=_change, args=(place, stop))
    changes.start()
    two = [_start("run", place, folder, environment) for _ in range(2)]
    results = [json.loads(run.communicate()[0]) for run in two]
    stop.set()
    changes.join()
    counts = " and ".join(f"{one['moved']:,}" for one in results)
    print(f"{name}: two runs at once moved {counts}")
    last = _start("run", place, folder, environment)
    result = json.loads(last.communicate()[0])
    seconds = time.perf_counter() - began
    scanned = _start("scan", place, folder, environment, "--to", f"{name.replace(' ', '-')}.json")
    scan = json.loads(scanned.communicate()[0])
    wrong = [
        number
        for number, algorithm, plaintext in place.opened()
        if (algorithm, plaintext) != (TARGET, place.expected[number])
    ]
    if wrong or last.returncode or scan["left"] or result["left"]:
        raise SystemExit(f"{name}: {len(wrong)} entries are wrong; the scan says {scan['left']}")
    print(
        f"{name}: {place.total:,} entries in {seconds:,.0f} s, {place.total / seconds:,.0f}/s; "
        f"all open with {TARGET}; the scan says {scan['left']} left"
    )


def _change(place: Place, stop: threading.Event) -> None:
    number = place.total - 1
    while number >= 0 and not stop.wait(PAUSE):
        place.change(number)
        number -= max(1, place.total // 100)


def _start(
    command: str, place: Place, folder: Path, environment: Mapping[str, str], *more: Any
) -> subprocess.Popen[bytes]:
    arguments = ["campaign", command, NAME, *place.arguments, "--output", "json", *more]
    return subprocess.Popen(
        [PROGRAM, *arguments], cwd=folder, env=dict(environment), stdout=subprocess.PIPE
    )


if __name__ == "__main__":
    main()

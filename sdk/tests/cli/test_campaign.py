"""``pqkeep campaign``: what is left in files, columns and lines is counted by headers, and moved."""

from __future__ import annotations

import base64
import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sdk.tests.fault_proxy import Fault, FaultProxy, Seen, forwarded, refused
from tests.patience import PATIENCE

from pqkeep import CampaignSource, CampaignTarget, Client, Scope
from pqkeep.cli.stored import LARGEST
from pqkeep.errors import PqkeepError
from pqkeep.new_files import changeable

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command, Ended
    from tests.fixtures.postgresql import PostgresServer

KEM, HYBRID = "Kyber768", "X-Wing"
TEXT = b"4111 1111 1111 1111"
NAME = "cards-2026"
ROWS = 200
LEFT = 9


@pytest.fixture
def campaign(tenant: Client) -> Client:
    """A tenant with an open campaign from Kyber768 to X-Wing, and data in both."""
    for algorithm in (KEM, HYBRID):
        tenant.keys.generate(algorithm)
    tenant.campaigns.put(
        NAME, sources=[CampaignSource(algorithm=KEM)], target=CampaignTarget(algorithm=HYBRID)
    )
    return tenant


def made(ended: Ended, status: int = 0) -> dict[str, Any]:
    """Return the JSON that a command wrote."""
    assert ended.status == status, ended.err
    result: dict[str, Any] = json.loads(ended.out)
    return result


def decrypted(client: Client, envelope: str) -> tuple[str, bytes]:
    """Return the algorithm that an envelope names, and its plaintext."""
    number = base64.urlsafe_b64decode(envelope[5:9])[0]
    return {1: KEM, 2: HYBRID}[number], client.kem.decrypt_envelope(envelope)


def fill(folder: Path, command: Command, client: Client) -> dict[str, Callable[[], bytes]]:
    """Write a file of each form; return how to read each."""
    (folder / "plain").write_bytes(TEXT)
    inner = folder / "inner"
    inner.mkdir()

    def file(name: str) -> Callable[[], bytes]:
        return lambda: command("decrypt", f"inner/{name}", "--to", "-").out

    for name, options in (
        ("local", ()),
        ("armored", ("--armor",)),
        ("envelope", ("--envelope",)),
        ("document", ("--server-side",)),
    ):
        assert command("encrypt", "plain", "--to", f"inner/{name}", *options).status == 0
    sealed = client.kem.encrypt(TEXT)
    local = client.local.encrypt(TEXT)
    (inner / "transit").write_bytes(b"vault:v1:" + base64.b64encode(sealed.ciphertext) + b"\n")
    (inner / "base64").write_bytes(base64.b64encode(local))
    (inner / "key").write_bytes(bytes(range(32)))
    wrap = ("wrap", "inner/key", "--algorithm", KEM, "--to", "inner/wrapped")
    assert command(*wrap).status == 0
    (inner / "key").unlink()
    return {
        **{name: file(name) for name in ("local", "armored", "envelope", "document")},
        "base64": lambda: client.local.decrypt(base64.b64decode((inner / "base64").read_bytes())),
        "wrapped": lambda: command("unwrap", "inner/wrapped", "--to", "-").out,
    }


def test_files_of_each_form(command: Command, campaign: Client) -> None:
    """A scan counts each form by its header. A run moves it in that form and changes nothing else."""
    folder = command.directory
    campaign.keyrings.create("cards", first_version=5)
    campaign.keys.generate(HYBRID, keyring="cards")
    campaign.campaigns.put(
        NAME,
        sources=[CampaignSource(algorithm=KEM)],
        target=CampaignTarget(algorithm=HYBRID, keyring="cards"),
    )
    readers = fill(folder, command, campaign)
    others = {
        "damaged": b"pqk1.AQAAAAEHZGVm",
        "other.csv": b"1," + (folder / "inner/envelope").read_bytes(),
        "foreign": b"\x89PNG\r\n" + bytes(50),
        "empty": b"",
    }
    for name, data in others.items():
        (folder / "inner" / name).write_bytes(data)
    (folder / "inner/link").symlink_to(folder / "plain")
    (folder / "inner/envelope").chmod(0o640)
    scan = ("campaign", "scan", NAME, "inner", "--output", "json")
    before = made(command(*scan, "--to", "one.json"))
    forms = {row["form"]: row["count"] for row in before["counts"]}
    assert forms == {
        "local": 1,
        "local-text": 1,
        "local-base64": 1,
        "envelope": 1,
        "ciphertext": 1,
        "wrapped-key": 1,
        "transit": 1,
    }
    assert {row["state"] for row in before["counts"]} == {"left"}
    assert (before["left"], before["unreadable"], before["not_pqkeep"], before["empty"]) == (
        *(7, 2, 1),
        1,
    )
    assert [text.split(":")[0] for text in before["unreadable_names"]] == [
        "inner/damaged",
        "inner/other.csv",
    ]
    file = (folder / "one.json").read_bytes()
    assert before["sha256"] == sha256(file).hexdigest()
    assert json.loads(file)["format"] == "pqkeep/v1/campaign-scan"
    assert TEXT not in file
    run = ("campaign", "run", NAME, "inner", "--output", "json")
    dry = made(command(*run, "--dry-run"), LEFT)
    assert (dry["moved"], dry["left"]) == (0, 7)
    done = made(command(*run))
    assert (done["moved"], done["left"], done["failed"], done["target"]) == (7, 0, 0, 7)
    after = made(command(*scan, "--to", "two.json"))
    assert (after["left"], after["unreadable"], after["older_file_keys"]) == (0, 2, 3)
    assert {(row["keyring"], row["algorithm"], row["state"]) for row in after["counts"]} == {
        ("cards", HYBRID, "target")
    }
    assert {row["form"]: row["count"] for row in after["counts"]} == forms
    for name, read in readers.items():
        assert read() == (bytes(range(32)) if name == "wrapped" else TEXT), name
    transit = (folder / "inner/transit").read_bytes()
    assert transit.startswith(b"vault:v5:")
    blob = base64.b64decode(transit[9:])
    opened = campaign.kem.decrypt(blob, key_version=5, algorithm=HYBRID, keyring="cards")
    assert opened == TEXT
    for name, data in others.items():
        assert (folder / "inner" / name).read_bytes() == data
    assert (folder / "inner/envelope").stat().st_mode & 0o777 == 0o640
    records = [*campaign.audit.records(operation="re-encrypt")]
    assert {record.campaign for record in records} == {NAME}
    assert made(command(*run))["moved"] == 0


def test_new_file_keys(command: Command, campaign: Client) -> None:
    """With --new-file-key local data is encrypted again, also where only its header was moved."""
    folder = command.directory
    (folder / "plain").write_bytes(TEXT * 1000)
    for name in ("a", "b"):
        assert command("encrypt", "plain", "--to", f"{name}.pqk").status == 0
    moved = ("re-encrypt", "a.pqk", "--algorithm", HYBRID)
    assert command(*moved).status == 0
    ends = {name: (folder / f"{name}.pqk").read_bytes()[-100:] for name in ("a", "b")}
    run = ("campaign", "run", NAME, "a.pqk", "b.pqk", "--output", "json")
    assert made(command(*run, "--new-file-key"))["moved"] == 2
    for name, end in ends.items():
        assert (folder / f"{name}.pqk").read_bytes()[-100:] != end
        assert command("decrypt", f"{name}.pqk", "--to", "-").out == TEXT * 1000
    assert made(command(*run, "--new-file-key"))["moved"] == 0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, command: Command) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{command.directory / 'cards.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.new_database("postgres")
    yield server.url("postgres", name).replace("postgresql://", "postgresql+psycopg://")
    server.drop(name)


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """A connection to the database."""
    made = sa.create_engine(url)
    yield made
    made.dispose()


def table_of(engine: sa.Engine, rows: Sequence[dict[str, Any]]) -> sa.Table:
    """Make a table whose names need quotes, with a key of two columns."""
    schema = None if engine.dialect.name == "sqlite" else 'Pay"ments'
    table = sa.Table(
        "Card-Data",
        sa.MetaData(),
        sa.Column("Tenant", sa.String(20), primary_key=True),
        sa.Column("No.", sa.Integer, primary_key=True),
        sa.Column("select", sa.Text, nullable=True),
        sa.Column("raw", sa.LargeBinary, nullable=True),
        sa.Column("version", sa.Integer, nullable=True),
        sa.Column("alg", sa.String(20), nullable=True),
        sa.Column("bound", sa.String(20), nullable=True),
        schema=schema,
    )
    with engine.begin() as connection:
        if schema:
            connection.execute(sa.schema.CreateSchema(schema))
        table.create(connection)
        connection.execute(sa.insert(table), rows)
    return table


def place_of(url: str, table: sa.Table, column: str) -> list[str]:
    """Return the options that name a column."""
    name = table.name if table.schema is None else f"{table.schema}.{table.name}"
    return ["--sql", url, "--table", name, "--column", column]


def test_two_runs_and_an_end_by_kill(
    command: Command, campaign: Client, url: str, engine: sa.Engine
) -> None:
    """After kill -9, two simultaneous runs move the rest. No row is lost, and others' changes stay."""
    items = [{"plaintext": b"card %d" % number} for number in range(ROWS)]
    sealed = [
        made.envelope
        for made in campaign.kem.encrypt_to_envelope_many(items)
        if not isinstance(made, PqkeepError)
    ]
    rows = [
        {"Tenant": f"t{number % 3}", "No.": number, "select": text}
        for number, text in enumerate(sealed)
    ]
    rows += [{"Tenant": "t9", "No.": ROWS, "select": None}]
    rows += [{"Tenant": "t9", "No.": ROWS + 1, "select": "an old note"}]
    table = table_of(engine, rows)
    run = ["campaign", "run", NAME, *place_of(url, table, "select"), "--output", "json"]
    first = command.start(*run, "--rate", "100")

    def moved() -> int:
        with engine.connect() as connection:
            texts = connection.execute(sa.select(table.c["select"])).scalars()
            return sum(text is not None and text.startswith("pqk1.Ag") for text in texts)

    while not moved():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.kill()
    first.communicate()
    remaining = ROWS - moved()
    assert 0 < remaining < ROWS
    campaign.kem.encrypt(b"after the last request of the killed run")
    sent = len([*campaign.audit.records(operation="re-encrypt")])
    written = campaign.kem.encrypt_to_envelope(b"new card", algorithm=HYBRID).envelope
    two = [command.start(*run) for _ in range(2)]
    with engine.begin() as connection:
        update = sa.update(table).where(table.c["No."] == 7).values({"select": written})
        connection.execute(update)
    ended = [process.communicate(timeout=PATIENCE) for process in two]
    results = [json.loads(out) for out, _ in ended]
    assert [process.returncode for process in two] == [0, 0], ended
    assert {result["left"] for result in results} == {0}
    sent = len([*campaign.audit.records(operation="re-encrypt")]) - sent
    assert remaining - 1 <= sent <= remaining  # no row was sent twice
    with engine.connect() as connection:
        texts = {row[1]: row[2] for row in connection.execute(sa.select(table))}
    found: dict[int, Any] = dict(texts)
    assert len(found) == ROWS + 2
    assert (found.pop(ROWS), found.pop(ROWS + 1)) == (None, "an old note")
    expected = {number: b"card %d" % number for number in range(ROWS)} | {7: b"new card"}
    opened = campaign.kem.decrypt_envelope_many([{"envelope": text} for text in found.values()])
    assert dict(zip(found, opened, strict=True)) == expected
    assert all(text.startswith("pqk1.Ag") for text in found.values())
    scan = ["campaign", "scan", NAME, *place_of(url, table, "select"), "--output", "json"]
    counted = made(command(*scan, "--to", "scan.json"))
    assert (counted["left"], counted["not_pqkeep"], counted["empty"]) == (0, 1, 1)
    (row,) = counted["counts"]
    assert (row["state"], row["count"]) == ("target", ROWS)


def test_two_runs_over_a_folder(command: Command, campaign: Client) -> None:
    """After kill -9, two simultaneous runs send each file of each form once."""
    folder = command.directory / "data"
    folder.mkdir()
    texts = {number: b"document %d" % number for number in range(ROWS // 4)}
    for number, text in texts.items():
        if number % 2:
            (folder / f"{number}").write_bytes(campaign.local.encrypt(text))
        else:
            (folder / f"{number}").write_text(campaign.kem.encrypt_to_envelope(text).envelope)

    def sent() -> int:
        records = [*campaign.audit.records()]
        return sum(record.operation in {"re-encrypt", "decapsulate"} for record in records)

    run = ["campaign", "run", NAME, "data", "--output", "json"]
    first = command.start(*run, "--rate", "10")
    while not sent():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.kill()
    first.communicate()
    campaign.kem.encrypt(b"after the last request of the killed run")
    before = sent()
    two = [command.start(*run) for _ in range(2)]
    results = [json.loads(process.communicate(timeout=PATIENCE)[0]) for process in two]
    assert [process.returncode for process in two] == [0, 0]
    moved = sum(result["moved"] for result in results)
    assert (sent() - before, {result["left"] for result in results}) == (moved, {0})
    for number, text in texts.items():
        data = (folder / f"{number}").read_bytes()
        opened = (
            campaign.local.decrypt(data)
            if number % 2
            else campaign.kem.decrypt_envelope(data.decode())
        )
        assert opened == text


@pytest.mark.campaign
def test_a_database_that_goes_away(
    command: Command, campaign: Client, another_postgres_server: PostgresServer
) -> None:
    """A crash of the database ends a run with status 8, without failures; the next run goes on."""
    server = another_postgres_server
    url = server.url("postgres", server.new_database("postgres"))
    url = url.replace("postgresql://", "postgresql+psycopg://")
    engine = sa.create_engine(url)
    text = campaign.kem.encrypt_to_envelope(TEXT).envelope
    rows = [{"Tenant": "t", "No.": number, "select": text} for number in range(ROWS)]
    table = table_of(engine, rows)
    run = ["campaign", "run", NAME, *place_of(url, table, "select")]
    started = command.start(*run, "--rate", "100")
    count = sa.select(sa.func.count()).where(table.c["select"] != text)
    with engine.connect() as connection:
        while not connection.execute(count).scalar_one():
            assert started.poll() is None, started.communicate()
    engine.dispose()
    server.crash()
    _, said = started.communicate(timeout=PATIENCE)
    assert (started.returncode, b"No.=" in said) == (8, False), said
    server.start()
    assert command(*run).status == 0
    with engine.connect() as connection:
        assert connection.execute(count).scalar_one() == ROWS
    engine.dispose()


def test_columns_that_name_the_key(
    command: Command, campaign: Client, url: str, engine: sa.Engine
) -> None:
    """Bare ciphertexts move with their version, algorithm and binding; failures are named."""
    rows: list[dict[str, Any]] = []
    for number in range(5):
        bound = f"row {number}"
        sealed = campaign.kem.encrypt(TEXT, associated_data=bound.encode())
        row = {"Tenant": "t", "No.": number, "version": sealed.key_version, "alg": KEM}
        rows.append({**row, "raw": sealed.ciphertext, "bound": bound, "select": None})
    rows[4]["bound"] = "another row"
    rows.append({**rows[0], "No.": 5, "version": None})
    table = table_of(engine, rows)
    place = place_of(url, table, "raw")
    names = ["--version-column", "version"]
    refused = command("campaign", "run", NAME, *place, *names)
    assert (refused.status, "--algorithm-column" in refused.err) == (2, True)
    names += ["--algorithm-column", "alg", "--key", "No.", "--key", "Tenant"]
    names += ["--associated-data-column", "bound"]
    ended = command("campaign", "run", NAME, *place, *names, "--output", "json")
    result = made(ended, 1)
    assert (result["moved"], result["failed"], result["unreadable"]) == (4, 1, 1)
    assert [failure["name"] for failure in result["failures"]] == ["No.=4, Tenant=t"]
    with engine.connect() as connection:
        query = sa.select(table).order_by(table.c["No."])
        found: list[Any] = [*connection.execute(query).mappings()]
    for row in found[:4]:
        assert (row["version"], row["alg"]) == (1, HYBRID)
        opened = campaign.kem.decrypt(
            row["raw"], key_version=1, algorithm=HYBRID, associated_data=row["bound"].encode()
        )
        assert opened == TEXT
    assert (found[4]["raw"], found[4]["alg"]) == (rows[4]["raw"], KEM)


def test_lines(
    command: Command, campaign: Client, with_key: Callable[[str], Command], operator: Client
) -> None:
    """Lines go from standard input to standard output, and moved lines keep their positions.

    The scope ``campaigns`` is enough for that.
    """
    (own,) = campaign.tenants.list()
    limited = operator.api_keys.create(own.id, scopes=[Scope(operations=("campaigns",))])
    command = with_key(limited.api_key)
    envelope = campaign.kem.encrypt_to_envelope(TEXT).envelope
    data = f"{envelope}\r\n# note\n\n{envelope}".encode()
    scan = command("campaign", "scan", NAME, "-", "--output", "json", stdin=data)
    assert (made(scan)["left"], made(scan)["empty"]) == (2, 1)
    ended = command("campaign", "run", NAME, "-", stdin=data)
    assert (ended.status, '"moved": 2' in ended.err) == (0, True)
    first, note, empty, last = ended.out.split(b"\n")
    assert (first[-1:], note, empty) == (b"\r", b"# note", b"")
    for text in (first.strip(), last):
        assert decrypted(campaign, text.decode()) == (HYBRID, TEXT)
    again = command("campaign", "run", NAME, "-", stdin=ended.out)
    assert again.out == ended.out


def test_files_that_cannot_be_changed(command: Command, campaign: Client) -> None:
    """A file that another process changes is left, and the run ends; a shared secret fails."""
    folder = command.directory
    text = campaign.kem.encrypt_to_envelope(TEXT).envelope.encode()
    (folder / "held").write_bytes(text)
    with changeable(folder / "held"):
        left = made(command("campaign", "run", NAME, "held", "--output", "json"), LEFT)
    assert (left["moved"], left["left"], left["failed"]) == (0, 1, 0)
    assert (folder / "held").read_bytes() == text
    secret = ("encapsulate", "--algorithm", KEM, "--secret", "secret", "--to", "kem.json")
    assert command(*secret).status == 0
    ended = command("campaign", "run", NAME, "kem.json", "held")
    assert (ended.status, "kem.json: a shared secret cannot be moved" in ended.err) == (1, True)
    assert decrypted(campaign, (folder / "held").read_text())[0] == HYBRID


def test_it_waits_for_the_service(command: Command, campaign: Client, proxy: FaultProxy) -> None:
    """A run waits after 429 and 503, and goes on."""
    (command.directory / "a").write_text(campaign.kem.encrypt_to_envelope(TEXT).envelope)
    limited = refused(429, "ERR_RATE_LIMIT_001", "Retry-After: 0")
    gone = refused(503, "ERR_SERVICE_001", "Retry-After: 0")
    proxy.faults.extend([forwarded, forwarded, limited, gone, *[limited] * 5])
    ended = command.as_(PQKEEP_URL=proxy.url)("campaign", "run", NAME, "a")
    assert ended.status == 0, ended.err
    assert decrypted(campaign, (command.directory / "a").read_text()) == (HYBRID, TEXT)


def returned(change: Callable[[dict[str, Any]], Any]) -> Fault:
    """Return a fault: the service's result of a re-encryption is another one."""

    def fault(proxy: FaultProxy, client: socket.socket, seen: Seen) -> None:
        head, _, body = proxy.ask(seen).partition(b"\r\n\r\n")
        content = json.loads(body)
        for result in content["data"].get("results", []):
            change(result["data"])
        body = json.dumps(content).encode()
        lines = [line for line in head.split(b"\r\n") if b"ontent-" not in line[:9]]
        own = (b"Content-Type: application/json", b"Content-Length: %d" % len(body))
        client.sendall(b"\r\n".join([*lines, *own]) + b"\r\n\r\n" + body)

    return fault


def test_nothing_replaces_data_but_a_ciphertext_of_the_target(
    command: Command, campaign: Client, proxy: FaultProxy
) -> None:
    """A result that is empty, cut, or of another key replaces nothing, and the status is 1."""
    folder = command.directory
    other = campaign.kem.encrypt_to_envelope(TEXT).envelope
    data = {"envelope": other.encode()}
    (folder / "envelope").write_text(other)
    (folder / "plain").write_bytes(TEXT)
    assert command("encrypt", "plain", "--to", "document", "--server-side").status == 0
    data["document"] = (folder / "document").read_bytes()
    changes: list[Callable[[dict[str, Any]], Any]] = [
        lambda result: (result.pop("envelope", 0), result.pop("ciphertext", 0)),
        lambda result: result.update({"envelope": "", "ciphertext": ""}),
        lambda result: result.update({"envelope": other, "ciphertext": "AAAA"}),
        lambda result: result.update({"algorithm": KEM}),
        lambda result: result.update({"keyring": "another"}),
        lambda result: result.update({"key_version": 7, "ciphertext": "AAAA"}),
    ]
    command = command.as_(PQKEEP_URL=proxy.url)
    for change in changes:
        proxy.faults.extend([returned(change)] * 20)
        ended = command("campaign", "run", NAME, *data, "--output", "json")
        proxy.faults.clear()
        assert ended.status == 1, ended.err
        assert {name: (folder / name).read_bytes() for name in data} == data
    assert made(command("campaign", "run", NAME, *data, "--output", "json"))["moved"] == 2


def test_rows_of_other_types_than_their_columns(command: Command, campaign: Client) -> None:
    """Values of any type, and texts that are not UTF-8, are their row's fault and stop no other row."""
    folder = command.directory
    texts = [campaign.kem.encrypt_to_envelope(TEXT).envelope for _ in range(5)]
    damaged, huge = b"\xff\x80", 2 * LARGEST
    with closing(sqlite3.connect(folder / "cards.db")) as own, own:
        own.executescript(
            "CREATE TABLE dates (at DATETIME PRIMARY KEY, value, bound);"
            "CREATE TABLE prices (price NUMERIC(10, 2) PRIMARY KEY, value TEXT);"
        )
        insert = "INSERT INTO dates VALUES (?, ?, ?)"
        rows: list[tuple[Any, Any, Any]] = [
            *(("never", texts[0], None), (7, texts[1], None), (b"bytes", texts[2], None)),
            *((1, 10**12, None), (2, bytes(huge), None), (3, texts[0], 10**12)),
        ]
        own.executemany(insert, rows)
        undecodable = "INSERT INTO dates VALUES (cast(? AS TEXT), cast(? AS TEXT), NULL)"
        own.executemany(undecodable, [(damaged, texts[0].encode()), (b"value", damaged)])
        own.executemany("INSERT INTO prices VALUES (?, ?)", [(1.5, texts[3]), ("free", texts[4])])
    place = ["--sql", f"sqlite:///{folder / 'cards.db'}", "--column", "value", "--table"]
    run = ["campaign", "run", NAME, *place, "dates", "--associated-data-column", "bound"]
    counted = made(command(*run, "--output", "json"))
    assert (counted["moved"], counted["failed"], counted["left"]) == (3, 0, 0)
    assert (counted["unreadable"], counted["not_pqkeep"]) == (3, 2)
    moved = made(command("campaign", "run", NAME, *place, "prices", "--output", "json"))
    assert moved["moved"] == 2
    scan = ["campaign", "scan", NAME, *place, "dates", "--to", "scan.json"]
    ended = command(*scan)
    assert (ended.status, "is not UTF-8" in ended.err) == (0, True)


def test_rows_that_a_driver_cannot_read(
    command: Command, campaign: Client, postgres_server: PostgresServer
) -> None:
    """A time that Python does not have, as a key, ends a run; another key serves. A huge value is no data."""
    name = postgres_server.new_database("postgres")
    url = postgres_server.url("postgres", name).replace("postgresql://", "postgresql+psycopg://")
    engine = sa.create_engine(url)
    with engine.begin() as own:
        own.exec_driver_sql("CREATE TABLE t (at timestamptz PRIMARY KEY, id int UNIQUE, v text)")
        text = campaign.kem.encrypt_to_envelope(TEXT).envelope
        insert = sa.text("INSERT INTO t VALUES ('infinity', 1, :v), (now(), 2, repeat('v', :size))")
        own.execute(insert, {"v": text, "size": 2 * LARGEST})
    engine.dispose()
    run = ["campaign", "run", NAME, "--sql", url, "--table", "t", "--column", "v"]
    ended = command(*run)
    assert (ended.status, "name another unique key: --key" in ended.err) == (2, True), ended.err
    moved = made(command(*run, "--key", "id", "--output", "json"))
    assert (moved["moved"], moved["not_pqkeep"]) == (1, 1)
    postgres_server.drop(name)


def test_files_that_are_no_files(command: Command, campaign: Client) -> None:
    """A pipe is refused at once. A place with a long name needs another."""
    folder = command.directory
    (folder / "data").mkdir()
    (folder / "data" / "envelope").write_text(campaign.kem.encrypt_to_envelope(TEXT).envelope)
    os.mkfifo(folder / "data" / "pipe")
    (folder / "data" / "loop").symlink_to(".")
    ended = command("campaign", "run", NAME, "data/pipe")
    assert (ended.status, "not a file or folder" in ended.err) == (2, True)
    for name in (b"\xff".decode(errors="surrogateescape"), "two\nlines", "l" * 201):
        (folder / name).mkdir()
        ended = command("campaign", "scan", NAME, "data", name)
        assert (ended.status, "--place NAME" in ended.err) == (2, True), name
        assert not [*folder.glob("*.scan.json")]
        scan = command("campaign", "scan", NAME, "data", name, "--place", "p", "--to", "-")
        assert json.loads(scan.out)["left"] == 1, scan.err
    assert made(command("campaign", "run", NAME, "data", "--output", "json"))["moved"] == 1


PASSWORD = "horse-battery"  # noqa: S105 - of no server


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:1/d", "the database fails"),
        (f"postgresql+asyncpg://u:{PASSWORD}@127.0.0.1:1/d", "only for asyncio"),
        (f"mysql+pymysql://u:{PASSWORD}@127.0.0.1:1/d", "is not installed"),
        (f"nothing://u:{PASSWORD}@h/d", "unknown kind of database"),
        (f"{PASSWORD}", "is not a database URL"),
    ],
)
def test_the_password_is_never_shown(
    command: Command, campaign: Client, url: str, said: str
) -> None:
    """No error shows a database's URL, and a file keeps the URL out of the arguments."""
    (command.directory / "url").write_text(f"{url}\n")
    columns = ("--table", "t", "--column", "c")
    ended = command("campaign", "scan", NAME, "--sql-file", "url", *columns)
    assert (ended.status in {2, 8}, said in ended.err) == (True, True), ended.err
    assert PASSWORD not in ended.err + ended.out.decode()
    assert campaign.campaigns.list()


def test_what_is_refused(command: Command, campaign: Client) -> None:
    """Two places, unknown names and keys that are not unique are refused, with the next step."""
    database = command.directory / "a.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE t (k TEXT, c TEXT, n TEXT UNIQUE)")
        connection.execute("INSERT INTO t VALUES ('a', 'b', NULL)")
    sql = ("--sql", f"sqlite:///{database}", "--table", "t")
    for options, said in (
        ((), "name one place"),
        (("a", "--table", "t"), "--table needs --sql"),
        (sql, "needs --table and --column"),
        ((*sql, "--column", "x", "--key", "k"), "has no column x"),
        ((*sql, "--column", "c", "--key", "k"), "is not unique"),
        ((*sql, "--column", "c", "--key", "n"), "NULL in a key column"),
        ((*sql[:3], "u", "--column", "c"), "there is no table u"),
        ((*sql, "--column", "c", "--wrapped-keys"), "need --version-column"),
    ):
        ended = command("campaign", "run", NAME, *options)
        assert (ended.status, said in ended.err) == (2, True), (options, ended.err)
    profile = ("--compliance-profile", "cnsa-2.0")
    assert command("campaign", "run", NAME, ".", *profile).status == 5
    assert command("campaign", "run", "nothing", ".").status == 4
    campaign.campaigns.close(NAME)
    closed = command("campaign", "run", NAME, ".")
    assert (closed.status, "is closed" in closed.err) == (2, True)


def test_a_plan_is_created_shown_and_closed(command: Command, tenant: Client) -> None:
    """Plans merge versions and are never replaced unasked; show says each kind of knowledge."""
    create = ("campaign", "create", NAME, "--to", "default/X-Wing")
    for options, said in (
        (("--from", "Kyber768"), "--from must be"),
        (("--from", "default/Kyber768/0"), "--from must be"),
        (("--from", f"default/Kyber768/{'9' * 5000}"), "--from must be"),
        (("--from", "default/Kyber768/1/2"), "--from must be"),
        (("--from", "default/Kyber768", "--to", "default/X-Wing/1"), "--to must be"),
        (("--from", "default/Kyber768", "--from", "default/ML-KEM-768/1"), "more than once"),
    ):
        ended = command(*create, *options)
        assert (ended.status, said in ended.err) == (2, True), (options, ended.err)
    unknown = command(*create, "--from", "default/none")
    assert (unknown.status, "algorithm" in unknown.err) == (1, True)
    assert tenant.campaigns.list() == ()
    for algorithm in (KEM, HYBRID):
        tenant.keys.generate(algorithm)
    sources = ("--from", "default/ML-KEM-768/1", "--from", "default/Kyber768/2")
    as_json = ("--output", "json")
    plan = made(command(*create, *sources, "--quiet-days", "7", "--description", "cards", *as_json))
    assert (plan["sources"], plan["quiet_days"], plan["description"]) == (
        [{"algorithm": KEM, "keyring": "default", "key_versions": [1, 2]}],
        *(7, "cards"),
    )
    again = command(*create, "--from", "default/Kyber768")
    assert (again.status, "--force" in again.err) == (2, True)
    sealed = tenant.kem.encrypt(TEXT, algorithm=KEM)
    named: dict[str, Any] = {"key_version": 1, "algorithm": KEM, "to_algorithm": HYBRID}
    tenant.kem.re_encrypt(sealed.ciphertext, campaign=NAME, **named)
    known = command("campaign", "show", NAME).out.decode()
    for part in ("from default/Kyber768/1, default/Kyber768/2 to default/X-Wing.", "1 re-encrypt"):
        assert part in known
    assert "Left: unknown" in known
    assert "for 7 days (observed): no" in known
    assert "Canary: none yet." in known
    (command.directory / "old").write_text(
        tenant.kem.encrypt_to_envelope(TEXT, algorithm=KEM).envelope
    )
    scan = ("campaign", "scan", NAME, "old", "--place")
    assert [command(*scan, place).status for place in ("disk", "disk", "disk")] == [0, 0, 0]
    assert sum(name.endswith(".scan.json") for name in command.names()) == 3
    known = command("campaign", "show", NAME).out.decode()
    assert "Left (a statement): 1 ciphertext," in known
    assert "disk" in known
    shown = made(command("campaign", "show", NAME, *as_json))
    parts = (shown["moved"]["count"], shown["left"]["count"], shown["canary"]["state"])
    assert (*parts, shown["moved"]["knowledge"]) == (1, 1, "none", "exact")
    listed = made(command("campaign", "list", *as_json))
    assert (listed["total"], listed["campaigns"][0]["name"]) == (1, NAME)
    assert "default/Kyber768/1, default/Kyber768/2" in command("campaign", "list").out.decode()
    assert made(command("campaign", "close", NAME, *as_json))["state"] == "closed"
    assert command("campaign", "show", "none").status == 4
    assert command("campaign", "close", "none").status == 4
    opened = made(command(*create, "--from", "default/Kyber768", "--force", *as_json))
    assert (opened["state"], opened["sources"][0]["key_versions"]) == ("open", None)
    assert tenant.campaigns.progress(NAME).moved == 1


CANARY = {
    "knowledge": "observed",
    "as_of": "2026-02-03T12:00:00Z",
    "state": "running",
    "since": "2026-02-01T12:00:00Z",
    "until": "2026-02-07T12:00:00Z",
    "ended_at": None,
    "begun_by": "user:1",
    "disabled": [],
    "refused": [
        {
            "principal": "api-key:3/billing",
            "keyring": "default",
            "algorithm": KEM,
            "key_version": version,
            "count": 2,
            "last_at": "2026-02-02T12:00:00Z",
        }
        for version in (None, 1)
    ],
    "complete": False,
}


def test_a_canary_names_who_was_refused(
    command: Command, tenant: Client, response: Callable[..., str]
) -> None:
    """Each refused principal has a line, and an incomplete list says that it is incomplete."""
    tenant.campaigns.put(
        NAME, sources=[CampaignSource(algorithm=KEM)], target=CampaignTarget(algorithm=HYBRID)
    )
    known = dict(tenant.inventory.evidence(f"/campaigns/{NAME}")) | {"canary": CANARY}
    url = response(json.dumps({"data": known}).encode(), 200)
    said = command.as_(PQKEEP_URL=url)("campaign", "show", NAME).out.decode()
    assert "Canary until 2026-02-07T12:00:00Z (observed): running. 4 refused uses, and more" in said
    lines = [line.split() for line in said.splitlines() if "billing" in line]
    assert [line[1:3] for line in lines] == [
        ["default/Kyber768/active", "2"],
        ["default/Kyber768/1", "2"],
    ]
    assert "The service saw no use of a source." in said


def test_transit_texts_that_name_no_key(command: Command, campaign: Client) -> None:
    """A version that may be the source's or the target's is refused, and changes nothing."""
    sealed = campaign.kem.encrypt(TEXT)
    text = b"vault:v1:" + base64.b64encode(sealed.ciphertext)
    (command.directory / "a").write_bytes(text)
    ended = command("campaign", "run", NAME, "a")
    assert (ended.status, "could not be told apart" in ended.err) == (2, True)
    both = [CampaignSource(algorithm=KEM), CampaignSource(algorithm="ML-KEM-1024")]
    campaign.campaigns.put(NAME, sources=both, target=CampaignTarget(algorithm=HYBRID))
    ended = command("campaign", "scan", NAME, "a")
    assert (ended.status, "--keyring and --algorithm" in ended.err) == (2, True)
    assert (command.directory / "a").read_bytes() == text

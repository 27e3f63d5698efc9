"""The real process: ready, hardened, durable and orderly.

One process is started as operators start it. The others are forks of a program that has
imported everything.
"""

import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from tests.fixtures import processes
from tests.fixtures.preloaded import start_forked
from tests.fixtures.processes import Process
from tests.patience import PATIENCE

import pqkeep_keyservice
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    Answer,
    Call,
    FrameDecoder,
    Ping,
    Pong,
    Refusal,
    ToGateway,
    ToKeyService,
    Unreadable,
    encode,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    Decrypt,
    Encrypt,
    GenerateKey,
    ListKeys,
    RotateKey,
    Sign,
)

TENANT = TenantId(UUID(int=1))
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
ASKED = 64
"""Lists of 61 keys: several times the size of the buffers of sockets and client."""
NOBODY = 65534
FILE_SIZE = 1024 * 1024
"""The limit of a file's size in bytes: a small database fits, and a filled one does not."""


def call(number: int, request: AnyRequest) -> Call:
    """Return a call."""
    return Call(number, 20_000, Attribution("r", "p", "a", "y"), request)


def generate(algorithm: Algorithm) -> GenerateKey:
    """Return a request for a first key."""
    return GenerateKey(tenant=TENANT, algorithm=algorithm, quota=None)


class Client:
    """A blocking connection to a key service."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._decoder = FrameDecoder(TO_GATEWAY)

    def send(self, *frames: ToKeyService) -> None:
        self.socket.sendall(b"".join(encode(frame) for frame in frames))

    def receive(self) -> Iterator[ToGateway | Unreadable]:
        """Yield frames until the connection ends."""
        with suppress(ConnectionError):
            while size := self.socket.recv_into(self._decoder.space()):
                yield from self._decoder.filled(size)

    def ask(self, request: AnyRequest) -> Any:
        """Return the result of one call."""
        self.send(call(1, request))
        response = next(self.receive())
        assert isinstance(response, Answer), response
        return response.result

    def close(self) -> None:
        self.socket.close()


class Installation:
    """A folder with settings, a root key, and the key service's data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "socket"
        self.settings = folder / "settings.toml"
        self.settings.write_text(
            'socket = "socket"\ngateway_uid = "same"\ndatabase = "keys.sqlite3"\nroot_key_file = "root.key"\n'
        )
        self.database = folder / "keys.sqlite3"
        self.database.touch(0o600)
        self.output = folder.with_suffix(".output")
        """The output of all its processes."""
        self.put_root_key()
        self.started: list[Process] = []

    def put_root_key(self) -> None:
        """Write another root key."""
        root_key = self.folder / "root.key"
        root_key.unlink(missing_ok=True)
        root_key.write_bytes(os.urandom(32))
        root_key.chmod(0o400)

    def start(self, *, is_forked: bool = True) -> Process:
        """Start the process."""
        words: list[str | Path] = ["pqkeep_keyservice", self.settings]
        process: Process = (
            start_forked(words, self.output)
            if is_forked
            else processes.start([sys.executable, "-P", "-m", *words], self.output)
        )
        self.started.append(process)
        return process

    def serve(self, *, is_forked: bool = True) -> Process:
        """Start the process, and wait until it responds."""
        process = self.start(is_forked=is_forked)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError), closing(Client(self.socket)) as client:
                client.send(Ping(1))
                if next(client.receive(), None) == Pong(1):
                    return process
            time.sleep(0.02)
        raise AssertionError(self.stop(process))

    def stop(self, process: Process) -> str:
        """Kill the process if it runs, and return its output."""
        process.kill()
        process.wait(PATIENCE)
        return self.output.read_text()


@pytest.fixture(scope="module")
def new_installation() -> Iterator[Callable[[], Installation]]:
    """Create installations in accessible folders, and end all processes afterwards."""
    made: list[Installation] = []
    with TemporaryDirectory(prefix="pqkeep-") as parent:
        Path(parent).chmod(0o711)

        def new() -> Installation:
            folder = Path(parent) / str(len(made))
            folder.mkdir(mode=0o711)
            made.append(Installation(folder))
            return made[-1]

        yield new
        for installation in made:
            for process in installation.started:
                installation.stop(process)


@pytest.fixture
def installation(new_installation: Callable[[], Installation]) -> Installation:
    """Create an installation for one test."""
    return new_installation()


@pytest.fixture(scope="module")
def running(new_installation: Callable[[], Installation]) -> tuple[Installation, Process]:
    """Run one installation, as an operator would, for all tests that do not stop it."""
    installation = new_installation()
    return installation, installation.serve(is_forked=False)


Running = tuple[Installation, Process]


def test_garbage_does_not_end_the_process(running: Running) -> None:
    """A connection with garbage is ended, and the process keeps serving."""
    installation, process = running
    for garbage in (os.urandom(1000), b"\xff" * 8, b"\0\0\0\1\xc1"):
        with closing(Client(installation.socket)) as vandal:
            vandal.socket.sendall(garbage)
            vandal.socket.shutdown(socket.SHUT_WR)
            assert list(vandal.receive()) == []
    with closing(Client(installation.socket)) as client:
        client.send(Ping(2))
        assert next(client.receive()) == Pong(2)
    assert process.poll() is None


def test_files_and_socket_are_the_owners(running: Running) -> None:
    """Only the process's user can read its files."""
    installation, _ = running
    made = {path.name: path.stat().st_mode & 0o777 for path in installation.folder.iterdir()}
    del made["settings.toml"], made["root.key"]  # these are ours
    assert made == dict.fromkeys(
        ["socket", "keys.sqlite3", "keys.sqlite3-wal", "keys.sqlite3-shm"], 0o600
    )


def test_no_process_waits_for_work_that_may_never_come(running: Running) -> None:
    """Worker processes and their resource tracker start with their first work."""
    _, process = running
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    assert children.read_text() == ""


def test_the_process_is_hardened(running: Running) -> None:
    """The process writes no core dump and gains no privileges.

    Its own user cannot read its memory.
    """
    _, process = running
    proc = Path(f"/proc/{process.pid}")
    (core,) = [line for line in (proc / "limits").read_text().splitlines() if "core" in line]
    assert core.split()[4:6] == ["0", "0"]
    assert "NoNewPrivs:\t1" in (proc / "status").read_text()
    assert (proc / "mem").stat().st_uid == 0  # root's, whoever started it: not dumpable


def test_hardening_makes_a_process_undumpable() -> None:
    """The kernel reports a process as dumpable before hardening, and not afterwards."""
    program = (
        "import ctypes, os, resource\n"
        "from pqkeep_keyservice import hardening\n"
        "dumpable = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)\n"
        "before = dumpable()\n"
        "hardening.harden()\n"
        "print(before, dumpable(), resource.getrlimit(resource.RLIMIT_CORE), oct(os.umask(0)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert result.stdout == "1 0 (0, 0) 0o77\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_turned_away(installation: Installation) -> None:
    """Another user's process gets no response, even if the socket's mode lets it connect."""
    process = installation.serve()
    installation.socket.chmod(0o666)
    program = (
        "import os, socket, sys\n"
        "os.setgid(65534), os.setuid(int(sys.argv[2]))\n"
        "peer = socket.socket(socket.AF_UNIX)\n"
        f"peer.settimeout({PATIENCE})\n"
        "peer.connect(sys.argv[1])\n"
        "try:\n"
        "    peer.sendall(bytes.fromhex(sys.argv[3]))\n"
        "    print(peer.recv(100))\n"
        "except ConnectionError:\n"
        "    print(b'')\n"
    )
    got = [
        subprocess.run(
            [sys.executable, "-c", program, installation.socket, user, encode(Ping(1)).hex()],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        ).stdout.strip()
        for user in (str(NOBODY), "0")
    ]
    assert got == ["b''", repr(bytes(encode(Pong(1))))]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert f'"user": {NOBODY}' in installation.stop(process)


def test_an_orderly_end(installation: Installation) -> None:
    """After SIGTERM, calls in flight get responses, and later calls do not. The status is 0."""
    process = installation.serve()
    with closing(Client(installation.socket)) as client:
        client.ask(generate(SIGNATURE))
        sign = Sign(tenant=TENANT, algorithm=SIGNATURE, version=None, message=bytes(100_000))
        got = []
        with ThreadPoolExecutor(1) as sender:  # answers that nobody reads stop what is sent
            sent = sender.submit(
                client.send, *(call(number, sign) for number in range(100)), Ping(1000)
            )
            for frame in client.receive():
                got.append(frame)
                if frame == Pong(1000):  # all calls have been read
                    process.send_signal(signal.SIGTERM)
        sent.result()
    signed = [frame.id for frame in got if isinstance(frame, Answer)]
    assert sorted(signed) == list(range(100))
    assert process.wait(PATIENCE) == 0
    said = installation.stop(process)
    assert "stopping" in said
    assert "Traceback" not in said


def test_an_orderly_end_for_a_slow_reader(installation: Installation) -> None:
    """Responses that wait for their reader at SIGTERM are delivered."""
    process = installation.serve()
    with closing(Client(installation.socket)) as client:
        client.ask(generate(KEM))
        rotate = RotateKey(tenant=TENANT, algorithm=KEM)
        client.send(*(call(number, rotate) for number in range(60)))
        for _, rotated in zip(range(60), client.receive(), strict=False):
            assert isinstance(rotated, Answer)
        lists = [
            call(number, ListKeys(tenant=TENANT, algorithm=KEM, status=None))
            for number in range(ASKED)
        ]
        client.send(*lists)
        time.sleep(0.3)  # answered, but hardly read: a socket's buffer holds about two of them
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None  # it waits for us
        got = [frame for frame in client.receive() if isinstance(frame, Answer)]
    assert [frame.id for frame in got] == list(range(ASKED))
    assert {len(getattr(frame.result, "keys", ())) for frame in got} == {61}
    assert process.wait(PATIENCE) == 0
    said = installation.stop(process)
    assert "stopping" in said
    assert "Traceback" not in said


def test_what_runs_beside_requests_goes_on_until_they_are_answered(
    installation: Installation,
) -> None:
    """While responses wait after SIGTERM, the last records are still signed."""
    process = installation.serve()
    with (
        closing(sqlite3.connect(installation.folder / "keys.sqlite3")) as database,
        closing(Client(installation.socket)) as client,
    ):
        client.ask(generate(KEM))
        rotate = RotateKey(tenant=TENANT, algorithm=KEM)
        client.send(*(call(number, rotate) for number in range(60)))
        for _, rotated in zip(range(60), client.receive(), strict=False):
            assert isinstance(rotated, Answer)
        everything = ListKeys(tenant=TENANT, algorithm=KEM, status=None)
        client.send(*(call(number, everything) for number in range(ASKED)))
        responses = client.receive()
        next(responses)
        deadline = time.monotonic() + PATIENCE
        asked = "SELECT count(*) FROM audit_records WHERE operation = 'list-keys'"
        while database.execute(asked).fetchone() != (
            ASKED,
        ):  # all have been read, and few answered
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        unsigned = "SELECT max(id) FROM audit_records EXCEPT SELECT size FROM audit_checkpoints"
        while database.execute(unsigned).fetchall():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert process.poll() is None
        assert len([*responses]) == ASKED - 1
    assert process.wait(PATIENCE) == 0


def test_who_does_not_read_is_not_read(running: Running) -> None:
    """The process stops reading from a client that does not read, and continues when it does."""
    installation, _ = running
    count = 60_000
    frames = memoryview(b"".join(encode(Ping(number + 2**40)) for number in range(count)))
    with closing(Client(installation.socket)) as client:
        client.socket.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < len(frames):
                sent += client.socket.send(frames[sent:])
        assert sent < len(frames)
        client.socket.settimeout(PATIENCE)
        rest = threading.Thread(target=client.socket.sendall, args=(frames[sent:],))
        rest.start()
        got = [pong.id - 2**40 for _, pong in zip(range(count), client.receive(), strict=False)]
        rest.join(PATIENCE)
    assert got == list(range(count))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_process_ends_at_once(number: signal.Signals, installation: Installation) -> None:
    """Without work, even with an open connection, either signal ends it with status 0."""
    process = installation.serve()
    with closing(Client(installation.socket)):
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0


def test_what_was_acknowledged_survives_a_kill(installation: Installation) -> None:
    """After kill -9 during rotations every acknowledged key exists and works."""
    process = installation.serve()
    with closing(Client(installation.socket)) as client:
        client.ask(generate(KEM))
        blob = client.ask(Encrypt(tenant=TENANT, algorithm=KEM, version=None, plaintext=b"text"))
        rotate = RotateKey(tenant=TENANT, algorithm=KEM)
        client.send(*(call(number, rotate) for number in range(60)))
        acknowledged = []
        for frame in client.receive():
            assert isinstance(frame, Answer)
            acknowledged.append(frame.result.key)  # type: ignore[union-attr]  # of a rotation
            if len(acknowledged) == 15:
                process.kill()
    process.wait(PATIENCE)
    installation.serve()
    with closing(Client(installation.socket)) as client:
        listed = client.ask(ListKeys(tenant=TENANT, algorithm=KEM, status=None)).keys
        assert [key.version for key in listed] == list(range(1, len(listed) + 1))
        stored = {key.version: key.public_key for key in listed}
        assert len(acknowledged) >= 15
        assert all(stored[key.version] == key.public_key for key in acknowledged)
        decrypt = Decrypt(
            tenant=TENANT, algorithm=KEM, version=KeyVersion(1), ciphertext=blob.ciphertext
        )
        assert client.ask(decrypt).plaintext == b"text"
        client.send(call(1, generate(KEM)))
        assert next(client.receive()) == Refusal(1, ErrorKind.KEY_EXISTS)


def refused(
    installation: Installation, status: int = os.EX_CONFIG, *, is_forked: bool = True
) -> str:
    """Start a process that must refuse to start, and return its output."""
    process = installation.start(is_forked=is_forked)
    ended = process.wait(PATIENCE)
    said = installation.output.read_text()
    assert ended == status, said
    assert "Traceback" not in said
    return said


def test_a_second_key_service_is_refused(running: Running) -> None:
    """A second process on a database ends with status 78 and a reason; the first keeps running."""
    installation, first = running
    with closing(Client(installation.socket)) as client:
        said = refused(installation)
        client.send(Ping(1))
        assert next(client.receive()) == Pong(1)
    database = installation.folder / "keys.sqlite3"
    assert f"the database {database} is in use by another key service" in said
    assert first.poll() is None
    with closing(Client(installation.socket)) as newcomer:  # the socket is still the first one's
        newcomer.send(Ping(2))
        assert next(newcomer.receive()) == Pong(2)


def test_without_settings_it_says_how_it_is_used() -> None:
    """Without an argument it prints its usage, with status 2."""
    result = subprocess.run(
        [sys.executable, "-m", "pqkeep_keyservice"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("usage: python -m pqkeep_keyservice [-h] settings\n")
    assert "Traceback" not in result.stderr


def test_a_failed_self_test_ends_the_process(installation: Installation) -> None:
    """A wrong known answer gives status 70 before any file is created."""
    source = Path(pqkeep_keyservice.__file__).parent
    copy = installation.folder / "copy" / "pqkeep_keyservice"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    known = copy / "crypto" / "selftest.json"
    responses = json.loads(known.read_text())
    responses["ML-KEM-1024"]["rejection_secret"] = responses["ML-KEM-1024"]["shared_secret"]
    known.write_text(json.dumps(responses))
    result = subprocess.run(
        [sys.executable, "-m", "pqkeep_keyservice", installation.settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
    )
    assert result.returncode == os.EX_SOFTWARE
    assert 'self-test failed: ML-KEM-1024"' in result.stderr
    assert "Traceback" not in result.stderr
    assert not installation.socket.exists()
    assert installation.database.read_bytes() == b""


UNCLEARED = """
import sys
from pqkeep_keyservice import process

async def fail(*_):
    raise LookupError

process._run_housekeeping = fail
sys.exit(process.main())
"""


def test_a_failed_background_task_ends_the_process(installation: Installation) -> None:
    """If the task that expires keys fails, the process stops orderly, to be restarted."""
    result = subprocess.run(
        [sys.executable, "-c", UNCLEARED, installation.settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert result.returncode == os.EX_TEMPFAIL
    assert "a background task failed, and the process ends" in result.stderr
    assert "LookupError" in result.stderr


def test_a_damaged_log_is_refused_and_left_as_it_is(installation: Installation) -> None:
    """A log that differs from the signed one ends the start with status 78, and no byte changes."""
    process = installation.serve()
    with closing(Client(installation.socket)) as client:
        client.ask(generate(KEM))
    database = installation.folder / "keys.sqlite3"
    deadline = time.monotonic() + PATIENCE
    with closing(sqlite3.connect(database)) as connection:
        while not connection.execute("SELECT 1 FROM audit_checkpoints").fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE audit_records SET outcome = 'x' WHERE id = 1")
    before = database.read_bytes()
    assert "the audit log is damaged" in refused(installation)
    assert database.read_bytes() == before


def test_the_wrong_root_key_is_refused(installation: Installation) -> None:
    """With another root key than the database's, the process does not start and says why."""
    process = installation.serve()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    installation.put_root_key()
    assert "the root key is not the one that sealed this database's keys" in refused(installation)


def open_database(installation: Installation) -> None:
    """Create a database that others can read."""
    installation.database.chmod(0o644)


def earlier_database(installation: Installation) -> None:
    """Create a database of the last version before the migrations were squashed."""
    with closing(sqlite3.connect(installation.database)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('0003')")
        connection.execute("CREATE TABLE root_keys (id INTEGER PRIMARY KEY, check_value BLOB)")


MISTAKES: dict[str, tuple[Callable[[Installation], object], str]] = {
    "an unknown setting": (
        lambda at: at.settings.write_text(at.settings.read_text() + "colour = 1\n"),
        "colour",
    ),
    "a missing setting": (
        lambda at: at.settings.write_text('socket = "s"\ngateway_uid = "same"\n'),
        "database",
    ),
    "no TOML": (lambda at: at.settings.write_text("{"), "settings.toml"),
    "not UTF-8": (lambda at: at.settings.write_bytes(b"# \xff"), "settings.toml"),
    "no settings": (lambda at: at.settings.unlink(), "settings.toml"),
    "an open root key": (lambda at: (at.folder / "root.key").chmod(0o444), "0400"),
    "an open database": (open_database, "0600"),
    "a lost database": (lambda at: at.database.unlink(), 'the runbook \\"A database is lost\\"'),
    "a database of an earlier version": (
        earlier_database,
        "has the unknown schema revision 0003: another version of pqkeep created it",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_setup_is_refused(mistake: str, installation: Installation) -> None:
    """A configuration error gives status 78 and a single clear message."""
    make, expected = MISTAKES[mistake]
    make(installation)
    had_database = installation.database.exists()
    assert expected in refused(installation)
    assert not installation.socket.exists()
    assert installation.database.exists() == had_database


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_without_room_for_semaphores_it_says_so(installation: Installation) -> None:
    """An unwritable /dev/shm gives status 78 and a single message that names it."""
    mount = """
        mount --bind /dev/shm /dev/shm && mount --bind "$0" "$0" # which may be there
        mount -o remount,bind,ro /dev/shm && exec "$@"
    """
    ended = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-ec", mount, installation.folder),
            *(sys.executable, "-m", "pqkeep_keyservice", installation.settings),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == os.EX_CONFIG, ended.stderr
    assert "mount a tmpfs on /dev/shm" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_root_key_that_cannot_be_stored_is_worth_another_try(installation: Installation) -> None:
    """A disk too full for a new root key's row gives status 75 and one message."""
    process = installation.serve()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    with closing(sqlite3.connect(installation.folder / "keys.sqlite3")) as connection, connection:
        connection.execute("CREATE INDEX fill ON root_keys (zeroblob(id * 1048576))")
    (installation.folder / "root-2.key").write_bytes(os.urandom(32))
    (installation.folder / "root-2.key").chmod(0o400)
    installation.settings.write_text(
        'socket = "socket"\ngateway_uid = "same"\ndatabase = "keys.sqlite3"\n'
        'root_keys = {1 = {file = "root.key"}, 2 = {file = "root-2.key"}}\n'
    )
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, limit[1]))
    try:
        said = refused(installation, os.EX_TEMPFAIL, is_forked=False)  # it has that limit, too
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "the newest root key cannot be stored" in said


def test_a_server_out_of_reach_is_worth_another_try(installation: Installation) -> None:
    """A database server that does not respond gives status 75 and a message."""
    address = "postgresql://role@127.0.0.1:9/name"
    installation.settings.write_text(
        installation.settings.read_text().replace("keys.sqlite3", address)
    )
    said = refused(installation, os.EX_TEMPFAIL)
    assert f"the database {address}: nothing listens" in said

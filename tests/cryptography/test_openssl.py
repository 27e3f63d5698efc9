"""OpenSSL's SLH-DSA: when it is used, what it requires, and the messages if it is missing."""

import ctypes
import ctypes.util
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from msgspec import structs
from tests.fixtures.processes import Process
from tests.patience import PATIENCE

from pqkeep_keyservice.config import Config
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_keyservice.crypto.slhdsa_openssl import OLDEST, OpenSsl, is_installed
from pqkeep_keyservice.live.worker_processes import WorkerSettings, schemes_of, worker_settings
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress

Start = Callable[[str], tuple[Process, Path]]


def _system_library() -> str:
    found = ctypes.util.find_library("crypto")
    if found is None:
        pytest.skip("the system has no libcrypto")
    return found


def _version(library: str) -> int:
    number = ctypes.CDLL(library).OpenSSL_version_num
    number.restype = ctypes.c_ulong
    return int(number())


SETTINGS = Config(
    socket=Path("socket"),
    gateway_uid=1,
    database=DatabaseAddress("keys.sqlite3"),
    root_key_file=Path("root.key"),
)


@pytest.fixture
def old_library() -> str:
    """Return the system's libcrypto if it is older than 3.5."""
    library = _system_library()
    if _version(library) >= OLDEST:
        pytest.skip("the system's OpenSSL is 3.5 or later")
    return library


def test_a_new_enough_library_is_taken(openssl_library: str) -> None:
    """A libcrypto of 3.5 or later is accepted."""
    assert _version(openssl_library) >= OLDEST
    OpenSsl(openssl_library)


def test_an_old_library_is_refused(old_library: str) -> None:
    """A libcrypto before 3.5 is refused; the message has the required and the found version."""
    with pytest.raises(ConfigError, match=r"needs OpenSSL 3\.5 or later; .* is [0-3]\.\d+\.\d+"):
        OpenSsl(old_library)


def test_the_systems_library_is_the_default(old_library: str) -> None:
    """Without a configured library the system's is used if it is new enough."""
    with pytest.raises(ConfigError, match=r"needs OpenSSL 3\.5 or later"):
        OpenSsl()


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "another library"])
def test_what_is_no_libcrypto_is_refused(kind: str, tmp_path: Path) -> None:
    """A missing, empty, invalid or different library file is refused by name."""
    path = tmp_path / "libcrypto.so"
    if kind == "empty":
        path.touch()
    if kind == "text":
        path.write_text("not a library")
    library = ctypes.util.find_library("c") if kind == "another library" else str(path)
    with pytest.raises(
        ConfigError, match=r'slh_dsa = "openssl": .*(libcrypto|OpenSSL_version_num)'
    ):
        OpenSsl(library)


def test_a_key_service_without_its_library_does_not_start(
    start_key_service: Start, tmp_path: Path
) -> None:
    """A key service with a missing library ends with status 78 and names it."""
    missing = tmp_path / "no-libcrypto.so"
    process, socket = start_key_service(f'slh_dsa = "openssl"\nopenssl_library = "{missing}"\n')
    assert process.wait(PATIENCE) == os.EX_CONFIG
    log = socket.with_name("output").read_text()
    assert r"slh_dsa = \"openssl\"" in log  # a string in JSON
    assert missing.name in log
    assert "Traceback" not in log
    assert not socket.exists()


def test_a_key_service_with_an_old_library_does_not_start(
    start_key_service: Start, old_library: str
) -> None:
    """A key service with an old library ends with status 78 and names the library."""
    process, socket = start_key_service(f'slh_dsa = "openssl"\nopenssl_library = "{old_library}"\n')
    assert process.wait(PATIENCE) == os.EX_CONFIG
    log = socket.with_name("output").read_text()
    assert "needs OpenSSL 3.5 or later" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("chosen", ["openssl", "pqcrypto"])
def test_the_system_s_library_is_taken_where_it_is_there(chosen: str) -> None:
    """Without a setting SLH-DSA uses the system's OpenSSL if possible, else pqcrypto."""
    has_it = _version(_system_library()) >= OLDEST
    assert is_installed() == has_it
    assert worker_settings(SETTINGS).slh_dsa == ("openssl" if has_it else "pqcrypto")
    assert worker_settings(structs.replace(SETTINGS, slh_dsa=chosen)).slh_dsa == chosen


def test_a_named_library_is_taken_or_refused(tmp_path: Path) -> None:
    """A configured library is never replaced by pqcrypto."""
    missing = str(tmp_path / "libcrypto.so")
    workers = worker_settings(structs.replace(SETTINGS, openssl_library=missing))
    assert workers == WorkerSettings("openssl", missing)
    with pytest.raises(ConfigError):
        schemes_of(workers)


def test_a_key_service_with_a_new_enough_library_starts(
    start_key_service: Start, openssl_library: str
) -> None:
    """A key service with a usable library signs with it, and ends with status 0."""
    process, socket = start_key_service(f'openssl_library = "{openssl_library}"\n')
    deadline = time.monotonic() + PATIENCE
    while not socket.exists():
        assert process.poll() is None, socket.with_name("output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while "serving" not in (log := socket.with_name("output").read_text()):
        assert process.poll() is None, log
        assert time.monotonic() < deadline
    assert '"slh_dsa": "openssl"' in log
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_the_librarys_path_is_relative_to_the_settings_file(
    start_key_service: Start,
    tmp_path_factory: pytest.TempPathFactory,
    openssl_library: str,
) -> None:
    """Like every other path in the settings, a relative one starts at the settings file."""
    (tmp_path_factory.getbasetemp() / "libcrypto.so.3").symlink_to(openssl_library)
    process, socket = start_key_service(
        'slh_dsa = "openssl"\nopenssl_library = "../libcrypto.so.3"\n'
    )
    deadline = time.monotonic() + PATIENCE
    while not socket.exists():
        assert process.poll() is None, socket.with_name("output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Glitching(OpenSsl):
    """OpenSSL, with one signature replaced by another valid signature."""

    faulty: int | None = None
    """The number of the signature, from 0."""
    count = 0

    def _sign(
        self,
        algorithm: Algorithm,
        private_key: bytes,
        message: bytes,
        context: bytes,
        randomizer: bytes,
    ) -> bytes:
        if self.count == self.faulty:
            randomizer = bytes(reversed(randomizer))
        self.count += 1
        return super()._sign(algorithm, private_key, message, context, randomizer)


@pytest.mark.parametrize("faulty", [0, 1])
def test_a_fault_that_verifies_releases_no_signature(openssl_library: str, faulty: int) -> None:
    """If two signatures with one randomizer differ, both are discarded, even if both verify."""
    library, algorithm = Glitching(openssl_library), Algorithm.SLH_DSA_SHA2_128F
    private_key = library.generate(algorithm)
    public_key = private_key[PARAMETER_SETS[algorithm].public_key :]
    library.faulty = 0
    alone = library._sign(algorithm, private_key, b"text", b"", bytes(range(16)))
    library.verify(algorithm, public_key, b"text", b"", alone)
    library.faulty, library.count = faulty, 0
    with pytest.raises(InvalidSignature):
        library.sign(algorithm, private_key, b"text", b"")
    assert library.count == 2
    assert len(library.sign(algorithm, private_key, b"text", b"")) == len(alone)


def test_signatures_stay_hedged(openssl_library: str) -> None:
    """The same randomizer gives the same signature, and each signature has a new randomizer."""
    library, algorithm = OpenSsl(openssl_library), Algorithm.SLH_DSA_SHA2_128F
    private_key = library.generate(algorithm)
    same = {library._sign(algorithm, private_key, b"t", b"c", bytes(16)) for _ in range(2)}
    assert len(same) == 1
    assert len({library.sign(algorithm, private_key, b"t", b"c") for _ in range(3)} | same) == 4

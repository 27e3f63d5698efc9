"""Reads root keys from the sources in the settings.

A command can, for example, ask a KMS for the key. It runs without a shell and without input, in
``/`` and in a minimal environment. Its standard error is discarded, because it could hold a secret.
"""

import base64
import binascii
import ctypes
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

from pqkeep_keyservice.config import Pkcs11, RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE
from pqkeep_keyservice.root_key_sources.file import (
    DIRECTORY,
    RootKeyUnavailableError,
    credential_file,
    read_root_key,
)
from pqkeep_keyservice.root_key_sources.token import derive_root_key
from pqkeep_protocol.startup.settings import ConfigError


def read_root_keys(sources: Mapping[int, RootKeySource]) -> dict[int, Secret]:
    """Return root keys (32 bytes each) by id. Raises ConfigError or RootKeyUnavailableError."""
    return {root_key_id: read(source) for root_key_id, source in sources.items()}


def read(source: RootKeySource) -> Secret:
    """Return one root key. Raises ConfigError or RootKeyUnavailableError."""
    match source:
        case RootKeySource(file=Path() as path):
            return read_root_key(path)
        case RootKeySource(credential=str() as name):
            return read_root_key(credential_file(name))
        case RootKeySource(pkcs11=Pkcs11() as token):
            return derive_root_key(token)
        case _:
            return run_command(source.command or ())


DEADLINE_SECONDS = 10.0
MAX_OUTPUT = 64
"""The longest output, in bytes. The base64 of a root key has 44."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run_command(command: Sequence[str], deadline_seconds: float = DEADLINE_SECONDS) -> Secret:
    """Return the root key that a command prints: its 32 bytes, or their base64 on one line.

    Raises RootKeyUnavailableError if the command fails or takes too long. Raises ConfigError if it
    cannot run or prints something else.
    """
    deadline = time.monotonic() + deadline_seconds
    name = f"the root key command {command[0]}"
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - the command from the settings
                command,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                preexec_fn=_end_with_this_thread,  # noqa: PLW1509 - one call, see prctl(2)
            )
        except OSError as error:
            raise ConfigError(f"cannot run {name}: {error.strerror}") from None
        finally:
            os.close(writing)
        try:
            printed = _read(output, deadline)
            if len(printed) > MAX_OUTPUT:
                raise _refusal(name)
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            problem = f"{name} did not end within {deadline_seconds:g} seconds"
            raise RootKeyUnavailableError(problem) from None
        finally:
            _end(process)
    if status != 0:
        raise RootKeyUnavailableError(f"{name} ended with status {status}")
    return _decoded(printed, name)


def _end_with_this_thread() -> None:
    """Let the kernel kill the command if the waiting thread ends first."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _environment() -> dict[str, str]:
    environment = {"PATH": PATH, "LC_ALL": "C.UTF-8"}
    if DIRECTORY in os.environ:
        environment[DIRECTORY] = os.environ[DIRECTORY]
    return environment


def _read(output: RawIOBase, deadline: float) -> bytearray:
    """Return the whole output, or one byte more than is allowed. Raises TimeoutError."""
    printed = bytearray()
    waiting = select.poll()
    waiting.register(output, select.POLLIN)
    while len(printed) <= MAX_OUTPUT:
        left = max(0.0, deadline - time.monotonic())
        if not waiting.poll(math.ceil(left * 1000)):
            raise TimeoutError
        data = output.read(MAX_OUTPUT + 1 - len(printed))
        if not data:
            break
        printed += data
    return printed


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _decoded(output: bytearray, name: str) -> Secret:
    if len(output) == ROOT_KEY_SIZE:
        return Secret(output)
    try:
        key = base64.b64decode(output.removesuffix(b"\n"), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != ROOT_KEY_SIZE:
        raise _refusal(name)
    return Secret(key)


def _refusal(name: str) -> ConfigError:
    return ConfigError(f"{name} must print {ROOT_KEY_SIZE} bytes, or their base64 on one line")

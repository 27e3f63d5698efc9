"""Serves KMS v2 of Kubernetes by gRPC, on a Unix socket that only its user, its group and root use."""

import asyncio
import fcntl
import grp
import os
import signal
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pqkeep.cli.failures import OTHER, Refusal
from pqkeep.kubernetes_kms import Kind, Kms, KmsError, Sealed

_SERVICE = "v2.KeyManagementService"
_FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "StatusRequest": {},
    "StatusResponse": {"version": (1, "text"), "healthz": (2, "text"), "key_id": (3, "text")},
    "EncryptRequest": {"plaintext": (1, "bytes"), "uid": (2, "text")},
    "EncryptResponse": {
        "ciphertext": (1, "bytes"),
        "key_id": (2, "text"),
        "annotations": (3, "map"),
    },
    "DecryptRequest": {
        "ciphertext": (1, "bytes"),
        "uid": (2, "text"),
        "key_id": (3, "text"),
        "annotations": (4, "map"),
    },
    "DecryptResponse": {"plaintext": (1, "bytes")},
}
"""The messages of the KMS v2 interface: numbers and types of their fields. A map is from text to
bytes."""
_LARGEST_MESSAGE = 64 * 1024
"""Bytes. An API server's largest message has 32 KiB of annotations and 2 KiB beside them."""
_MOST_CALLS = 4096
"""The most calls at one time. More are refused."""
_LONGEST_PATH = 107
"""Bytes in the address of a Unix socket."""
_SCHEME = "unix://"


def serve(
    endpoint: str,
    group: str | None,
    kms: Callable[[], Kms],
    note: Callable[[str], None],
    *,
    grace: float,
) -> None:
    """Serve until a signal, then finish the calls in progress within ``grace`` seconds.

    Raises Refusal for an unusable endpoint, and the errors of ``kms``.
    """
    path, gid = _path(endpoint), _group(group)
    with _owned(path):
        asyncio.run(_serve(path, gid, kms, note, grace))


async def _serve(
    path: Path, gid: int | None, kms: Callable[[], Kms], note: Callable[[str], None], grace: float
) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    methods = _Methods(kms(), note)
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", _LARGEST_MESSAGE)],
        maximum_concurrent_rpcs=_MOST_CALLS,
    )
    server.add_generic_rpc_handlers((methods.handler(),))
    _listen(server, path, gid)
    await server.start()
    note(f"pqkeep: the KMS plugin listens on {path}")
    await ending.wait()
    note("pqkeep: the KMS plugin finishes its calls and ends")
    await server.stop(grace)
    await methods.kms.close()


def _listen(server: grpc.aio.Server, path: Path, gid: int | None) -> None:
    """Make the socket. At no time do others than its user and group have access."""
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError:
        raise Refusal(
            f"the socket {path} cannot be made", "check the directory's permissions", OTHER
        ) from None
    finally:
        os.umask(before)
    if gid is not None:
        os.chown(path, -1, gid, follow_symlinks=False)
        path.chmod(0o660)


@dataclass
class _Methods:
    """The methods of the service, from bytes to bytes."""

    kms: Kms
    note: Callable[[str], None]
    last_reason: str = ""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for a server."""
        works = {"Status": self._status, "Encrypt": self._encrypt, "Decrypt": self._decrypt}
        messages = _messages()
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    partial(
                        self._run, work, messages[f"{name}Request"], messages[f"{name}Response"]
                    )
                )
                for name, work in works.items()
            },
        )

    async def _run(
        self,
        work: Callable[[Any], Awaitable[dict[str, Any]]],
        request_type: Any,
        response_type: Any,
        data: bytes,
        context: Any,
    ) -> bytes:
        try:
            request = request_type.FromString(data)
            response: bytes = response_type(**await work(request)).SerializeToString()
        except DecodeError:
            refusal = KmsError(Kind.INVALID_ARGUMENT, "the message is malformed")
        except KmsError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001 - grpc would log a trace, which may hold secrets
            self.note(f"pqkeep: the KMS plugin failed: {type(error).__name__}")
            refusal = KmsError(Kind.UNAVAILABLE, "the plugin failed")
        else:
            return response
        await context.abort(getattr(grpc.StatusCode, refusal.kind.name), str(refusal))
        raise AssertionError  # abort raises

    async def _status(self, _: Any) -> dict[str, Any]:
        health = await self.kms.status()
        if health.reason != self.last_reason:
            self.last_reason = health.reason
            self.note(f"pqkeep: health of the KMS plugin: {health.reason}")
        return {"version": "v2", "healthz": health.reason, "key_id": health.key_id}

    async def _encrypt(self, request: Any) -> dict[str, Any]:
        return (await self.kms.encrypt(request.plaintext))._asdict()

    async def _decrypt(self, request: Any) -> dict[str, Any]:
        sealed = Sealed(request.key_id, request.ciphertext, dict(request.annotations))
        return {"plaintext": await self.kms.decrypt(sealed)}


def _path(endpoint: str) -> Path:
    """Return the path in an endpoint. Raises Refusal."""
    path = endpoint.removeprefix(_SCHEME)
    is_path = endpoint.startswith(f"{_SCHEME}/") and path.isprintable() and not path.endswith("/")
    if not is_path or len(path.encode()) > _LONGEST_PATH:
        raise Refusal(
            f"--socket must be unix:// and an absolute path of at most {_LONGEST_PATH} bytes",
            "name a socket such as unix:///run/pqkeep-kms/kms.sock",
        )
    return Path(path)


def _group(name: str | None) -> int | None:
    """Return the number of a group. Raises Refusal."""
    try:
        return None if name is None else grp.getgrnam(name).gr_gid
    except KeyError:
        raise Refusal(f"the group {name} does not exist", "create it, or name another") from None


@contextmanager
def _owned(path: Path) -> Iterator[None]:
    """Own the path of a socket during the block. Raises Refusal and OSError.

    The lock stands beside the socket: a socket that is replaced cannot carry it. A socket file
    without a listening process is removed, for example after a kill. A socket in use stays.
    """
    _require_private(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{path}.lock", flags, stat.S_IRUSR | stat.S_IWUSR)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path) from None
        _remove_stale(path)
        yield
        with suppress(FileNotFoundError):
            path.unlink()
    finally:
        os.close(lock)


def _require_private(directory: Path) -> None:
    """Raise Refusal if other users could replace a socket in a directory."""
    status = directory.stat()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in {0, os.geteuid()}:
        raise Refusal(
            f"{directory} can be written by other users, who could replace the socket",
            "name a directory of this user, with mode 0755 or less",
        )


def _remove_stale(path: Path) -> None:
    """Remove the socket of a process that has ended. Raises Refusal for every other file."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise Refusal(f"{path} exists and is not a socket", "name another path with --socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass  # such as a full queue: a process listens
    raise _in_use(path)


def _in_use(path: Path) -> Refusal:
    return Refusal(
        f"another process listens on {path}", "stop it, or name another path with --socket", OTHER
    )


def _messages() -> Mapping[str, Any]:
    """Return the classes of the messages, by name."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kms.proto", package="v2", syntax="proto3")

    def add(to: Any, name: str, number: int, kind: int, **more: Any) -> None:
        more.setdefault("label", kinds.LABEL_OPTIONAL)
        to.field.add(name=name, number=number, type=kind, **more)

    scalars = {"text": kinds.TYPE_STRING, "bytes": kinds.TYPE_BYTES}
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            if kind in scalars:
                add(described, name, number, scalars[kind])
                continue
            entry = described.nested_type.add(name="AnnotationsEntry")
            entry.options.map_entry = True
            add(entry, "key", 1, kinds.TYPE_STRING)
            add(entry, "value", 2, kinds.TYPE_BYTES)
            type_name = f".v2.{message}.AnnotationsEntry"
            repeated = {"label": kinds.LABEL_REPEATED, "type_name": type_name}
            add(described, name, number, kinds.TYPE_MESSAGE, **repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v2.{name}"))
        for name in _FIELDS
    }

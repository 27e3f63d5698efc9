"""The key service's process: it is wired, runs and drains.

Exit status 78 (EX_CONFIG): the configuration is wrong. 70 (EX_SOFTWARE): a self-test failed. 75
(EX_TEMPFAIL): the database, or the token or command of a root key, is unavailable, or a background
task failed. A later start may succeed.
"""

import argparse
import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import uvloop

from pqkeep_keyservice import config, hardening
from pqkeep_keyservice.config import Config, Link
from pqkeep_keyservice.crypto import selftest
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.keys.tenant_bundle import TransferKey
from pqkeep_keyservice.listeners import listeners
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.worker_processes import schemes_of, worker_settings
from pqkeep_keyservice.root_key_sources.file import RootKeyUnavailableError
from pqkeep_keyservice.root_key_sources.sources import read_root_keys
from pqkeep_keyservice.server import Server
from pqkeep_keyservice.storage.database import Database, DatabaseUnavailableError
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import wire
from pqkeep_protocol.link import Identity, LinkTls, Role
from pqkeep_protocol.startup.background_tasks import BackgroundTasks
from pqkeep_protocol.startup.hardening import (
    begin_again,
    collect_rarely,
    is_to_begin_again,
    keep_freed_memory,
)
from pqkeep_protocol.startup.logs import logger, write_logs
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

DRAIN_SECONDS = 10.0
HOUSEKEEPING_SECONDS = 10.0


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    write_logs("key service")
    keep_freed_memory()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are files to reload
    parser = argparse.ArgumentParser(prog="python -m pqkeep_keyservice")
    parser.add_argument("settings", type=Path, help="the settings file")
    arguments = parser.parse_args()
    try:
        is_locked = hardening.harden()
        settings = config.read(arguments.settings)
        write_logs("key service", settings.log_format, {"shard": settings.shard})
        selftest.require(schemes_of(worker_settings(settings)))
        return uvloop.run(serve(settings, arguments.settings, is_locked=is_locked))
    except (DatabaseUnavailableError, RootKeyUnavailableError) as error:
        _LOG.critical("cannot start", error=str(error))
        return os.EX_TEMPFAIL
    except ConfigError as error:
        _LOG.critical("cannot start", error=str(error))
        return os.EX_CONFIG
    except selftest.SelfTestError as error:
        _LOG.critical("cannot start", error=str(error))
        return os.EX_SOFTWARE


def _warn(settings: Config, *, is_locked: bool) -> None:
    if settings.gateway_uid == "same":
        _LOG.warning("one user runs both processes: for development only")
    elif not is_locked:
        _LOG.warning(
            "memory is not locked, so that keys may be written to swap: the memlock limit is not "
            "infinite; set LimitMEMLOCK=infinity, or start under ulimit -l unlimited"
        )


async def serve(settings: Config, file: Path, *, is_locked: bool) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status.

    Before that, SIGTERM ends the process at once, because a root key's command or a database server
    can take long. The settings file is read again when an operator reloads the root keys.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    sockets = tuple(listeners(settings))
    link = None if settings.link is None else _link_tls(settings.link)

    def reload() -> None:
        if link is not None:
            link.reload()

    loop.add_signal_handler(signal.SIGHUP, reload)
    sources = settings.root_key_sources
    sealer = Sealer(await asyncio.to_thread(read_root_keys, sources))
    _transfer_key(settings)  # fails early on an unusable key; each move reads it again
    database = await open_database(settings, may_stand_by=True)
    if is_to_begin_again("pqkeep_keyservice"):
        await database.close()
        begin_again()
    _warn(settings, is_locked=is_locked)  # once: not before the program begins again
    store = KeyStore(database, sealer)
    workers = worker_settings(settings)
    try:
        parts = wire(
            store,
            sealer,
            workers,
            file,
            sources=sources,
            shard=settings.shard,
            transfer_key=partial(_transfer_key, settings),
            verify_signatures=settings.verify_signatures,
            least_destruction_days=settings.least_destruction_days,
            origin=settings.origin,
            witnesses=settings.witnesses,
            database_folder=(
                None if settings.database.is_on_server else Path(settings.database.location).parent
            ),
        )
    except OSError as error:  # from the workers' semaphores
        raise ConfigError(
            f"cannot create worker processes: {error.strerror}; mount a tmpfs on /dev/shm, and let"
            " the process's user write to it"
        ) from None
    await parts.activation.start(settings.shard)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(
        parts.transactions,
        parts.batches,
        parts.audit_service,
        parts.administration,
        parts.metrics,
        parts.activation,
        settings.shard,
    )
    collect_rarely()
    for socket in sockets:
        await server.listen(socket)
    if settings.link is not None and link is not None:
        server.listen_to_hosts(link, settings.link.listen)
    if database.writer.serving:
        _LOG.info("serving", slh_dsa=workers.slh_dsa)
    else:
        _LOG.info("ready to take over", slh_dsa=workers.slh_dsa)
    activation = asyncio.create_task(parts.activation.run())
    activation.add_done_callback(lambda _: stop.set())
    tasks = BackgroundTasks(stop.set)
    for work in (
        _run_housekeeping(parts.material, database),
        parts.checkpoint_signer.run(),
        parts.root_keys.run(),
        parts.schedule.run(),
        *(() if link is None else (link.run(),)),
        parts.metrics.run(),
    ):
        tasks.begin(work)
    await stop.wait()

    _LOG.info("stopping")
    await server.drain(DRAIN_SECONDS)
    activation.cancel()  # only now: an interrupted write ends the database's session
    await asyncio.wait([activation])
    await tasks.end()  # before the database closes, for their writes
    parts.close()
    await database.close()
    with suppress(asyncio.CancelledError):
        activation.result()  # raises the error that ended it
    return os.EX_TEMPFAIL if tasks.failed else os.EX_OK


def _transfer_key(settings: Config) -> TransferKey | None:
    path = settings.transfer_key_file
    if path is None:
        return None
    return TransferKey(Secret(read_secret_file(path, "transfer key")))


def _link_tls(link: Link) -> LinkTls:
    return LinkTls(
        Identity(Role.KEY_SERVICE, link.certificate, link.key, link.ca, link.require_post_quantum)
    )


async def open_database(settings: Config, *, may_stand_by: bool = False) -> Database:
    """Open the database. On a server, ``may_stand_by`` waits while another key service has it.

    Raises ConfigError and DatabaseUnavailableError.
    """
    location = settings.database.location
    if settings.database.is_on_server:
        from pqkeep_keyservice.storage import postgresql  # noqa: PLC0415 - slow

        opening = postgresql.stand_by_postgresql if may_stand_by else postgresql.open_postgresql
        return await opening(location, settings.database_password_file)
    return SqliteDatabase(location)


async def _run_housekeeping(material: KeyMaterial, database: Database) -> None:
    while True:
        await asyncio.sleep(HOUSEKEEPING_SECONDS)
        material.expire()
        if database.writer.epoch and not database.is_scrubbed:
            await database.scrub()

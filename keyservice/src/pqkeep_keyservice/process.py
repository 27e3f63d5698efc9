"""The key service's process: put together, run, drained.

Exit status 78 (EX_CONFIG): it cannot start as it is set up. 70 (EX_SOFTWARE): a self-test failed.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
from pathlib import Path

import uvloop

from pqkeep_keyservice import config, hardening
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.config import Config, ConfigError
from pqkeep_keyservice.crypto import selftest
from pqkeep_keyservice.dispatch import Dispatcher
from pqkeep_keyservice.operations.resources import Resources
from pqkeep_keyservice.server import Server
from pqkeep_keyservice.slhdsa_process import Setup, SlhDsaProcesses, implementation
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.keyrings import Keyrings
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_keyservice.storage.sealing import Sealer, read_root_key
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.workers import Threads

_LOG = logging.getLogger("pqkeep_keyservice")

DRAIN_SECONDS = 10.0
HOUSEKEEPING_SECONDS = 10.0


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s key service %(levelname)s %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m pqkeep_keyservice")
    parser.add_argument("settings", type=Path, help="the settings file")
    arguments = parser.parse_args()
    try:
        if not hardening.harden():
            _LOG.warning("memory is not locked: the memlock limit is not infinite")
        settings = config.read(arguments.settings)
        selftest.require()
        uvloop.run(serve(settings))
    except ConfigError as error:
        _LOG.critical("%s", error)
        return os.EX_CONFIG
    except selftest.SelfTestError as error:
        _LOG.critical("%s", error)
        return os.EX_SOFTWARE
    return os.EX_OK


async def serve(settings: Config) -> None:
    """Put the parts together and serve."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    setup = Setup(settings.root_key_file, settings.slh_dsa, settings.openssl_library)
    selftest.require_slhdsa(implementation(setup), signs=False)
    sealer = Sealer(read_root_key(Path(settings.root_key_file)))
    database = Database(settings.database)
    store = KeyStore(database)
    store.check_root_key(sealer)
    resources = Resources(KeyMaterial(sealer), Threads(), SlhDsaProcesses(setup))
    server = Server(Dispatcher(Keyrings(store), resources, AuditLog(store)))
    gc.collect()
    gc.freeze()  # what is here now stays: collections need not look at it again
    await server.listen(settings.socket)
    _LOG.info("serving")
    housekeeping = asyncio.create_task(_keep_house(resources.material, database))
    await stop.wait()

    _LOG.info("stopping")
    housekeeping.cancel()
    await server.drain(DRAIN_SECONDS)
    resources.slh_dsa.close()
    resources.threads.close()
    database.close()


async def _keep_house(material: KeyMaterial, database: Database) -> None:
    while True:
        await asyncio.sleep(HOUSEKEEPING_SECONDS)
        material.expire()
        if not database.is_scrubbed:
            await database.scrub()

"""``pqkeepd gateway`` and ``pqkeepd keyservice``: one process, for a service manager or a container."""

import os
import sys
from pathlib import Path

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Settings
from pqkeep_server.exit_status import fail_on


def gateway(settings: Settings) -> None:
    """Run the gateway in the foreground, as the user who starts it."""
    with fail_on(ConfigError, status=os.EX_CONFIG):
        gateway_config.read(settings)
    _become("pqkeep_gateway", settings)


def keyservice(settings: Settings) -> None:
    """Run the key service in the foreground, as the user who starts it."""
    with fail_on(ConfigError, status=os.EX_CONFIG):
        key_service_config.read(settings)
    _become("pqkeep_keyservice", settings)


def _become(module: str, settings: Path) -> None:
    """Replace this process, and with it what it has imported: the gateway has no cryptography."""
    command = [sys.executable, "-P", "-m", module, str(settings)]
    os.execv(command[0], command)  # noqa: S606 - without a shell

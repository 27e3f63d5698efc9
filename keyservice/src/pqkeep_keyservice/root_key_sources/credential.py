"""Credentials that a service manager gives to the process: files in $CREDENTIALS_DIRECTORY.

See systemd.exec(5), LoadCredential and LoadCredentialEncrypted.
"""

import os
from pathlib import Path

from pqkeep_protocol.startup.settings import ConfigError

DIRECTORY = "CREDENTIALS_DIRECTORY"


def credential_file(name: str) -> Path:
    """Return a credential's file. Raises ConfigError where the process has no credentials."""
    folder = os.environ.get(DIRECTORY)
    if not folder:
        raise ConfigError(
            f"cannot use the credential {name}: ${DIRECTORY} is not set, "
            "as a service manager does for a service that has credentials"
        )
    return Path(folder) / name

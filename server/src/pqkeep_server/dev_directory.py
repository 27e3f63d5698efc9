"""The data directory of ``pqkeepd dev``, with its credentials.

The credentials are in dev.json with mode 0600, for the next start. Only ``pqkeepd dev`` stores
credentials.
"""

import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_protocol.documents import decode_json
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.atomic_files import write_private_json
from pqkeep_server.data_lock import locked
from pqkeep_server.initialise import (
    IN_FILES,
    START_FILE,
    InitialiseError,
    Layout,
    Stores,
    has_stores,
    initialise,
)
from pqkeep_server.shard_folders import add_missing


class DevError(Exception):
    """``pqkeepd dev`` cannot run. The message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class DevelopmentCredentials:
    """The operator's credential and the demo tenant's id and API key."""

    operator_key: str = field(repr=False)
    tenant_id: str = ""
    api_key: str = field(default="", repr=False)
    owner_password: str = field(default_factory=lambda: secrets.token_urlsafe(15), repr=False)
    """The first password of the demo tenant's owner."""
    management_url: str = ""
    """The first gateway's management address at the last start."""


@contextmanager
def data_directory(chosen: Path | None) -> Iterator[Path]:
    """Yield the locked data directory, by default a temporary one that is removed at the end.

    Raises DevError.
    """
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="pqkeep-") as temporary:
            yield Path(temporary)
        return
    with ExitStack() as stack:
        try:
            chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
            if mode := stat.S_IMODE(chosen.stat().st_mode) & 0o077:
                if (chosen / START_FILE).exists():
                    raise DevError(
                        f"{chosen} has an installation from pqkeepd init: run it with pqkeepd start"
                    )
                raise DevError(
                    f"other users have access to the data directory {chosen} (mode ..{mode:02o}); "
                    "its mode must be 0700"
                )
            stack.enter_context(locked(chosen))
        except BlockingIOError:
            raise DevError(f"another pqkeepd uses the data directory {chosen}") from None
        except FileExistsError:
            raise DevError(f"cannot use the data directory {chosen}: Not a directory") from None
        except OSError as error:
            raise DevError(f"cannot use the data directory {chosen}: {error.strerror}") from None
        yield chosen.resolve()


def prepare(
    layout: Layout, stores: Stores, shards: int = 1, further: Sequence[str] = ()
) -> DevelopmentCredentials:
    """Return the credentials in a data directory, and make or complete it first.

    Missing shards are added, with the further databases in their order. Raises DevError.
    """
    is_complete = is_made(layout)
    try:
        credentials = _credentials(layout, must_exist=is_complete)
        if not is_complete:
            initialise(layout, credentials.operator_key, signup="open", stores=stores)
        are_elsewhere = stores != IN_FILES and not has_stores(layout, stores)
        add_missing(layout, shards, further)
    except (ConfigError, InitialiseError) as error:
        raise DevError(str(error)) from None
    if are_elsewhere:
        raise DevError(f"{layout.directory} already uses other databases: name those, or none")
    return credentials


def write_credentials(layout: Layout, credentials: DevelopmentCredentials) -> None:
    """Write credentials to a data directory. Raises OSError."""
    write_private_json(layout.development_credentials, asdict(credentials))


def _credentials(layout: Layout, *, must_exist: bool) -> DevelopmentCredentials:
    try:
        return read_credentials(layout.development_credentials)
    except ConfigError:
        if must_exist:
            raise
    credentials = DevelopmentCredentials(new_credential(CredentialKind.OPERATOR))
    write_credentials(layout, credentials)
    return credentials


def read_credentials(file: Path) -> DevelopmentCredentials:
    """Read credentials from a file. Raises ConfigError."""
    data = read_secret_file(file, "credentials")
    try:
        return DevelopmentCredentials(**decode_json(data, dict[str, str]))
    except (TypeError, ValueError):
        raise ConfigError(f"{file} does not have the credentials of pqkeepd dev") from None


def is_made(layout: Layout) -> bool:
    """Return True if a data directory is complete. Raises DevError if it cannot be read."""
    try:
        layout.gateway_settings.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DevError(f"cannot read {layout.gateway_settings}: {error.strerror}") from None
    return True

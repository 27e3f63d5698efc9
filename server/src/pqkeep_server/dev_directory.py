"""The data directory of ``pqkeepd dev``, and the credentials that it keeps there.

They are in dev.json with mode 0600, and work again when it is started again. No other mode of
running keeps credentials.
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
    """It cannot run. The message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class DevelopmentCredentials:
    """The operator's credential, and the demo tenant with its API key once they are made."""

    operator_key: str = field(repr=False)
    tenant_id: str = ""
    api_key: str = field(default="", repr=False)
    owner_password: str = field(default_factory=lambda: secrets.token_urlsafe(15), repr=False)
    """What the link to the portal lets the demo tenant's owner sign in with."""
    management_url: str = ""
    """Where the first gateway's management address was when it last became ready."""


@contextmanager
def data_directory(chosen: Path | None) -> Iterator[Path]:
    """Yield the data directory, locked; a temporary one, removed at the end, where none is chosen.

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
                        f"{chosen} has an installation that pqkeepd init made: pqkeepd start runs it"
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
    """Return the credentials in a data directory, which is made unless it is complete.

    It gets the shards that are missing, with these further databases in their order. Raises
    DevError.
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
        raise DevError(f"{layout.directory} has its databases elsewhere already")
    return credentials


def write_credentials(layout: Layout, credentials: DevelopmentCredentials) -> None:
    """Keep credentials in a data directory. Raises OSError."""
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
    """Read what is kept in a data directory. Raises ConfigError."""
    data = read_secret_file(file, "credentials")
    try:
        return DevelopmentCredentials(**decode_json(data, dict[str, str]))
    except (TypeError, ValueError):
        raise ConfigError(f"{file} does not hold the credentials of pqkeepd dev") from None


def is_made(layout: Layout) -> bool:
    """Return whether a data directory is complete. Raises DevError where that cannot be known."""
    try:
        layout.gateway_settings.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DevError(f"cannot read {layout.gateway_settings}: {error.strerror}") from None
    return True

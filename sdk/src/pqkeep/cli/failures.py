"""Failed commands: the exit status for scripts, and the next step for people.

docs/cli.md has the same table. The exception's class decides, or its nearest base class.
"""

import errno
import shlex
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import typer

from pqkeep.cli.options import STANDARD
from pqkeep.errors import (
    AuthenticationError,
    ComplianceError,
    ConfigurationError,
    ConflictError,
    DecryptionError,
    InvalidRequestError,
    MalformedResponseError,
    NotFoundError,
    PermissionDeniedError,
    PolicyDeniedError,
    PqkeepError,
    RateLimitError,
    UnavailableError,
    UnreadableInputError,
    UnwrappingError,
)


def printable(text: str) -> str:
    """Return text with a question mark for each control character.

    Characters that are unassigned in this Python's Unicode stay: the terminal may know them.
    """
    return "".join(
        character if character.isprintable() or _is_unassigned(character) else "?"
        for character in text
    )


def _is_unassigned(character: str) -> bool:
    return unicodedata.category(character) == "Cn"


OTHER = 1
UNREADABLE = OTHER
"""The status for a file that cannot be read, or has an unknown form."""
USAGE = 2
NOT_AUTHENTICATED = 3
NOT_FOUND = 4
DENIED = 5
RATE_LIMITED = 6
NOT_VERIFIED = 7
UNAVAILABLE = 8
LEFT = 9
"""The status if a campaign has data left."""
CHANGES = 10
"""The status of ``apply --dry-run`` if the service differs from the file."""
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143


class Refusal(Exception):  # noqa: N818 - it is one
    """The command refuses to do this. It has a reason and a next step."""

    def __init__(self, message: str, next_step: str, status: int = USAGE) -> None:
        """Take the reason, the next step and the exit status."""
        super().__init__(message)
        self.next_step = next_step
        self.status = status


@dataclass(frozen=True, slots=True)
class Ending:
    """An exit status and a next step."""

    status: int
    next_step: str


_ENDINGS: Mapping[type[BaseException], Ending] = {
    AuthenticationError: Ending(
        NOT_AUTHENTICATED,
        "check the API key with pqkeep status; store another one with pqkeep login",
    ),
    NotFoundError: Ending(NOT_FOUND, "check the name; list the keys: pqkeep keys list"),
    PolicyDeniedError: Ending(
        DENIED,
        "check the plan, the API key's scopes and the keyring's purposes: "
        "pqkeep status, pqkeep keyrings show KEYRING",
    ),
    PermissionDeniedError: Ending(
        DENIED, "use a credential with this permission, or ask the operator"
    ),
    ComplianceError: Ending(DENIED, "leave out the algorithm, or the compliance profile"),
    RateLimitError: Ending(RATE_LIMITED, "wait a minute and try again"),
    DecryptionError: Ending(
        NOT_VERIFIED,
        "check that the file is complete and unchanged, that the key belongs to your tenant, "
        "and that --associated-data and --context are the same as when the file was written",
    ),
    UnwrappingError: Ending(
        NOT_VERIFIED,
        "check that the file is complete and unchanged, that the key belongs to your tenant, "
        "and that --associated-data is the same as when the file was written",
    ),
    UnavailableError: Ending(
        UNAVAILABLE, "check the service's address and whether it responds: pqkeep status"
    ),
    ConfigurationError: Ending(
        USAGE,
        "correct the named value; set address and API key with pqkeep login, or with "
        "PQKEEP_URL and PQKEEP_API_KEY",
    ),
    MalformedResponseError: Ending(
        OTHER, "check that the address is that of a pqkeep service: pqkeep status"
    ),
    ConflictError: Ending(OTHER, "choose another name, or use the existing one"),
    InvalidRequestError: Ending(OTHER, "correct the named value and try again"),
    PqkeepError: Ending(OTHER, "try again; if it fails again, tell the operator the request id"),
    FileExistsError: Ending(OTHER, "replace it with --force, or name another file with --to"),
    FileNotFoundError: Ending(OTHER, "check the name, and that its directory exists"),
    OSError: Ending(OTHER, "check the permissions of the file and the free space"),
    UnicodeEncodeError: Ending(USAGE, "type the argument again in the encoding of the terminal"),
    ImportError: Ending(OTHER, "install it and try again"),
    Exception: Ending(OTHER, "this is a bug in pqkeep: please report it"),
}


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Turn UnreadableInputError in the block into a Refusal with the file's name."""
    try:
        yield
    except UnreadableInputError as error:
        next_step = error.next_step.replace("-in FILE", f"-in {shlex.quote(file)}")
        name = "standard input" if file == "-" else file
        raise Refusal(f"{name} is {error.what}", next_step, UNREADABLE) from None


_NOT_TYPED = frozenset(
    {
        "ciphertext",
        "envelope",
        "import_key_id",
        "items",
        "kem_ciphertext",
        "message",
        "payload",
        "plaintext",
        "symmetric_key",
        "wrapped_key",
        "wrapped_private_key",
    }
)
"""Fields that a command fills from a file. Their names mean nothing to the user."""


_LISTED_BY = {
    "campaign": "pqkeep campaign list",
    "issuer": "pqkeep issuers list",
    "keyring": "pqkeep keyrings list",
    "name": "pqkeep keyrings list",
    "tenant_id": "pqkeep tenants list",
    "version": "pqkeep api-keys list",
    "key_id": "pqkeep api-keys list",
}
"""Request fields that name an object, with the command that lists these objects."""


OF_OTHERS = frozenset({"issuer", "keyring", "tenant_id"})
"""Fields that name an object of another group of commands."""


@contextmanager
def about(file: str) -> Iterator[None]:
    """Name the file in an error about its content. Raises typer.Exit for such an error."""
    try:
        yield
    except PqkeepError as error:
        if not isinstance(error, (DecryptionError, UnwrappingError)) and (
            error.field not in _NOT_TYPED
        ):
            raise
        raise end(error, file) from None


_LONGEST = 2000
"""The most characters of a message: file names can be long."""


def end(error: Exception, file: str | None = None, *, next_step: str | None = None) -> typer.Exit:
    """Write an error and its next step to standard error, and return the exit status.

    A file is named, unless the error names it.
    """
    if isinstance(error, Refusal):
        ending = Ending(error.status, error.next_step)
    else:
        ending = next(_ENDINGS[kind] for kind in type(error).__mro__ if kind in _ENDINGS)
    said = _said(error)
    if file is not None:
        name = "standard input" if file == STANDARD else file
        said = said if name in said else f"{name}: {said}"
    if len(said) > _LONGEST:
        said = f"{said[: _LONGEST // 2]} … {said[-_LONGEST // 2 :]}"
    typer.echo(printable(f"pqkeep: {said}"), err=True)
    typer.echo(f"        {next_step or _next_step(error, ending)}", err=True)
    return typer.Exit(ending.status)


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        is_closed = error.errno == errno.EBADF
        reason = "closed" if is_closed else error.strerror or type(error).__name__
        return f"{error.filename}: {reason}" if error.filename else reason
    if isinstance(error, UnreadableInputError):
        return f"the input is {error.what}"
    if isinstance(error, PqkeepError) and error.field in _NOT_TYPED:
        return str(
            PqkeepError(
                error.message,
                error_code=error.error_code,
                status=error.status,
                request_id=error.request_id,
            )
        )
    if isinstance(error, (PqkeepError, Refusal, ImportError)):
        return str(error)
    if isinstance(error, UnicodeEncodeError):
        return "an argument or a file name has bytes that are not text"
    return f"unexpected error: {type(error).__name__}"  # its text may hold secrets


def _next_step(error: Exception, ending: Ending) -> str:
    if isinstance(error, PqkeepError) and error.retry_after is not None:
        return f"try again in {error.retry_after} s"
    if isinstance(error, NotFoundError) and error.field in _LISTED_BY:
        return f"list what exists: {_LISTED_BY[error.field]}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "free some disk space and try again"
    return error.next_step if isinstance(error, UnreadableInputError) else ending.next_step

"""How a command ends that could not do its work: a status for scripts, and what to do next.

docs/cli.md has the same table. The class of an exception decides, or the nearest one above it.
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
    """Return text without control characters; each becomes a question mark.

    What has no character in this Python's version of Unicode may have one in the terminal's.
    """
    return "".join(
        character if character.isprintable() or _is_unassigned(character) else "?"
        for character in text
    )


def _is_unassigned(character: str) -> bool:
    return unicodedata.category(character) == "Cn"


OTHER = 1
UNREADABLE = OTHER
"""Of a file that cannot be read, or is in no form that the command takes."""
USAGE = 2
NOT_AUTHENTICATED = 3
NOT_FOUND = 4
DENIED = 5
RATE_LIMITED = 6
NOT_VERIFIED = 7
UNAVAILABLE = 8
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143


class Refusal(Exception):  # noqa: N818 - it is one
    """The command will not do this. It says why, and what to do instead."""

    def __init__(self, message: str, next_step: str, status: int = USAGE) -> None:
        """Keep what to say."""
        super().__init__(message)
        self.next_step = next_step
        self.status = status


@dataclass(frozen=True, slots=True)
class Ending:
    """A status, and what to do next."""

    status: int
    next_step: str


_ENDINGS: Mapping[type[BaseException], Ending] = {
    AuthenticationError: Ending(
        NOT_AUTHENTICATED, "see which API key is used: pqkeep status; store another: pqkeep login"
    ),
    NotFoundError: Ending(NOT_FOUND, "see that the name is right; see the keys: pqkeep keys list"),
    PolicyDeniedError: Ending(
        DENIED,
        "use what the plan, the API key's scopes and the keyring's purposes allow: "
        "pqkeep status, pqkeep keyrings show KEYRING",
    ),
    PermissionDeniedError: Ending(DENIED, "use a credential that may do this, or ask the operator"),
    ComplianceError: Ending(
        DENIED, "leave the choice to the compliance profile, or do without the profile"
    ),
    RateLimitError: Ending(RATE_LIMITED, "wait a minute, and try again"),
    DecryptionError: Ending(
        NOT_VERIFIED,
        "see that it is the whole file, unchanged, that the key is your tenant's, "
        "and --associated-data the same as when it was written",
    ),
    UnwrappingError: Ending(
        NOT_VERIFIED,
        "see that it is the whole file, unchanged, that the key is your tenant's, "
        "and --associated-data the same as when it was written",
    ),
    UnavailableError: Ending(
        UNAVAILABLE, "see which service is used, and whether it answers: pqkeep status"
    ),
    ConfigurationError: Ending(
        USAGE,
        "correct what is named; address and API key are stored by pqkeep login, or set as "
        "PQKEEP_URL and PQKEEP_API_KEY",
    ),
    MalformedResponseError: Ending(
        OTHER, "see that the address is a pqkeep service's: pqkeep status"
    ),
    ConflictError: Ending(OTHER, "choose another name, or go on with what is there"),
    InvalidRequestError: Ending(OTHER, "change what is named, and try again"),
    PqkeepError: Ending(OTHER, "try again, and tell the operator the request's id if it stays so"),
    FileExistsError: Ending(OTHER, "replace it with --force, or name another file with --to"),
    FileNotFoundError: Ending(OTHER, "see that the name is right, and the directory there"),
    OSError: Ending(OTHER, "see that the file may be used like this, and that there is room"),
    UnicodeEncodeError: Ending(USAGE, "type it again, in the encoding of the terminal"),
    ImportError: Ending(OTHER, "install it, and try again"),
    Exception: Ending(OTHER, "this is a fault of the command: please report it"),
}


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Raise Refusal with the file's name for what cannot be read."""
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
"""Fields of requests that a command fills from a file: their names mean nothing to its user."""


_LISTED_BY = {
    "keyring": "pqkeep keyrings list",
    "name": "pqkeep keyrings list",
    "tenant_id": "pqkeep tenants list",
    "version": "pqkeep api-keys list",
    "key_id": "pqkeep api-keys list",
}
"""Fields of requests that name something, and the command that lists what there is."""


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
"""Characters of what is said: a name of a file may have as many as the system lets it."""


def end(error: Exception, file: str | None = None, *, next_step: str | None = None) -> typer.Exit:
    """Say on standard error what happened and what to do next, and return how to end.

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
        reason = "it is closed" if is_closed else error.strerror or type(error).__name__
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
        return "an argument or a name has bytes that are not text"
    return f"something unexpected happened: {type(error).__name__}"  # its text may hold secrets


def _next_step(error: Exception, ending: Ending) -> str:
    if isinstance(error, PqkeepError) and error.retry_after is not None:
        return f"try again in {error.retry_after} s"
    if isinstance(error, NotFoundError) and error.field in _LISTED_BY:
        return f"see what there is: {_LISTED_BY[error.field]}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "make room, and try again"
    return error.next_step if isinstance(error, UnreadableInputError) else ending.next_step

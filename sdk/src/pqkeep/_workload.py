"""The short-lived API key of a workload, exchanged for its platform's token and renewed."""

import time
from dataclasses import dataclass
from pathlib import Path

from pqkeep._call import Call, post
from pqkeep._data import Data
from pqkeep.errors import ConfigurationError
from pqkeep.private_files import BLANK

MAX_TOKEN = 12 * 1024
_RENEWED_AFTER = 2 / 3
"""The part of a key's life after which it is renewed."""
_RETRY_SECONDS = 15.0
"""The pause after a failed renewal of a key that is still valid."""
_GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT = "urn:ietf:params:oauth:token-type:jwt"


@dataclass(frozen=True, slots=True)
class Workload:
    """A role, and the file with the token of this workload's platform."""

    role: str
    """The tenant's id, a slash, and the role's name."""
    token_file: str


class WorkloadKey:
    """The API key of one workload. It is not safe for concurrent changes."""

    def __init__(self, workload: Workload) -> None:
        """Begin without a key."""
        self._workload = workload
        self._renew_at = self._ends_at = float("-inf")
        self.text: str | None = None

    @property
    def is_valid(self) -> bool:
        """True if there is a key, and it has not expired."""
        return self.text is not None and time.monotonic() < self._ends_at

    @property
    def is_due(self) -> bool:
        """True if the key must be renewed."""
        return not self.is_valid or time.monotonic() >= self._renew_at

    def renewal(self) -> Call[None]:
        """Return the call that gets a key. It reads the token's file. Raises ConfigurationError."""
        body = {
            "grant_type": _GRANT_TYPE,
            "subject_token": self._token(),
            "subject_token_type": _JWT,
            "role": self._workload.role,
        }
        return post("/auth/token", self._take, body)

    def postpone(self) -> None:
        """Renew the key later, because it could not be renewed now."""
        self._renew_at = time.monotonic() + _RETRY_SECONDS

    def forget(self, refused: str | None) -> None:
        """Drop a key that the service refused, unless there is a new one."""
        if self.text == refused:
            self.text = None

    def _take(self, data: Data) -> None:
        key, seconds = data.text("access_token"), data.integer("expires_in")
        now = time.monotonic()
        self.text, self._ends_at = key, now + seconds
        self._renew_at = now + seconds * _RENEWED_AFTER

    def _token(self) -> str:
        """Return the token, without blank lines. The platform replaces its file."""
        file = self._workload.token_file
        try:
            with Path(file).open("rb") as opened:
                token = opened.read(MAX_TOKEN + 1).decode("ascii").strip(BLANK)
        except OSError as error:
            raise ConfigurationError(
                f"the token's file {file} cannot be read: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            token = ""
        if not token or len(token) > MAX_TOKEN or not token.isprintable():
            raise ConfigurationError(f"the token's file {file} has no token: a signed JWT")
        return token

"""Credentials and tokens: their format, and the digest that is stored.

A credential is a prefix, 32 random bytes in base62 (43 characters) and a CRC-32 of both (6
characters). The checksum distinguishes a typing error from an unknown credential.
"""

import hmac
import secrets
import string
import zlib
from enum import StrEnum
from pathlib import Path

from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError

PEPPER_SIZE = 32
_RANDOM_BYTES = 32
_RANDOM_DIGITS = 43
_CHECKSUM_DIGITS = 6
_PREFIX = 4
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


class CredentialKind(StrEnum):
    """The prefix of a credential."""

    API_KEY = "pqk_"
    WORKLOAD = "pqt_"
    """A workload's short-lived API key."""
    OPERATOR = "pqo_"
    ACCESS = "pqa_"
    REFRESH = "pqr_"
    INVITATION = "pqi_"
    REGISTRATION = "pqs_"
    PASSWORD_RESET = "pqp_"  # noqa: S105 - a prefix
    CHALLENGE = "pqc_"
    STEP_UP = "pqu_"
    OPERATOR_SESSION = "pqb_"
    PROOF = "pqd_"
    """For the cookie that a step-up sets: see ``pqkeep_gateway.people.step_up``."""
    REAUTHENTICATION = "pqg_"
    """For the cookie that the single sign-on callback sets at a step-up."""
    BROWSER = "pqw_"
    """For the cookie that binds a passkey's challenge to a browser."""


def new_credential(kind: CredentialKind, random: bytes | None = None) -> str:
    """Return a new credential (53 characters) from 32 random bytes."""
    number = int.from_bytes(random or secrets.token_bytes(_RANDOM_BYTES), "big")
    body = kind + _base62(number, _RANDOM_DIGITS)
    return body + _checksum(body)


def kind_of(credential: str) -> CredentialKind | None:
    """Return the kind of a credential; None if the format is wrong."""
    body, checksum = credential[:-_CHECKSUM_DIGITS], credential[-_CHECKSUM_DIGITS:]
    for kind in CredentialKind:
        if body.startswith(kind) and len(body) == len(kind) + _RANDOM_DIGITS:
            # The checksum is public arithmetic, so its timing reveals nothing.
            return kind if body.isascii() and checksum == _checksum(body) else None
    return None


class Purpose(StrEnum):
    """The labels of the pepper's subkeys, one for each purpose."""

    ACCOUNT = "pqkeep/v1/account"
    API_KEY = "pqkeep/v1/api-key"
    CLIENT = "pqkeep/v1/client"
    EMAIL_CODE = "pqkeep/v1/email-code"
    KNOWN_NETWORK = "pqkeep/v1/known-network"
    MAILED_CODE = "pqkeep/v1/mailed-code"
    MAILED_TOKEN = "pqkeep/v1/mailed-token"  # noqa: S105 - a label
    PASSKEY = "pqkeep/v1/passkey"
    PASSWORD = "pqkeep/v1/password"  # noqa: S105 - a label
    PROOF = "pqkeep/v1/proof"
    REAUTHENTICATION = "pqkeep/v1/reauthentication"
    RECOVERY_CODE = "pqkeep/v1/recovery-code"
    ROW = "pqkeep/v1/row"
    SESSION_TOKEN = "pqkeep/v1/session-token"  # noqa: S105 - a label
    SINGLE_SIGN_ON = "pqkeep/v1/single-sign-on"
    TOTP = "pqkeep/v1/totp"
    WEBHOOK = "pqkeep/v1/webhook"


_DIGEST = "pqkeep/v1/digest/"
"""The label of a digest subkey: this text and the prefix of the credential kind."""


class Pepper:
    """A server-side secret; without it a stolen digest cannot be tested against guesses.

    It is never used directly: each purpose, and each kind of credential, has a subkey.
    """

    def __init__(self, pepper: bytes) -> None:
        """Take 32 random bytes."""
        if len(pepper) != PEPPER_SIZE:
            raise ConfigError(f"the pepper must be {PEPPER_SIZE} bytes long")
        digests = (_DIGEST, *(_DIGEST + kind for kind in CredentialKind))
        self._subkeys = {
            label: hmac.digest(pepper, label.encode(), "sha256") for label in (*Purpose, *digests)
        }

    def digest(self, credential: str) -> bytes:
        """Return HMAC-SHA-256 (32 bytes) of a credential, or of any text sent as one."""
        label = _DIGEST + credential[:_PREFIX]
        subkey = self._subkeys.get(label) or self._subkeys[_DIGEST]
        return hmac.digest(subkey, credential.encode("utf-8", "surrogatepass"), "sha256")

    def derive(self, purpose: Purpose, *parts: bytes) -> bytes:
        """Return 32 bytes that depend on this pepper, the purpose and the parts."""
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._subkeys[purpose], text, "sha256")

    def __repr__(self) -> str:
        return "<Pepper>"


def read_pepper(path: Path) -> Pepper:
    """Read the pepper from a secret file. Raises ConfigError."""
    return Pepper(read_secret_file(path, "pepper"))


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_DIGITS)


def _base62(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text

"""``age-plugin-pqkeep``: age (c2sp.org/age) decrypts with a key that stays in the service.

An X-Wing public key is a recipient of age, so age encrypts without this program. To decrypt, age
starts this program (c2sp.org/age-plugin). The program asks the service for the shared secret of
each stanza:

    key, base nonce = HPKE key schedule (RFC 9180, base mode, 0x647a, HKDF-SHA-256,
                      ChaCha20-Poly1305, info = "age-encryption.org/mlkem768x25519")
    file key        = ChaCha20-Poly1305(key, base nonce, stanza's body)

It needs the extra ``pqkeep[local]``.
"""

import binascii
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import BinaryIO, NamedTuple, NoReturn, Self

import httpx2

from pqkeep import bech32
from pqkeep._data import json_object, strict_json
from pqkeep._settings import address
from pqkeep.algorithms import PARAMETERS, Algorithm
from pqkeep.client import Client
from pqkeep.errors import ConfigurationError, DecryptionError, PqkeepError, how_to_install

PREFIX = "AGE-PLUGIN-PQKEEP-"
STANZA = "mlkem768x25519"
MOST_STANZAS = 128
"""The most stanzas of a file that are sent to the service. Any sender can write a file."""
IN_A_REQUEST = 32
"""The most stanzas in one request."""
_LARGEST_INPUT = 4 * 1024 * 1024
"""Bytes from age. It reads headers of at most 2 MiB."""
_LONGEST_MESSAGE = 1000
_INFO = b"age-encryption.org/mlkem768x25519"
_SUITE = b"HPKE" + bytes.fromhex("647a 0001 0003")
_FILE_KEY = 16
_TAG = 16
_LINE = 64
"""Characters of a full line of a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The name of a key in a service. It is no secret: the service asks for a credential."""

    url: str
    keyring: str
    algorithm: str
    key_version: int

    def __str__(self) -> str:
        return (
            f"{self.algorithm} version {self.key_version} in keyring {self.keyring} at {self.url}"
        )

    def encoded(self) -> str:
        """Return the text that age takes as an identity."""
        data = json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()
        return bech32.encode(PREFIX.lower(), data).upper()

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the identity in a text. Raises ValueError."""
        prefix, data = bech32.decode(text)
        if prefix != PREFIX.lower():
            raise ValueError(f"for another program than {PREFIX.lower()}")
        values = json_object(strict_json(data))
        if values is None or {name: type(value) for name, value in values.items()} != _FIELDS:
            raise ValueError("with fields that this version does not know")
        identity = cls(**values)  # type: ignore[arg-type] # checked above
        try:
            address(identity.url, "the url")
        except ConfigurationError as error:
            raise ValueError(f"damaged: {error}") from None
        if identity.algorithm != Algorithm.X_WING or identity.key_version < 1:
            raise ValueError("for another algorithm than X-Wing, or without a key version")
        return identity


def recipient(public_key: bytes) -> str:
    """Return an X-Wing public key as age takes it."""
    return bech32.encode("age1pq", public_key)


_FIELDS = {"url": str, "keyring": str, "algorithm": str, "key_version": int}


def main() -> NoReturn:
    """Serve age on the standard streams, and exit."""
    machines = {
        "--age-plugin=identity-v1": _decrypt,
        "--age-plugin=recipient-v1": _refuse_to_encrypt,
    }
    machine = machines.get(" ".join(sys.argv[1:]))
    if machine is None:
        sys.exit(
            "age-plugin-pqkeep: age starts this program; pqkeep age identity prints an identity"
        )
    try:
        machine(_Age(sys.stdin.buffer, sys.stdout.buffer))
    except _ProtocolError as error:
        sys.exit(f"age-plugin-pqkeep: {error}")
    except Exception as error:  # noqa: BLE001 - a traceback may hold secrets
        sys.exit(f"age-plugin-pqkeep: unexpected error: {type(error).__name__}")
    sys.exit(0)


class _ProtocolError(Exception):
    """Age did not keep to the protocol."""


class _Stanza(NamedTuple):
    """A command or response."""

    arguments: Sequence[str]
    """The type, and then the arguments."""
    body: bytes


class _Age:
    """The connection to age."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer
        self._left = _LARGEST_INPUT

    def phase(self) -> Sequence[_Stanza]:
        """Return all commands up to ``done``."""
        commands: list[_Stanza] = []
        while (command := self._read()).arguments[0] != "done":
            commands.append(command)
        return commands

    def tell(self, *arguments: str, body: bytes = b"") -> None:
        """Send a command, and wait for the response."""
        self._write(arguments, body)
        if self._read().arguments[0] != "ok":
            raise _ProtocolError(f"age did not accept the command {arguments[0]}")

    def fail(self, *place: str, why: str) -> None:
        """Tell age of an error, with its place."""
        text = "".join(one if one.isprintable() else "?" for one in why[:_LONGEST_MESSAGE])
        self.tell("error", *place, body=text.encode(errors="replace"))

    def done(self) -> None:
        """End the plugin's phase."""
        self._write(("done",), b"")

    def _write(self, arguments: Iterable[str], body: bytes) -> None:
        text = b64encode(body).rstrip(b"=")
        lines = [text[start : start + _LINE] for start in range(0, len(text) + 1, _LINE)]
        self._writer.write(b"\n".join((" ".join(("->", *arguments)).encode(), *lines, b"")))
        self._writer.flush()

    def _read(self) -> _Stanza:
        arrow, *arguments = self._line().split(" ")
        if arrow != "->" or not all(arguments) or not arguments:
            raise _ProtocolError("a line does not begin a stanza")
        lines = [self._line()]
        while len(lines[-1]) == _LINE:
            lines.append(self._line())
        body = _decoded("".join(lines)) if len(lines[-1]) < _LINE else None
        if body is None:
            raise _ProtocolError("the body of a stanza is damaged")
        return _Stanza(arguments, body)

    def _line(self) -> str:
        line = self._reader.readline(self._left)
        self._left -= len(line)
        if not line.endswith(b"\n"):
            raise _ProtocolError("the input is too long" if not self._left else "the input was cut")
        return line[:-1].decode("latin-1")


def _decoded(text: str) -> bytes | None:
    """Return the data of canonical base64 without padding, or None for other text."""
    with suppress(binascii.Error, ValueError):
        data = b64decode(text + "=" * (-len(text) % 4), validate=True)
        if b64encode(data).rstrip(b"=") == text.encode():
            return data
    return None


def _refuse_to_encrypt(age: _Age) -> None:
    """Name the recipient: age encrypts to it without a plugin."""
    age.phase()
    why = (
        "encrypt to the key's recipient (age1pq1…): pqkeep keys public-key X-Wing --format age "
        "prints it"
    )
    age.fail("internal", why=why)
    age.done()


@dataclass(slots=True)
class _File:
    """The stanzas of a file that a key of this kind may open."""

    wrapped: list["_Wrapped"] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    """Reasons by the place of the stanza."""
    count: int = 0


class _Wrapped(NamedTuple):
    """A file key wrapped to one recipient, without the recipient's name."""

    place: int
    kem_ciphertext: bytes
    body: bytes


def _decrypt(age: _Age) -> None:
    identities: list[str] = []
    files: dict[int, _File] = {}
    for command in age.phase():
        match command:
            case _Stanza(["add-identity", identity], b""):
                identities.append(identity)
            case _Stanza(["recipient-stanza", number, *arguments], body) if arguments:
                if not (number.isascii() and number.isdigit() and len(number) < _DIGITS):
                    raise _ProtocolError("the number of a file is no number")
                _take(files.setdefault(int(number), _File()), arguments, body)
            case _Stanza(["add-identity" | "recipient-stanza", *_], _):
                raise _ProtocolError("a command has other arguments")
            case _:
                pass  # the protocol has commands without a meaning
    keys = _read_identities(age, identities)
    if keys is not None:
        with ExitStack() as stack:
            connect = cache(lambda: stack.enter_context(Client()))
            for place, file in files.items():
                _open(age, place, file, keys, connect)
    age.done()


_DIGITS = 10


def _take(file: _File, arguments: Sequence[str], body: bytes) -> None:
    place, file.count = file.count, file.count + 1
    if arguments[0] != STANZA:
        return
    kem_ciphertext = _decoded(arguments[1]) if len(arguments) == 1 + 1 else None
    size = PARAMETERS[Algorithm.X_WING].ciphertext
    if kem_ciphertext is None or len(kem_ciphertext) != size:
        file.damaged[place] = f"the recipient stanza must have one argument of {size} bytes"
    elif len(body) != _FILE_KEY + _TAG:
        file.damaged[place] = f"the body of a stanza must have {_FILE_KEY + _TAG} bytes"
    else:
        file.wrapped.append(_Wrapped(place, kem_ciphertext, body))
        if len(file.wrapped) == MOST_STANZAS + 1:
            file.damaged[place] = (
                f"the file has more than {MOST_STANZAS} post-quantum recipients: to find its own, "
                "the service would have to try each"
            )


def _read_identities(age: _Age, texts: Sequence[str]) -> Mapping[int, Identity] | None:
    """Return the identities by number, or None if age reported an error in one of them."""
    keys: dict[int, Identity] = {}
    problems: dict[int, str] = {}
    for number, text in enumerate(texts):
        try:
            keys[number] = Identity.read(text)
        except ValueError as error:
            problems[number] = f"the identity is {error}; pqkeep age identity prints another"
    for number, problem in problems.items():
        age.fail("identity", str(number), why=problem)
    return None if problems else keys


def _open(
    age: _Age,
    number: int,
    file: _File,
    keys: Mapping[int, Identity],
    connect: Callable[[], Client],
) -> None:
    """Send the file key, or the errors that prevented it. Nothing if no stanza is for these keys."""
    for place, problem in file.damaged.items():
        age.fail("stanza", str(number), str(place), why=problem)
    if file.damaged or not file.wrapped:
        return
    problems: dict[tuple[str, ...], str] = {}
    for key_number, identity in keys.items():
        try:
            client = connect()
            _require_address(client, identity)
            file_key = _file_key(client, identity, file.wrapped)
        except _RefusedStanzaError as error:
            problems["stanza", str(number), str(error.place)] = f"{identity}: {error}"
        except (PqkeepError, OSError, ImportError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            problems["identity", str(key_number)] = f"{identity}: {said}"
        else:
            if file_key is not None:
                age.tell("file-key", str(number), body=file_key)
                return
    for where, problem in problems.items():
        age.fail(*where, why=problem)


class _RefusedStanzaError(Exception):
    """The service refused the KEM ciphertext of a stanza."""

    def __init__(self, place: int, message: str) -> None:
        super().__init__(message)
        self.place = place


def _require_address(client: Client, identity: Identity) -> None:
    """Raise ConfigurationError if an identity is of another service than the configured one.

    An identity can come from anyone, so its address gets no credential that is for another one.
    """
    if httpx2.URL(client.url) != httpx2.URL(address(identity.url, "the identity's url")):
        raise ConfigurationError(
            f"the credential is for {client.url}; name the profile of the other address in "
            "PQKEEP_PROFILE, or set PQKEEP_URL and PQKEEP_API_KEY_FILE"
        )


def _file_key(client: Client, identity: Identity, wrapped: Sequence[_Wrapped]) -> bytes | None:
    """Return the file key, or None if no stanza is for this key.

    Raises PqkeepError, _RefusedStanzaError, and ImportError without the library.
    """
    opener = _Opener()
    for start in range(0, len(wrapped), IN_A_REQUEST):
        stanzas = wrapped[start : start + IN_A_REQUEST]
        secrets = client.kem.decapsulate_many(
            [{"kem_ciphertext": stanza.kem_ciphertext} for stanza in stanzas],
            key_version=identity.key_version,
            algorithm=identity.algorithm,
            keyring=identity.keyring,
        )
        for stanza, secret in zip(stanzas, secrets, strict=True):
            if isinstance(secret, DecryptionError):
                raise _RefusedStanzaError(stanza.place, str(secret))
            if isinstance(secret, PqkeepError):
                raise secret
            file_key = opener.open(secret, stanza.body)
            if file_key is not None:
                return file_key
    return None


class _Opener:
    """HPKE's side of the recipient, from the shared secret on."""

    def __init__(self) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.ciphers.aead import (  # noqa: PLC0415
                ChaCha20Poly1305,
            )
            from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand  # noqa: PLC0415
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"decryption is not installed: {how_to_install('local')}", name="cryptography"
            ) from None
        self._invalid_tag = InvalidTag
        self._aead = ChaCha20Poly1305
        self._hash = SHA256()
        self._extract = HKDF.extract
        self._expand = HKDFExpand

    def open(self, shared_secret: bytes, body: bytes) -> bytes | None:
        """Return the file key, or None if the shared secret is of another key (RFC 9180, 5.1)."""
        context = bytes(1) + self._extracted(b"", b"psk_id_hash", b"")
        context += self._extracted(b"", b"info_hash", _INFO)
        secret = self._extracted(shared_secret, b"secret", b"")
        key = self._expanded(secret, b"key", context, 32)
        base_nonce = self._expanded(secret, b"base_nonce", context, 12)
        try:
            return self._aead(key).decrypt(base_nonce, body, b"")
        except self._invalid_tag:
            return None

    def _extracted(self, salt: bytes, label: bytes, secret: bytes) -> bytes:
        labelled = b"HPKE-v1" + _SUITE + label + secret
        return self._extract(self._hash, salt or None, labelled)

    def _expanded(self, secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
        info = length.to_bytes(2, "big") + b"HPKE-v1" + _SUITE + label + context
        return self._expand(self._hash, length, info).derive(secret)

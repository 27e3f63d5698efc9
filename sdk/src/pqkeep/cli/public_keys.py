"""Public keys in files: as ``pqkeep keys public-key`` writes them, PEM, DER, or their bytes alone."""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pqkeep.algorithms import Algorithm
from pqkeep.cli import documents
from pqkeep.cli.choice import UNNAMED, Named
from pqkeep.cli.failures import NOT_VERIFIED, Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.sources import whole

LARGEST = 64 * 1024
BEGIN = b"-----BEGIN PUBLIC KEY-----"
END = b"-----END PUBLIC KEY-----"
SEQUENCE = 0x30
BIT_STRING = 0x03
NAMES: Mapping[str, tuple[str, ...]] = {
    "0609608648016503040402": (Algorithm.ML_KEM_768, "ML-KEM-768"),
    "0609608648016503040403": (Algorithm.ML_KEM_1024,),
    "060b2b0601040183e62d81c87a": (Algorithm.X_WING,),
}
"""What those that encrypt are called, by object identifier (DER): see docs/formats.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInFile:
    """A public key, and by which name its owner finds the private one."""

    public_key: bytes = field(repr=False)
    algorithm: str
    key_version: int
    keyring: str = documents.DEFAULT_KEYRING

    def is_named(self, algorithm: str, key_version: int, keyring: str | None) -> bool:
        """Return whether this is the key's name; without a keyring it is in the default one."""
        own = (self.algorithm, self.key_version, self.keyring)
        return own == (algorithm, key_version, keyring or documents.DEFAULT_KEYRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAlone:
    """A public key of which its file does not say which version it is."""

    public_key: bytes = field(repr=False)
    names: tuple[str, ...] = ()
    """What its algorithm is called; empty: that is not said, or it is none that encrypts."""


def key_in_file(invocation: Invocation, path: Path, named: Named = UNNAMED) -> KeyInFile:
    """Return the key in a file; what the file leaves out must be said. Raises Refusal."""
    key = read_key(invocation, path)
    algorithm, key_version, keyring = named
    if isinstance(key, KeyAlone):
        if algorithm is not None and key.names and algorithm not in key.names:
            raise Refusal(f"{path} is a key of {key.names[0]}", "leave out --algorithm")
        algorithm = algorithm or next(iter(key.names), None)
        missing = [
            option
            for option, value in (("--algorithm", algorithm), ("--key-version", key_version))
            if value is None
        ]
        if algorithm is None or key_version is None:
            raise Refusal(f"{path} does not say which key it is", f"add {', '.join(missing)}")
        return KeyInFile(
            public_key=key.public_key,
            algorithm=algorithm,
            key_version=key_version,
            keyring=keyring or documents.DEFAULT_KEYRING,
        )
    asked = (algorithm or key.algorithm, key_version or key.key_version, keyring or key.keyring)
    if not key.is_named(*asked):
        raise Refusal(
            f"{path} is the key of {key.algorithm} version {key.key_version}",
            "leave out --algorithm, --key-version and --keyring, or name another file",
        )
    return key


def read_key(invocation: Invocation, path: Path) -> KeyInFile | KeyAlone:
    """Return the key in a file, with what the file says of it."""
    data = whole(str(path), invocation, LARGEST, "name a file with one public key")
    if data.startswith(b"-----"):
        try:
            return _in_pem(data)
        except (ValueError, IndexError):
            raise Refusal(
                f"{path} is PEM, and no public key", "name a file with one public key", NOT_VERIFIED
            ) from None
    if not (data.startswith(b"{") and _is_text(data)):  # the bytes of a key may begin like JSON
        return _in_der(data)
    key, keyring = documents.read(data, documents.PublicKey, str(path))
    return KeyInFile(**asdict(key), keyring=keyring or documents.DEFAULT_KEYRING)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _in_pem(pem: bytes) -> KeyAlone:
    """Return the key in a SubjectPublicKeyInfo as PEM. Raises ValueError, IndexError."""
    text = pem.strip()
    if not (text.startswith(BEGIN) and text.endswith(END)):
        raise ValueError
    lines = text.removeprefix(BEGIN).removesuffix(END).split()
    return _key_in(base64.b64decode(b"".join(lines), validate=True))


def _in_der(data: bytes) -> KeyAlone:
    """Return the key in a SubjectPublicKeyInfo, or the bytes of what is none: a key alone."""
    try:
        return _key_in(data)
    except (ValueError, IndexError):
        return KeyAlone(public_key=data)


def _key_in(der: bytes) -> KeyAlone:
    """Return the key in a SubjectPublicKeyInfo (RFC 5280). Raises ValueError, IndexError."""
    body, rest = _element(der, SEQUENCE)
    algorithm, key = _element(body, SEQUENCE)
    bits, more = _element(key, BIT_STRING)
    if rest or more or bits[0]:  # bytes that follow, or bits that are not used
        raise ValueError
    return KeyAlone(public_key=bits[1:], names=NAMES.get(algorithm.hex(), ()))


def _element(der: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the contents of the first element of DER, and what follows it."""
    if der[0] != tag:
        raise ValueError
    size, start = der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start])
    if len(der) < start + size:
        raise ValueError
    return der[start : start + size], der[start + size :]

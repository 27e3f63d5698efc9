"""Public keys in files from ``pqkeep keys public-key`` and from other programs."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from pqkeep import inputs, verification
from pqkeep.cli import documents
from pqkeep.cli.choice import ENCRYPTING, UNNAMED, Named
from pqkeep.cli.failures import UNREADABLE, Refusal, naming
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.sources import whole

LARGEST = 256 * 1024
"""The most bytes of a file: enough for a JWK Set with 70 keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInFile:
    """A public key, with the name by which its owner finds the private key."""

    public_key: bytes = field(repr=False)
    algorithm: str
    key_version: int
    keyring: str = documents.DEFAULT_KEYRING

    def is_named(self, algorithm: str, key_version: int, keyring: str | None) -> bool:
        """Return True if this is the key's name. Without a keyring, it is the default one."""
        own = (self.algorithm, self.key_version, self.keyring)
        return own == (algorithm, key_version, keyring or documents.DEFAULT_KEYRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAlone:
    """A public key from a file without a key version."""

    public_key: bytes = field(repr=False)
    algorithms: tuple[str, ...]
    """The possible algorithms: exactly one, unless the file has only the key's bytes."""


def key_in_file(invocation: Invocation, path: Path, named: Named = UNNAMED) -> KeyInFile:
    """Return the key in a file. Options must name what the file leaves out. Raises Refusal."""
    key = read_key(invocation, path, named.algorithm)
    algorithm, key_version, keyring = named
    if isinstance(key, KeyAlone):
        if algorithm is not None and inputs.canonical(algorithm) not in key.algorithms:
            raise Refusal(f"{path} is a key of {key.algorithms[0]}", "leave out --algorithm")
        if not set(key.algorithms) & set(ENCRYPTING):
            raise Refusal(
                f"{path} is a key of {key.algorithms[0]}, which signs", "name a key that encrypts"
            )
        if key_version is None:
            raise Refusal(f"{path} does not name the key's version", "add --key-version")
        return KeyInFile(
            public_key=key.public_key,
            algorithm=algorithm
            or key.algorithms[0],  # no two encryption algorithms have keys of the same size
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


def read_key(
    invocation: Invocation, path: Path, algorithm: str | None = None, kid: str | None = None
) -> KeyInFile | KeyAlone:
    """Return the key in a file, with its name if the file has one.

    Of several keys, it is the one with this algorithm or this id. Raises Refusal.
    """
    data = whole(str(path), invocation, LARGEST, "name a file with one public key")
    if documents.is_a(data, documents.PublicKey):
        key, keyring = documents.read(data, documents.PublicKey, str(path))
        return KeyInFile(**asdict(key), keyring=keyring or documents.DEFAULT_KEYRING)
    with naming(str(path)):
        found = inputs.read_public_key(data, algorithm=algorithm, kid=kid)
    return KeyAlone(public_key=found.public_key, algorithms=found.algorithms)


def require_key_of(key: KeyInFile | KeyAlone, algorithm: str, path: Path) -> None:
    """Raise Refusal for a key that cannot have made a signature of an algorithm."""
    algorithms = (key.algorithm,) if isinstance(key, KeyInFile) else key.algorithms
    if inputs.canonical(algorithm) not in algorithms:
        raise Refusal(
            f"{path} is a public key of {inputs.title(algorithms[0])}, but the signature is of "
            f"{inputs.title(algorithm)}",
            "name the signer's public key",
            UNREADABLE,
        )
    with naming(str(path)):
        verification.require_public_key(inputs.canonical(algorithm), key.public_key)

"""The key service's settings: one TOML file, read once into a frozen value.

The file itself holds no secret: root keys and passwords have files of their own.
"""

import os
from base64 import b64decode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from pqkeep_protocol.keys import DEFAULT_SHARD, MIN_ARCHIVE_DAYS, ShardName
from pqkeep_protocol.startup.settings import (
    DatabaseAddress,
    LogFormat,
    NetworkAddress,
    converted,
    read_settings,
)


class Link(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The listener for gateways on other hosts, with mutual TLS: the table ``[link]``."""

    listen: NetworkAddress
    """The address to listen on, host:port."""
    certificate: Path
    """This key service's certificate in PEM, with the role spiffe://pqkeep/keyservice."""
    key: Path
    """The certificate's private key in PEM: a secret file."""
    ca: Path
    """The private CA that signs the gateways' certificates, in PEM."""
    require_post_quantum: bool = False
    """Whether to refuse gateways without post-quantum key exchange. With it the key service needs
    OpenSSL 3.5 or later, and does not start with an older one."""


LogName = Annotated[str, Meta(pattern=r"^(?!.*://)[!-*,-~]{1,128}$")]
"""A name of a log: printable ASCII without spaces, "+" and a scheme."""
ED25519, ML_DSA_44 = 0x04, 0x06
"""The types of timestamped cosignatures (C2SP tlog-cosignature)."""
_PUBLIC_KEY_SIZES: Mapping[int, int] = {ED25519: 32, ML_DSA_44: 1312}
MAX_WITNESSES = 16


class Witness(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A witness that cosigns the audit log's checkpoints: a table ``[[witnesses]]``."""

    url: Annotated[
        str,
        Meta(max_length=255, pattern=r"^(https://|http://127\.0\.0\.1(:|/|$))[^?#@\s]*$"),
    ]
    """Its submission prefix: https, or http on this machine. Submissions go to url/add-checkpoint."""
    key: Annotated[str, Meta(max_length=2048, pattern=r"^[!-*,-~]{1,128}\+[0-9a-f]{8}\+[!-~]+$")]
    """Its verifier key (vkey), name+id+key: ML-DSA-44 or Ed25519 with timestamps."""

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid key."""
        name, key_id, text = self.key.split("+", 2)
        try:
            typed = b64decode(text, validate=True)
        except ValueError:
            typed = b""
        if len(typed) - 1 != _PUBLIC_KEY_SIZES.get(typed[0] if typed else 0):
            raise ValueError(
                "witnesses: key must be a verifier key of type 04 (Ed25519) or 06 (ML-DSA-44)"
            )
        if sha256(name.encode() + b"\n" + typed).hexdigest()[:8] != key_id:
            raise ValueError(
                "witnesses: the id in key does not fit its name and key: copy it again"
            )

    @property
    def name(self) -> str:
        """The name of its key."""
        return self.key.partition("+")[0]

    @property
    def key_id(self) -> bytes:
        """The id of its key, 4 bytes."""
        return bytes.fromhex(self.key.split("+", 2)[1])

    @property
    def typed_key(self) -> bytes:
        """Its signature type, 1 byte, and its public key."""
        return b64decode(self.key.split("+", 2)[2])


PREFIX = "PQKEEP_KEYSERVICE_"
"""The prefix of environment variables that override settings."""

MAX_DESTRUCTION_DAYS = 90

Name = Annotated[str, Meta(min_length=1)]
CredentialName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*$")]
"""The name of a file in $CREDENTIALS_DIRECTORY, where a service manager passes a service's
secrets."""


class Pkcs11(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A key in a PKCS#11 token. The token derives a root key from it."""

    library: Path
    """The PKCS#11 library of the token's vendor."""
    token: Name
    """The token's label."""
    key: Name
    """The key's label. The key is a generic secret of at least 256 bits that cannot leave the
    token."""
    pin_file: Path | None = None
    """The user PIN: a secret file."""
    pin_credential: CredentialName | None = None
    """The user PIN: a credential of the service manager, instead of pin_file."""

    def __post_init__(self) -> None:
        """Raise ValueError unless there is exactly one source of the PIN."""
        if (self.pin_file is None) == (self.pin_credential is None):
            raise ValueError("expected either pin_file or pin_credential")


class RootKeySource(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """The source of a root key: exactly one of these."""

    file: Path | None = None
    """32 random bytes: a secret file."""
    credential: CredentialName | None = None
    """32 random bytes: a credential of the service manager."""
    pkcs11: Pkcs11 | None = None
    """A key in a PKCS#11 token. The token derives the root key from it, and the key never leaves
    the token."""
    command: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None
    """A program's absolute path and its arguments. It prints the 32 bytes or their base64."""

    def __post_init__(self) -> None:
        """Raise ValueError unless there is exactly one source."""
        if sum(source is not None for source in structs.astuple(self)) != 1:
            raise ValueError("expected exactly one of file, credential, pkcs11 and command")
        if self.command is not None and not self.command[0].startswith("/"):
            raise ValueError("expected an absolute path as the first item of command")


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of the key service. Paths are relative to the settings file.

    A secret file has mode 0400 or 0600 and belongs to the process's user or root. A file of root
    may have mode 0440 or 0640 if the process's user is the only one in its group.
    """

    socket: Path | None = None
    """The Unix socket for the gateway. It gets mode 0660 and the group of its folder. Without it
    all gateways must be on other hosts."""
    gateway_uid: Annotated[int, Meta(ge=1, le=2**32 - 2)] | Literal["same"] | None = None
    """The user id of the gateway; the socket serves no other user. It must differ from the key
    service's own: a compromised gateway could otherwise read the root key. "same" is for
    development, with one user for both."""
    operator_socket: Path | None = None
    """The Unix socket for the operator's commands. It serves only root and the key service's own
    user. Without it there is no administration, for example no change of the root key."""
    link: Link | None = None
    """The listener for gateways on other hosts, beside the socket or instead of it."""
    shard: ShardName = DEFAULT_SHARD
    """The name of this key service's shard, as in the gateway's settings. The database stores it at
    the first start, and later refuses another name."""
    database: DatabaseAddress
    """The database of keys and audit records."""
    database_password_file: Path | None = None
    """A PostgreSQL password file as libpq defines it: a secret file."""
    root_key_file: Path | None = None
    """The root key with id 1, 32 random bytes: a secret file."""
    root_keys: dict[Annotated[int, Meta(ge=1, le=255)], RootKeySource] = {}
    """Root keys by id, instead of root_key_file. The one with the highest id seals.

    Each is a table such as [root_keys.2] with exactly one of file, credential, pkcs11 and command.
    """
    transfer_key_file: Path | None = None
    """The key that seals a tenant's keys on their way to another shard, 32 random bytes: a secret
    file. Only the key services of all shards have it. Without it no tenant can leave or arrive."""
    least_destruction_days: Annotated[int, Meta(ge=0, le=MAX_DESTRUCTION_DAYS)] = MIN_ARCHIVE_DAYS
    """The minimum delay in days between a request to destroy a private key and its destruction,
    even if the gateway asks for less. It can be cancelled until then. Fewer than 7 are for
    development."""
    origin: LogName | None = None
    """The audit log's name in signed notes for witnesses, such as pqkeep.example/audit. By default
    pqkeep/audit/LOG_ID. Each shard needs a name of its own. Keep it after a restore: witnesses then
    compare the restored log with the earlier one."""
    witnesses: Annotated[tuple[Witness, ...], Meta(max_length=MAX_WITNESSES)] = ()
    """Witnesses that cosign the audit log. They need ``origin``. The gateway carries the
    checkpoints to them. docs/audit.md explains how to add one."""
    slh_dsa: Literal["auto", "openssl", "pqcrypto"] = "auto"
    """The implementation of SLH-DSA: "openssl" for the system's OpenSSL >= 3.5, "pqcrypto" for that
    package. "auto" is OpenSSL if it is available or openssl_library is set, otherwise pqcrypto."""
    openssl_library: str | None = None
    """A libcrypto other than the system's: a library's name or path."""
    verify_signatures: bool = False
    """Whether to verify ML-DSA and composite signatures, including the audit log's, before they
    leave the service. It costs a fifth more processor time. SLH-DSA signatures are always
    verified."""
    log_format: LogFormat = "auto"
    """The format of log lines: "text", "json", or "auto" for text on a terminal and JSON
    elsewhere."""

    def __post_init__(self) -> None:
        """Raise ValueError on no or two root key settings, or without a listener for gateways."""
        if (self.root_key_file is None) == (not self.root_keys):
            raise ValueError("expected either root_key_file or root_keys")
        if (self.socket is None) != (self.gateway_uid is None):
            raise ValueError("set both socket and gateway_uid, or neither")
        if self.socket is None and self.link is None:
            raise ValueError("no gateway can connect: set socket and gateway_uid, or [link]")
        if self.witnesses and self.origin is None:
            raise ValueError("witnesses need a name of the log: set origin")
        if len({witness.name for witness in self.witnesses}) < len(self.witnesses):
            raise ValueError("witnesses: two keys have the same name")

    @property
    def root_key_sources(self) -> Mapping[int, RootKeySource]:
        """The sources of all root keys, by id."""
        if self.root_key_file is None:
            return self.root_keys
        return {1: RootKeySource(file=self.root_key_file)}


def read(path: Path) -> Config:
    """Read the settings file and the environment. Raises ConfigError."""
    config = read_settings(path, Config, os.environ, PREFIX)
    library = config.openssl_library
    if library is not None and "/" in library:
        library = str(path.resolve().parent / library)
    return structs.replace(
        config,
        openssl_library=library,
        # The kernel limits a socket's path to 107 bytes, including any "../".
        socket=config.socket and config.socket.resolve(),
        operator_socket=config.operator_socket and config.operator_socket.resolve(),
    )


def root_key_source(table: Mapping[str, object], folder: Path) -> RootKeySource:
    """Return the source of a root key from its settings table. Raises ConfigError.

    Paths are relative to the folder.
    """
    return converted("root key", table, RootKeySource, folder)

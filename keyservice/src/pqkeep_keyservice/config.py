"""The key service's settings: one TOML file, read once into a frozen value.

The file itself holds no secret: root keys and passwords have files of their own.
"""

import os
from collections.abc import Mapping
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
    """Gateways on other hosts, by mutual TLS: the table ``[link]``."""

    listen: NetworkAddress
    """The address to listen on, host:port."""
    certificate: Path
    """This key service's certificate in PEM, of the role spiffe://pqkeep/keyservice."""
    key: Path
    """The certificate's private key in PEM: a secret file."""
    ca: Path
    """The private certificate authority that gateways' certificates must come from, in PEM."""
    require_post_quantum: bool = False
    """Whether gateways without post-quantum key exchange are refused. OpenSSL 3.5 or later has it;
    without it the key service does not start."""


PREFIX = "PQKEEP_KEYSERVICE_"
"""What variables of the environment begin with that replace settings."""

MAX_DESTRUCTION_DAYS = 90

Name = Annotated[str, Meta(min_length=1)]
CredentialName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*$")]
"""The name of a file in $CREDENTIALS_DIRECTORY, where a service manager puts a service's secrets."""


class Pkcs11(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A key in a PKCS#11 token, from which the token derives a root key."""

    library: Path
    """The PKCS#11 library of the token's maker."""
    token: Name
    """The token's label."""
    key: Name
    """The key's label: a generic secret of at least 256 bits that cannot leave the token."""
    pin_file: Path | None = None
    """The user's PIN: a secret file."""
    pin_credential: CredentialName | None = None
    """The user's PIN: a credential of the service manager, in place of pin_file."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the PIN is given in one of the two ways."""
        if (self.pin_file is None) == (self.pin_credential is None):
            raise ValueError("expected either pin_file or pin_credential")


class RootKeySource(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """Where a root key comes from: exactly one of these."""

    file: Path | None = None
    """32 random bytes: a secret file."""
    credential: CredentialName | None = None
    """32 random bytes: a credential of the service manager."""
    pkcs11: Pkcs11 | None = None
    """A key in a PKCS#11 token, which derives the root key and never leaves the token."""
    command: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None
    """A program, by its absolute path, with its arguments. It prints the 32 bytes or their base64."""

    def __post_init__(self) -> None:
        """Raise ValueError unless there is one source."""
        if sum(each is not None for each in structs.astuple(self)) != 1:
            raise ValueError("expected exactly one of file, credential, pkcs11 and command")
        if self.command is not None and not self.command[0].startswith("/"):
            raise ValueError("expected the absolute path of a program first in command")


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of the key service. Paths are relative to the settings file.

    A secret file has mode 0400 or 0600 and belongs to the process's user or root. A file of root's may
    have mode 0440 or 0640 where the process's user is the only one in its group.
    """

    socket: Path | None = None
    """The Unix socket for the gateway, unless all gateways are on other hosts. It gets mode 0660 and
    the group of its folder."""
    gateway_uid: Annotated[int, Meta(ge=1, le=2**32 - 2)] | Literal["same"] | None = None
    """The user id of the gateway, the only one that is served on that socket. It must not be the
    key service's own: a gateway that was taken over could read the root key. "same" is for
    development: one user runs both."""
    operator_socket: Path | None = None
    """The Unix socket for the operator's commands, which serves root and the key service's own user
    only. Without one there is no administration, such as a change of the root key."""
    link: Link | None = None
    """Where gateways of other hosts are served, beside that socket or in place of it."""
    shard: ShardName = DEFAULT_SHARD
    """The name of the shard whose key service this is, as the gateway's settings have it. The
    database keeps it from the first start on, and is refused under another name."""
    database: DatabaseAddress
    """The database of keys and audit records."""
    database_password_file: Path | None = None
    """A PostgreSQL password file as libpq defines it: a secret file."""
    root_key_file: Path | None = None
    """The root key with id 1, 32 random bytes: a secret file."""
    root_keys: dict[Annotated[int, Meta(ge=1, le=255)], RootKeySource] = {}
    """Root keys by id, in place of root_key_file. The one with the highest id seals.

    Each is a table such as [root_keys.2] with exactly one of file, credential, pkcs11 and command.
    """
    transfer_key_file: Path | None = None
    """The key that tenants' keys are sealed under on their way to another shard, 32 random bytes: a
    secret file, the same for the key services of all shards and for nobody else. Without one no
    tenant leaves or arrives."""
    least_destruction_days: Annotated[int, Meta(ge=0, le=MAX_DESTRUCTION_DAYS)] = MIN_ARCHIVE_DAYS
    """How many days a private key is kept, at least, after its destruction was asked for, whatever the
    gateway asks for; each destruction can be cancelled for so long. Fewer than 7 are for development."""
    slh_dsa: Literal["auto", "openssl", "pqcrypto"] = "auto"
    """The implementation of SLH-DSA: "openssl" for the system's OpenSSL >= 3.5, "pqcrypto" for that
    package, or "auto" for OpenSSL where it is there or openssl_library is set, else pqcrypto."""
    openssl_library: str | None = None
    """Another libcrypto than the system's: a library's name, or a path."""
    verify_signatures: bool = False
    """Whether ML-DSA and composite signatures, those of the audit log too, are verified under the
    public key before they leave the service, for a fifth more of the processor. SLH-DSA signatures
    always are."""
    log_format: LogFormat = "auto"
    """The form of log lines: "text", "json", or "auto" for text on a terminal and JSON elsewhere."""

    def __post_init__(self) -> None:
        """Raise ValueError unless root keys are given in one of two ways, and somebody is served."""
        if (self.root_key_file is None) == (not self.root_keys):
            raise ValueError("expected either root_key_file or root_keys")
        if (self.socket is None) != (self.gateway_uid is None):
            raise ValueError("socket and gateway_uid go together")
        if self.socket is None and self.link is None:
            raise ValueError("no gateway is served: expected socket and gateway_uid, or [link]")

    @property
    def root_key_sources(self) -> Mapping[int, RootKeySource]:
        """Where all root keys come from, by id."""
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
        # The kernel limits a socket's path to 107 bytes: "../" would count.
        socket=config.socket and config.socket.resolve(),
        operator_socket=config.operator_socket and config.operator_socket.resolve(),
    )


def root_key_source(table: Mapping[str, object], folder: Path) -> RootKeySource:
    """Return what a root key's table in the settings says. Raises ConfigError.

    Paths are relative to the folder.
    """
    return converted("root key", table, RootKeySource, folder)

"""Reads a whole backup and checks its tags before any of its contents are used."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.root_key_sources.sources import read as read_root_key
from pqkeep_protocol.startup.secret_files import open_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.backup.contents import Manifest, Message, Sealers, read, require_tags
from pqkeep_server.backup.encrypted_file import BackupFileError, Header, Origin, Reader, damaged
from pqkeep_server.backup.recovery_key import PrivateHalf, read_private


@dataclass(frozen=True, slots=True)
class AuthenticBackup:
    """A complete backup that was made with the root key."""

    file: Path
    header: Header
    manifest: Manifest = field(repr=False)
    recovery_key: PrivateHalf = field(repr=False)
    root_keys: Mapping[str, Mapping[int, RootKeySource]]
    """The sources of its root keys, by shard and id."""
    sealers: Sealers = field(repr=False)
    """A sealer with these root keys, by shard."""

    @property
    def origin(self) -> Origin:
        """The shards, number and time of the backup."""
        return self.header.origin

    def messages(self) -> Iterator[Message]:
        """Yield the messages after the manifest. Raises BackupFileError."""
        with open_secret_file(self.file, "backup") as opened:
            messages = _messages(opened, self.header, self.recovery_key, self.sealers)
            next(messages)
            yield from messages


def authenticate(
    file: Path, recovery_key: Path, root_keys: Sequence[RootKeySource]
) -> AuthenticBackup:
    """Read a whole backup and check its tags.

    Raises BackupFileError and RecoveryKeyError. Raises ConfigError for a root key that is missing, or
    for a secret file that other users can read.
    """
    key = read_private(recovery_key)
    try:
        with open_secret_file(file, "backup") as opened:
            reader = Reader(opened, key)
            sources, sealers = _matching(reader.header.origin, root_keys)
            require_tags(reader, sealers)
            opened.seek(0)
            manifest = next(_messages(opened, reader.header, key, sealers))
        if not isinstance(manifest, Manifest):
            raise damaged()
    except BackupFileError as error:
        raise BackupFileError(f"cannot restore {file}: {error}") from None
    return AuthenticBackup(file, reader.header, manifest, key, sources, sealers)


def _messages(
    file: BinaryIO, header: Header, recovery_key: PrivateHalf, sealers: Sealers
) -> Iterator[Message]:
    reader = Reader(file, recovery_key)
    if reader.header != header:  # only the author of this header can encrypt with it
        raise BackupFileError("the file was replaced while it was read")
    yield from read(reader, sealers)


def _matching(
    origin: Origin, sources: Sequence[RootKeySource]
) -> tuple[dict[str, dict[int, RootKeySource]], dict[str, Sealer]]:
    """Return the sources of a backup's root keys, by shard and id, and sealers with these keys."""
    given = [(source, read_root_key(source)) for source in sources]
    sources_of: dict[str, dict[int, RootKeySource]] = {}
    sealers: dict[str, Sealer] = {}
    for shard, part in origin.shards.items():
        found, root_keys = {}, {}
        for key_id, check_value in part.root_keys.items():
            for source, root_key in given:
                if Sealer({key_id: root_key}).matches(key_id, check_value):
                    found[key_id], root_keys[key_id] = source, root_key
            if key_id not in found:
                of_shard = f" of the shard {shard}" if origin.others else ""
                raise ConfigError(
                    f"root key {key_id}{of_shard}, which seals private keys in the backup, is not among"
                    " those given with --root-key: name its file, or the backup is of another"
                    " installation"
                )
        sources_of[shard], sealers[shard] = found, Sealer(root_keys)
    return sources_of, sealers

"""``pqkeep keys``: generate, replace and show keys."""

import json
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pqkeep.algorithms import LEGACY
from pqkeep.cli import choice, documents
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.failures import OTHER, UNREADABLE, Refusal, naming
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmArgument,
    AlgorithmOption,
    Force,
    InputFile,
    KeyringOption,
    KeyVersion,
    To,
    future_time,
    one_of,
)
from pqkeep.cli.public_keys import KeyInFile, read_key
from pqkeep.cli.sources import whole
from pqkeep.models import Key
from pqkeep.new_files import PUBLIC

if TYPE_CHECKING:
    from pqkeep.client import Client
    from pqkeep.key_import import PrivateKey

COLUMNS = {
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "status": "STATUS",
    "created_at": "CREATED",
}
USAGE_COLUMNS = {
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "uses": "USES",
    "last_used_at": "LAST USED",
}


class Form(StrEnum):
    """The form of a public key."""

    PQKEEP = "pqkeep"
    RAW = "raw"
    PEM = "pem"
    DER = "der"
    JWK = "jwk"
    AGE = "age"


LARGEST_IMPORT_KEY = 16 * 1024
"""Bytes. Files of import keys are much smaller."""
LARGEST_PRIVATE_KEY = 64 * 1024
"""Bytes. Files of private keys are much smaller."""
STATUSES = ("active", "retired", "disabled", "archived")

OneVersion = Annotated[
    int, typer.Option("--key-version", "-k", metavar="N", min=1, help="A version of the key.")
]

Legacy = Annotated[bool, typer.Option("--legacy", help="List legacy keys too, which only read.")]

app = typer.Typer(name="keys", help="Generate, replace and show keys.", no_args_is_help=True)


@command(app, "generate")
def generate(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Show the active key if one exists.")
    ] = False,
    keyring: KeyringOption = None,
) -> None:
    """Generate a key of an algorithm that has no active key."""
    with invocation.connect() as client:
        _show(invocation, client.keys.generate(algorithm, keyring=keyring, if_absent=if_absent))


@command(app, "import")
def import_private_key(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    file: InputFile,
    *,
    import_key: Annotated[
        str | None,
        typer.Option(
            "--import-key",
            metavar="FILE",
            help="An import key from the portal. By default, the service makes one.",
            show_default=False,
        ),
    ] = None,
    keyring: KeyringOption = None,
    expect_public_key: Annotated[
        str | None,
        typer.Option(
            "--expect-public-key",
            metavar="FILE",
            help="Import only if this is the public key: PEM, DER, JWK, a certificate or raw bytes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Import a private key as the active key: PKCS#8 in PEM or DER, a JWK, or a seed.

    A legacy key (RSA-OAEP-SHA-256, ECDSA-P-256 …) only reads. To verify, a public key or a certificate
    is enough, and no private key is sent.

    The key is wrapped on this machine, and only the key service can unwrap it. The output shows the
    fingerprint of the public key. The key stays marked as imported, because the file is a copy of it.
    """
    from pqkeep.key_import import (  # noqa: PLC0415 - an extra that other commands do not need
        read_import_key,
        read_private_key,
        wrap,
    )

    if algorithm in choice.SYMMETRIC:
        raise Refusal(
            f"{algorithm} is symmetric: only the service makes its keys",
            f"generate one: pqkeep keys generate {algorithm}",
        )
    data = whole(file, invocation, LARGEST_PRIVATE_KEY, "name a file with a private key")
    expected = None
    if expect_public_key is not None and algorithm in LEGACY:
        expected = whole(expect_public_key, invocation, LARGEST_PRIVATE_KEY, "name a public key")
    with naming(file):
        private_key = read_private_key(data, algorithm, expected_public_key=expected)
    if expect_public_key is not None and expected is None:
        _require_public_key(invocation, expect_public_key, private_key, file)
    issued = None
    if import_key is not None:
        saved = whole(import_key, invocation, LARGEST_IMPORT_KEY, "name what the portal saved")
        with naming(import_key):
            issued = read_import_key(saved)
        if issued.algorithm != algorithm:
            message = f"the import key is for the algorithm {issued.algorithm}"
            raise Refusal(message, "name that algorithm, or get another import key")
        if keyring not in {None, issued.keyring}:
            message = f"the import key is for the keyring {issued.keyring}"
            raise Refusal(message, "leave out --keyring, or get another import key")
    with invocation.connect() as client:
        issued = issued or client.keys.get_import_key(algorithm, keyring=keyring)
        key = client.keys.import_key(issued, wrap(issued, private_key))
    if key.public_key != private_key.public_key:
        raise Refusal(
            "the service returned a public key that does not belong to the private key",
            "do not use the key, and tell the operator",
            OTHER,
        )
    facts = _facts(invocation, key) | {"fingerprint": private_key.fingerprint}
    show_facts(invocation, facts)


@command(app, "rotate")
def rotate(
    invocation: Invocation, algorithm: AlgorithmArgument, *, keyring: KeyringOption = None
) -> None:
    """Replace the active key with a new one.

    The old key is retired: it can still decrypt and verify.
    """
    with invocation.connect() as client:
        with choice.generating(algorithm, keyring=keyring):
            rotation = client.keys.rotate(algorithm, keyring=keyring)
        if invocation.is_json:
            show_facts(invocation, rotation)
        else:
            made = rotation.key_version
            key = client.keys.get(algorithm, key_version=made, keyring=keyring)
            _show(invocation, key)
    invocation.note(f"version {rotation.old_key_version} is retired")


@command(app, "retire")
def retire(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: OneVersion,
    keyring: KeyringOption = None,
) -> None:
    """Retire a key: it can no longer encrypt or sign, but still decrypt and verify."""
    with invocation.connect() as client:
        key = client.keys.retire(algorithm, key_version=key_version, keyring=keyring)
        _show(invocation, key)


@command(app, "disable")
def disable(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: OneVersion,
    keyring: KeyringOption = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME",
            parser=future_time,
            help="When it is enabled again: a span such as 12h or 7d, or a time such as 2026-11-20T17:31:10Z.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Refuse every use of a key until it is enabled again, or until a given time."""
    with invocation.connect() as client:
        key = client.keys.disable(algorithm, key_version=key_version, keyring=keyring, until=until)
        _show(invocation, key)


@command(app, "enable")
def enable(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: OneVersion,
    keyring: KeyringOption = None,
) -> None:
    """Restore the earlier status of a disabled key."""
    with invocation.connect() as client:
        key = client.keys.enable(algorithm, key_version=key_version, keyring=keyring)
        _show(invocation, key)


@command(app, "archive")
def archive(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: OneVersion,
    keyring: KeyringOption = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the destruction of the key.")
    ] = False,
) -> None:
    """Show when a private key will be destroyed, or cancel that. Archive keys in the portal."""
    with invocation.connect() as client:
        change = client.keys.cancel_archive if cancel else client.keys.get
        key = change(algorithm, key_version=key_version, keyring=keyring)
        _show(invocation, key)
    if key.archive_at is None:
        invocation.note(
            "the key is not scheduled for archiving; owners and admins archive in the portal"
        )


@command(app, "list")
def list_keys(
    invocation: Invocation,
    *,
    algorithm: AlgorithmOption = None,
    status: Annotated[
        str | None,
        one_of(
            STATUSES,
            metavar="STATUS",
            help="List only keys of this status: active, retired, disabled or archived.",
        ),
    ] = None,
    keyring: KeyringOption = None,
    all_keyrings: Annotated[
        bool, typer.Option("--all-keyrings", help="List the keys of all keyrings.")
    ] = False,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="List only keys that are scheduled to be destroyed.")
    ] = False,
    legacy: Legacy = False,
) -> None:
    """List the keys of one keyring, or of all keyrings."""
    if all_keyrings and keyring is not None:
        raise Refusal("--all-keyrings and --keyring cannot be combined", "leave one of them out")
    with invocation.connect() as client:
        keys = client.keys.list(
            algorithm=algorithm,
            status=status,
            keyring=keyring,
            all_keyrings=all_keyrings,
            scheduled=scheduled,
            legacy=legacy,
        )
    show_rows(invocation, "keys", keys, _columns(*keys))


@command(app, "usage")
def usage(
    invocation: Invocation,
    *,
    algorithm: AlgorithmOption = None,
    keyring: KeyringOption = None,
    legacy: Legacy = False,
) -> None:
    """Show how often and when each key was used. Unused keys are left out."""
    with invocation.connect() as client:
        used = client.keys.list_usage(algorithm=algorithm, keyring=keyring, legacy=legacy)
    show_rows(invocation, "usage", used, USAGE_COLUMNS)


@command(app, "show")
def show(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
) -> None:
    """Show a key and its usage, by default the active key."""
    with invocation.connect() as client:
        key = choice.key(client, algorithm, key_version, keyring)
        used = client.keys.usage(algorithm, key_version=key.key_version, keyring=keyring)
    facts = asdict(key) | {
        "uses": used.uses,
        "last_used_at": used.last_used_at,
        "fingerprint": key.fingerprint or sha256(key.public_key).hexdigest(),
    }
    if not invocation.is_json:
        del facts["public_key"]
    show_facts(invocation, facts)


@command(app, "public-key")
def public_key(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    to: To = None,
    force: Force = False,
    form: Annotated[
        Form,
        typer.Option("--format", help="The form of the key; raw is the key's bytes."),
    ] = Form.PQKEEP,
) -> None:
    """Write a public key, by default the active key's.

    Use the format pqkeep for pqkeep encrypt --public-key, and PEM, DER or JWK for other programs.
    The format age is a recipient of age, for X-Wing only.
    """
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as file,
        invocation.connect() as client,
    ):
        key = choice.key(client, algorithm, key_version, keyring)
        if not key.public_key:
            raise Refusal(
                f"{key.algorithm} is symmetric: its keys have no public half",
                f"use the key in the service; its fingerprint: pqkeep keys show {key.algorithm}",
            )
        file.write(_written(client, key, form, keyring))


@command(app, "jwks")
def jwks(
    invocation: Invocation, *, keyring: KeyringOption = None, to: To = None, force: Force = False
) -> None:
    """Write the signature keys as a JWK Set, for programs that verify JWS."""
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as file,
        invocation.connect() as client,
    ):
        file.write(_json({"keys": client.keys.jwks(keyring=keyring)}))


def _written(client: "Client", key: Key, form: Form, keyring: str | None) -> bytes:
    if form is Form.PQKEEP:
        return documents.written(documents.public_key(key), keyring)
    made = client.keys.public_key(
        key.algorithm, key_version=key.key_version, keyring=keyring, format=form.value
    ).public_key
    match made:
        case bytes():
            return made
        case str():
            return made.rstrip("\n").encode("ascii") + b"\n"
        case _:
            return _json(made)


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _require_public_key(
    invocation: Invocation, file: str, private_key: "PrivateKey", private_file: str
) -> None:
    """Raise Refusal unless a file has the public key of a private key."""
    found = read_key(invocation, Path(file), private_key.algorithm)
    algorithms = (found.algorithm,) if isinstance(found, KeyInFile) else found.algorithms
    if private_key.algorithm not in algorithms:
        raise Refusal(
            f"{file} is a public key of {algorithms[0]}, but {private_file} is a private key of "
            f"{private_key.algorithm}",
            "name the public key that belongs to the private key",
            UNREADABLE,
        )
    if found.public_key != private_key.public_key:
        raise Refusal(
            f"nothing was sent: the public key of {private_file} has the fingerprint "
            f"{private_key.fingerprint}, the one in {file} has {sha256(found.public_key).hexdigest()}",
            "name the private key that belongs to the public key",
            OTHER,
        )


def _show(invocation: Invocation, key: Key) -> None:
    show_facts(invocation, _facts(invocation, key))


def _facts(invocation: Invocation, key: Key) -> dict[str, Any]:
    if invocation.is_json:
        return asdict(key)
    facts = {name: getattr(key, name) for name in _columns(key)}
    return facts if key.fingerprint is None else {**facts, "fingerprint": key.fingerprint}


def _columns(*keys: Key) -> dict[str, str]:
    """Return the columns of a table of keys. Some appear only if a key needs them."""
    columns = dict(COLUMNS)
    if any(key.keyring is not None for key in keys):
        columns = {"keyring": "KEYRING", **columns}
    if any(key.imported for key in keys):
        columns["imported"] = "IMPORTED"
    if any(key.legacy for key in keys):
        columns["legacy"] = "LEGACY"
    if any(key.archive_at is not None for key in keys):
        columns["archive_at"] = "TO BE ARCHIVED"
    if any(key.disabled_until is not None for key in keys):
        columns["disabled_until"] = "DISABLED UNTIL"
    return columns

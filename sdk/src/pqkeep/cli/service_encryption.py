"""Encryption of files by the service, which sees them: several files are items of one request."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from pqkeep.cli import choice, documents
from pqkeep.cli.destinations import Output
from pqkeep.cli.failures import Refusal
from pqkeep.cli.several import Asking, Several, size_of, together
from pqkeep.cli.sources import source
from pqkeep.models import Ciphertext, Envelope

LARGEST = 1024 * 1024
"""Bytes that the service encrypts at once."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the service is asked for."""

    named: choice.Named
    associated_data: bytes | None
    is_envelope: bool


def encrypt(tally: Several, wanted: Wanted, output: Output) -> None:
    """Have files encrypted, and write what the service made of them."""
    with tally.invocation.connect() as client:
        named = wanted.named
        chosen = choice.kem_algorithm(client, named.algorithm)
        kem = client.kem
        asking: Asking[Any] = Asking(
            kem.encrypt_to_envelope if wanted.is_envelope else kem.encrypt,
            kem.encrypt_to_envelope_many if wanted.is_envelope else kem.encrypt_many,
            named._asdict() | {"associated_data": wanted.associated_data},
            partial(choice.generating, chosen, named.key_version, keyring=named.keyring),
        )

        def prepare(file: str) -> dict[str, Any]:
            output.require_free(file)
            return {"plaintext": _plaintext(tally, file)}

        def finish(file: str, made: Ciphertext | Envelope) -> None:
            _write(tally, file, made, wanted, output)

        for group in together(tally.files, size_of):
            asking.ask(tally, group, prepare, finish)


def _plaintext(tally: Several, file: str) -> bytes:
    with source(file, tally.invocation) as opened:
        plaintext = opened.read(LARGEST + 1)
    if len(plaintext) > LARGEST:
        raise Refusal(
            f"the service encrypts at most {LARGEST} bytes",
            "leave out --server-side and --envelope",
        )
    return plaintext


def _write(
    tally: Several, file: str, made: Ciphertext | Envelope, wanted: Wanted, output: Output
) -> None:
    if isinstance(made, Envelope):
        data = made.envelope.encode() + b"\n"
    else:
        data = documents.written(made, wanted.named.keyring)
    output.write(file, data)
    tally.written(
        output.of(file),
        f"encrypted to {made.algorithm} version {made.key_version}",
        algorithm=made.algorithm,
        key_version=made.key_version,
    )

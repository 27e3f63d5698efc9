"""Signatures with a context. A file of any size is hashed here to a mu, and the service signs it.

They are ordinary ML-DSA signatures over the file, which every FIPS 204 verifier accepts.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pqkeep import verification
from pqkeep.algorithms import Algorithm
from pqkeep.cli import choice, documents
from pqkeep.cli.configuration import rules
from pqkeep.cli.destinations import Output
from pqkeep.cli.failures import NOT_VERIFIED, Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.public_keys import KeyInFile, read_key, require_key_of
from pqkeep.cli.several import Asking, Several, together
from pqkeep.cli.sources import source
from pqkeep.models import Signature
from pqkeep.mu import LONGEST_CONTEXT, compute_mu

if TYPE_CHECKING:
    from pqkeep.client import Client

ALGORITHMS = {Algorithm.ML_DSA_65.value, Algorithm.ML_DSA_87.value}
PIECE = 1024 * 1024


def sign(
    tally: Several, client: "Client", context: str, named: choice.Named, output: Output
) -> None:
    """Write signatures over files and a context."""
    _require_short(context)
    chosen = choice.signature_algorithm(client, named.algorithm)
    if chosen not in ALGORITHMS:
        those = " and ".join(sorted(ALGORITHMS))
        raise Refusal(f"{chosen} does not support --context", f"name one of {those}")
    with choice.generating(chosen, named.key_version, keyring=named.keyring):
        key = choice.key(client, chosen, named.key_version, named.keyring)
    asking: Asking[Signature] = Asking(
        client.signatures.sign_mu,
        client.signatures.sign_mu_many,
        {"algorithm": chosen, "keyring": named.keyring, "key_version": key.key_version},
        nullcontext,
    )

    def prepare(file: str) -> dict[str, Any]:
        output.require_free(file)
        return {"mu": _mu(tally.invocation, file, key.public_key, context)}

    def finish(file: str, made: Signature) -> None:
        signed = documents.ContextSignature(
            signature=made.signature,
            key_version=made.key_version,
            algorithm=made.algorithm,
            context=context,
        )
        output.write(file, documents.written(signed, named.keyring))
        tally.written(
            output.of(file),
            f"signed with {made.algorithm} version {made.key_version}",
            algorithm=made.algorithm,
            key_version=made.key_version,
            context=context,
        )

    for group in together(tally.files, lambda _: 0):
        asking.ask(tally, group, prepare, finish)


class Keys:
    """The public keys for computing a mu. Each one is requested once."""

    def __init__(self, client: "Client") -> None:
        """Send no request yet."""
        self._get = cache(client.keys.get)

    def verification(
        self,
        invocation: Invocation,
        file: str,
        said: documents.ContextSignature,
        keyring: str | None,
        context: str,
    ) -> dict[str, Any]:
        """Return the arguments of signatures.verify_mu for a file. Raises Refusal, PqkeepError."""
        _require_short(context)
        if said.algorithm not in ALGORITHMS:
            raise Refusal(
                f"{said.algorithm} does not support a context", "ask the signer for a new signature"
            )
        key = self._get(said.algorithm, key_version=said.key_version, keyring=keyring)
        return {
            "mu": _mu(invocation, file, key.public_key, context),
            "signature": said.signature,
            "key_version": said.key_version,
            "algorithm": said.algorithm,
            "keyring": keyring,
        }


def is_valid(
    invocation: Invocation,
    file: str,
    said: documents.ContextSignature,
    keyring: str | None,
    context: str | None,
    public_key: Path | None,
) -> bool:
    """Return True if a signature is valid for a file and the expected context."""
    if context is None:
        raise Refusal(
            "the signature is bound to a context",
            "name the expected context: --context TEXT",
            NOT_VERIFIED,
        )
    _require_short(context)
    if said.algorithm not in ALGORITHMS:
        return False
    if public_key is None:
        with invocation.connect() as client:
            asked = Keys(client).verification(invocation, file, said, keyring, context)
            return client.signatures.verify_mu(**asked)
    rules(invocation).signature(said.algorithm)
    found = read_key(invocation, public_key, said.algorithm)
    require_key_of(found, said.algorithm, public_key)
    if isinstance(found, KeyInFile) and not found.is_named(
        said.algorithm, said.key_version, keyring
    ):
        return False
    return verification.verify_mu(
        _mu(invocation, file, found.public_key, context),
        said.signature,
        public_key=found.public_key,
        algorithm=said.algorithm,
    )


def _mu(invocation: Invocation, file: str, public_key: bytes, context: str) -> bytes:
    return compute_mu(public_key, _pieces(invocation, file), context=context.encode())


def _pieces(invocation: Invocation, file: str) -> Iterator[bytes]:
    with source(file, invocation) as opened:
        while piece := opened.read(PIECE):
            yield piece


def _require_short(context: str) -> None:
    if len(context.encode()) > LONGEST_CONTEXT:
        raise Refusal(f"--context is longer than {LONGEST_CONTEXT} bytes", "use a shorter context")

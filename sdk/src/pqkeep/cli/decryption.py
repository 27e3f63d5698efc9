"""Decryption of files, whoever encrypted them: which format a file has is seen from its beginning.

What the service does for several files, decrypting or recovering a shared secret, is one request.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pqkeep import inputs
from pqkeep.cli import documents
from pqkeep.cli.destinations import Writer
from pqkeep.cli.failures import Refusal, naming
from pqkeep.cli.recovery import (
    Arguments,
    Encapsulated,
    Form,
    Recovery,
    ask,
    binary,
    first_recipient,
    form_of,
)
from pqkeep.cli.several import OF_AN_ITEM, succeeded
from pqkeep.cli.sources import Source, source
from pqkeep.errors import PqkeepError
from pqkeep.models import Ciphertext

if TYPE_CHECKING:
    from pqkeep.cli.invocation import Invocation
    from pqkeep.client import Client


class Decryption:
    """Decrypts files, with what was asked of the service for several of them before."""

    def __init__(
        self, invocation: "Invocation", client: "Client", associated_data: bytes | None
    ) -> None:
        """Ask nothing yet."""
        self._invocation = invocation
        self._client = client
        self._associated_data = associated_data
        self._plaintexts: dict[str, bytes | PqkeepError] = {}
        self._recovery = Recovery(client)

    def ask(self, files: Sequence[str]) -> None:
        """Ask the service for what these files need of it.

        What cannot be read, or is refused as a whole, is left to the file's own decryption.
        """
        ciphertexts: dict[str, Arguments] = {}
        envelopes: dict[str, Arguments] = {}
        encapsulated: list[Encapsulated] = []
        for file in files:
            with suppress(*OF_AN_ITEM), source(file, self._invocation) as opened:
                form = form_of(opened, file)
                if form is Form.ENVELOPE:
                    envelopes[file] = self._envelope(opened, file)
                elif form is Form.DOCUMENT:
                    ciphertexts[file] = self._ciphertext(opened, file)
                else:
                    encapsulated.append(first_recipient(opened, form))
        kem = self._client.kem
        ask(kem.decrypt_many, ciphertexts, self._plaintexts)
        ask(kem.decrypt_envelope_many, envelopes, self._plaintexts)
        self._recovery.ask(encapsulated)

    def write(self, file: str, opened: Source, target: Writer) -> None:
        """Decrypt a file. Raises PqkeepError and Refusal."""
        kem = self._client.kem
        if file in self._plaintexts:
            target.write(succeeded(self._plaintexts[file]))
            return
        form = form_of(opened, file)
        if form is Form.ENVELOPE:
            target.write(kem.decrypt_envelope(**self._envelope(opened, file)))
        elif form is Form.DOCUMENT:
            target.write(kem.decrypt(**self._ciphertext(opened, file)))
        elif self._associated_data is not None:
            raise Refusal(
                f"{file} was encrypted here, and is bound to nothing",
                "leave out --associated-data",
            )
        else:
            from pqkeep.local import decrypt_stream  # noqa: PLC0415 - it loads cryptography

            with naming(file):
                source_file = binary(opened, form)
                decrypt_stream(source_file, target, decapsulate=self._recovery.decapsulate)

    def _envelope(self, opened: Source, file: str) -> Arguments:
        with naming(file):
            text = inputs.read_envelope(opened.read(documents.LARGEST))
        return {"envelope": text, "associated_data": self._associated_data}

    def _ciphertext(self, opened: Source, file: str) -> Arguments:
        sealed, keyring = documents.read(opened.read(documents.LARGEST), Ciphertext, file)
        return {
            "ciphertext": sealed.ciphertext,
            "key_version": sealed.key_version,
            "algorithm": sealed.algorithm,
            "keyring": keyring,
            "associated_data": self._associated_data,
        }

"""Decryption of files, whoever encrypted them: which format a file has is seen from its beginning.

What the service does for several files, decrypting or recovering a shared secret, is one request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pqkeep.cli import documents
from pqkeep.cli.armor import ArmorReader
from pqkeep.cli.destinations import Writer
from pqkeep.cli.failures import Refusal
from pqkeep.cli.several import OF_AN_ITEM, succeeded
from pqkeep.cli.sources import Source, source
from pqkeep.errors import PqkeepError
from pqkeep.models import Ciphertext

if TYPE_CHECKING:
    from pqkeep.cli.invocation import Invocation
    from pqkeep.client import Client

ENVELOPE = b"pqk1."
"""How the text of an envelope begins."""
Arguments = dict[str, Any]
"""Of a method of the client, by name."""


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
        self._secrets: dict[bytes, bytes | PqkeepError] = {}

    def ask(self, files: Sequence[str]) -> None:
        """Ask the service for what these files need of it.

        What cannot be read, or is refused as a whole, is left to the file's own decryption.
        """
        ciphertexts: dict[str, Arguments] = {}
        envelopes: dict[str, Arguments] = {}
        headers: dict[bytes, Arguments] = {}
        for file in files:
            with suppress(*OF_AN_ITEM), source(file, self._invocation) as opened:
                if _is_envelope(opened):
                    envelopes[file] = self._envelope(opened)
                elif opened.first() == b"{":
                    ciphertexts[file] = self._ciphertext(opened, file)
                else:
                    own = _first_recipient(opened)
                    headers[own["kem_ciphertext"]] = own
        kem = self._client.kem
        _ask(kem.decrypt_many, ciphertexts, self._plaintexts)
        _ask(kem.decrypt_envelope_many, envelopes, self._plaintexts)
        _ask(kem.decapsulate_many, headers, self._secrets)

    def write(self, file: str, opened: Source, target: Writer) -> None:
        """Decrypt a file. Raises PqkeepError and Refusal."""
        kem = self._client.kem
        if file in self._plaintexts:
            target.write(succeeded(self._plaintexts[file]))
        elif _is_envelope(opened):
            target.write(kem.decrypt_envelope(**self._envelope(opened)))
        elif opened.first() == b"{":
            target.write(kem.decrypt(**self._ciphertext(opened, file)))
        elif self._associated_data is not None:
            raise Refusal(
                f"{file} was encrypted here, and is bound to nothing",
                "leave out --associated-data",
            )
        else:
            from pqkeep.local import decrypt_stream  # noqa: PLC0415 - it loads cryptography

            decrypt_stream(_binary(opened), target, decapsulate=self._decapsulate)

    def _decapsulate(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str
    ) -> bytes:
        asked = self._secrets.get(kem_ciphertext)
        if asked is not None:
            return succeeded(asked)
        return self._client.local.decapsulate(
            kem_ciphertext, key_version=key_version, algorithm=algorithm, keyring=keyring
        )

    def _envelope(self, opened: Source) -> Arguments:
        text = opened.read(documents.LARGEST).decode("ascii", "replace").strip()
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


def _ask(
    many: Callable[..., Iterator[bytes | PqkeepError]],
    items: Mapping[Any, Arguments],
    found: dict[Any, bytes | PqkeepError],
) -> None:
    with suppress(PqkeepError):
        found.update(zip(items, many(items.values()), strict=False))


def _is_envelope(opened: Source) -> bool:
    return opened.first() == b"p" and opened.first(len(ENVELOPE)) == ENVELOPE


def _binary(opened: Source) -> Source | ArmorReader:
    return ArmorReader(opened) if opened.first() == b"-" else opened


def _first_recipient(opened: Source) -> Arguments:
    """Return what recovers the shared secret of a file's first recipient, who is its writer."""
    from pqkeep.local import read_header  # noqa: PLC0415 - it loads cryptography

    first = read_header(_binary(opened)).recipients[0]
    is_default = first.keyring == documents.DEFAULT_KEYRING
    return {
        "kem_ciphertext": first.kem_ciphertext,
        "key_version": first.key_version,
        "algorithm": first.algorithm,
        "keyring": None if is_default else first.keyring,
    }

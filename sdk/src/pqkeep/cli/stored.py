"""Ciphertexts in files, columns and lines: their form and key, from the header alone.

    stored = recognised(data, versions)

``None`` means data of other programs. No plaintext is read, and no request is sent, except for the
versions of Transit texts, which name no key.
"""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from pqkeep import inputs
from pqkeep.algorithms import Algorithm
from pqkeep.cli import documents
from pqkeep.cli.armor import BEGIN, ArmorReader
from pqkeep.cli.failures import Refusal
from pqkeep.errors import DecryptionError, UnreadableInputError
from pqkeep.models import Ciphertext, ReEncrypted, WrappedKey

if TYPE_CHECKING:
    from pqkeep.local import Header, Reader

LARGEST = documents.LARGEST
"""The most bytes of a ciphertext, except for local data."""
_TRANSIT = re.compile(rb"vault:v([1-9][0-9]{0,8}):([A-Za-z0-9+/=]+)")
_INSIDE = re.compile(rb"pqk1\.[A-Za-z0-9_-]{16}|vault:v[1-9][0-9]{0,8}:[A-Za-z0-9+/]{16}")
_ENVELOPE = b"pqk1."
_LOCAL_BASE64 = base64.b64encode(inputs.LOCAL[:6])
"""The beginning of local data in base64."""
_OTHER_TEXT = UnreadableInputError(
    "other text with ciphertexts of pqkeep inside", "list the ciphertexts, one a line: campaign … -"
)


class Form(StrEnum):
    """The form of a ciphertext."""

    ENVELOPE = "envelope"
    CIPHERTEXT = "ciphertext"
    WRAPPED_KEY = "wrapped-key"
    SHARED_SECRET = "kem-ciphertext"  # noqa: S105 - the name of a form
    TRANSIT = "transit"
    LOCAL = "local"
    LOCAL_TEXT = "local-text"
    LOCAL_BASE64 = "local-base64"
    WITH_COLUMNS = "with-columns"


LOCAL_FORMS = frozenset({Form.LOCAL, Form.LOCAL_TEXT, Form.LOCAL_BASE64})


class StoredKey(NamedTuple):
    """A key version, by the API's names."""

    keyring: str
    algorithm: str
    key_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A ciphertext with its form, the keys that open it, and the function that moves it."""

    form: Form
    keys: tuple[StoredKey, ...]
    """The recipients of local data; otherwise one."""
    request: dict[str, Any] = field(repr=False, default_factory=dict)
    """The arguments of ``client.kem.re_encrypt``."""
    written: Callable[[ReEncrypted], bytes] = field(repr=False, default=lambda _: b"")
    """Returns the new ciphertext in the same form. Raises UnreadableInputError if it is no ciphertext."""
    header: "Header | None" = field(repr=False, default=None)
    """The header of local data. None for other ciphertexts."""


KeyOfVersion = Callable[[int], StoredKey]
"""Returns the key of a Transit text, which names only a version. Raises Refusal."""


def recognised(data: bytes, of_version: KeyOfVersion) -> Stored | None:
    """Return the ciphertext in data, or None for other data.

    Raises UnreadableInputError for a damaged ciphertext, and for other text with ciphertexts inside.
    """
    if data.startswith(inputs.LOCAL):
        return local(BytesIO(data), Form.LOCAL)
    if BEGIN in data:
        return local(ArmorReader(BytesIO(data)), Form.LOCAL_TEXT)
    text = data.strip()
    around = data.partition(text) if text else (b"", b"", b"")
    stored = None
    if text.startswith(_ENVELOPE):
        stored = _envelope(text)
    elif match := _TRANSIT.fullmatch(text):
        stored = _transit(match, of_version)
    elif text.startswith(b"{"):
        stored = _document(text)
    elif text.startswith(_LOCAL_BASE64):
        stored = _local_base64(text)
    if stored is None and _INSIDE.search(data):
        raise _OTHER_TEXT
    if stored is None or not (around[0] or around[2]):
        return stored
    bare = stored.written
    return Stored(
        form=stored.form,
        keys=stored.keys,
        request=stored.request,
        written=lambda new: around[0] + bare(new).strip() + around[2],
        header=stored.header,
    )


def local(reader: "Reader", form: Form) -> Stored:
    """Return local data by its header. Raises UnreadableInputError."""
    from pqkeep.local import read_header  # noqa: PLC0415 - it loads cryptography

    try:
        header = read_header(reader)
    except DecryptionError as error:
        raise UnreadableInputError(
            f"local data of pqkeep: {error.message}", "get the original file again"
        ) from None
    keys = tuple(
        StoredKey(recipient.keyring, recipient.algorithm, recipient.key_version)
        for recipient in header.recipients
    )
    return Stored(form=form, keys=keys, header=header)


def with_columns(value: bytes, key: StoredKey, *, is_wrapped: bool) -> Stored:
    """Return a ciphertext or wrapped key without a header, as bytes or base64.

    Raises UnreadableInputError for too few bytes.
    """
    data, is_base64 = value, False
    if value.isascii():
        try:
            data, is_base64 = base64.b64decode(value, validate=True), True
        except ValueError:
            data = value
    inputs.require_sealed(key.algorithm, data, least=documents.SMALLEST_KEY if is_wrapped else 0)

    def written(new: ReEncrypted) -> bytes:
        made = _wrapped_key(new) if is_wrapped else _ciphertext(new)
        return base64.b64encode(made) if is_base64 else made

    name = "wrapped_key" if is_wrapped else "ciphertext"
    return Stored(
        form=Form.WITH_COLUMNS,
        keys=(key,),
        request={name: data, **_named(key)},
        written=written,
    )


def _ciphertext(new: ReEncrypted) -> bytes:
    made = new.ciphertext or b""
    inputs.require_sealed(new.algorithm, made)
    return made


def _wrapped_key(new: ReEncrypted) -> bytes:
    made = new.wrapped_key or b""
    inputs.require_sealed(new.algorithm, made, least=documents.SMALLEST_KEY)
    return made


def _new_envelope(new: ReEncrypted) -> bytes:
    text = (new.envelope or "").encode()
    if inputs.read_envelope_key(text) != (new.keyring, new.algorithm, new.key_version):
        raise UnreadableInputError("an envelope of another key", "tell the operator of the service")
    return text


def _named(key: StoredKey) -> dict[str, Any]:
    return key._asdict()


def _envelope(text: bytes) -> Stored:
    envelope = b"".join(text.split()).decode("ascii", "replace")
    return Stored(
        form=Form.ENVELOPE,
        keys=(StoredKey(*inputs.read_envelope_key(text)),),
        request={"envelope": envelope},
        written=_new_envelope,
    )


def _transit(match: re.Match[bytes], of_version: KeyOfVersion) -> Stored:
    key = of_version(int(match[1]))
    try:
        ciphertext = base64.b64decode(match[2], validate=True)
    except ValueError:
        raise UnreadableInputError(
            "a Transit ciphertext that is not base64", "get the original text again"
        ) from None

    def written(new: ReEncrypted) -> bytes:
        return b"vault:v%d:%s" % (new.key_version, base64.b64encode(_ciphertext(new)))

    return Stored(
        form=Form.TRANSIT,
        keys=(key,),
        request={"ciphertext": ciphertext, **_named(key)},
        written=written,
    )


def _local_base64(text: bytes) -> Stored:
    try:
        data = base64.b64decode(b"".join(text.split()), validate=True)
    except ValueError:
        raise UnreadableInputError(
            "local data of pqkeep in base64 that is damaged", "get the original text again"
        ) from None
    return local(BytesIO(data), Form.LOCAL_BASE64)


def _document(text: bytes) -> Stored | None:
    """Return the ciphertext in a JSON document, or None for another JSON object."""
    kind = inputs.format_of(text)
    form = _DOCUMENTS.get(kind or "")
    if form is None:
        return None
    name, of = form
    try:
        document, keyring = documents.read(text, of, "it")
    except Refusal as refusal:
        problem = str(refusal).removeprefix("it is ")
        raise UnreadableInputError(problem, refusal.next_step) from None
    key = StoredKey(
        keyring or documents.DEFAULT_KEYRING,
        inputs.canonical(document.algorithm),
        document.key_version,
    )
    if name is Form.SHARED_SECRET:
        return Stored(form=name, keys=(key,))
    field_name = "ciphertext" if name is Form.CIPHERTEXT else "wrapped_key"

    def written(new: ReEncrypted) -> bytes:
        values: dict[str, Any] = {"key_version": new.key_version, "algorithm": new.algorithm}
        if name is Form.CIPHERTEXT:
            made: Any = Ciphertext(ciphertext=_ciphertext(new), **values)
        else:
            is_cipher = new.algorithm == Algorithm.XAES_256_GCM
            method = Algorithm.XAES_256_GCM.value if is_cipher else "KEM-DEM"
            made = WrappedKey(wrapped_key=_wrapped_key(new), wrapping_method=method, **values)
        return documents.written(made, new.keyring).strip()

    return Stored(
        form=name,
        keys=(key,),
        request={field_name: getattr(document, field_name), **_named(key)},
        written=written,
    )


_DOCUMENTS: dict[str, tuple[Form, Any]] = {
    documents.FORMATS[Ciphertext]: (Form.CIPHERTEXT, Ciphertext),
    documents.FORMATS[WrappedKey]: (Form.WRAPPED_KEY, WrappedKey),
    documents.FORMATS[documents.KemCiphertext]: (Form.SHARED_SECRET, documents.KemCiphertext),
}

"""Recognises the form of a key, a signature or an envelope.

    for seen in see(data): ...

Supported forms become values. Other forms get a description for messages.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from pqkeep import bech32
from pqkeep.algorithms import (
    BY_IDENTIFIER,
    BY_JWK,
    KEM_JWK,
    PARAMETERS,
    Algorithm,
    named,
    of_length,
    title,
)
from pqkeep.inputs import _der
from pqkeep.inputs._text import (
    Block,
    TextError,
    as_text,
    base64_bytes,
    begins_block,
    blocks,
    has_markers,
    hexadecimal_bytes,
    json_value,
)

ENVELOPE = "pqk1."
"""The beginning of an envelope's text."""
LOCAL = b"pqkeep\x00"
"""The beginning of local encrypted data."""
ARMOR = "PQKEEP ENCRYPTED DATA"
"""The label of local encrypted data in text form."""
_MOST_SHOWN = 5
"""The most parts of a file that a message names."""
_MOST_LAYERS = 3
"""The most layers of base64, such as base64 of PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key."""

    public_key: bytes = field(repr=False)
    algorithms: tuple[str, ...]
    """The possible algorithms: one, unless only the bytes of a key are known."""
    what: str
    kid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateKeyInfo:
    """A private key in a file."""

    algorithm: str
    content: bytes = field(repr=False)
    """The private key, in any form."""
    public_keys: tuple[bytes, ...] = field(repr=False, default=())
    """The public keys in the same file."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Jws:
    """A JSON Web Signature (RFC 7515)."""

    header: Mapping[str, object]
    protected: str
    """The signed header, in base64url."""
    payload: str
    """The signed payload, in base64url. Empty if it is detached."""
    content: bytes = field(repr=False)
    """The payload."""
    signature: bytes = field(repr=False)
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A JSON object of pqkeep with its format."""

    format: str
    values: Mapping[str, object] = field(repr=False)
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The text of an envelope."""

    text: str = field(repr=False)
    what: str = "an envelope of pqkeep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Bytes of unknown form."""

    data: bytes = field(repr=False)
    what: str
    problem: str | None = None
    """The reason why bytes that begin like DER are not DER. None for other bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Input other than a supported key, signature or envelope."""

    what: str
    next_step: str | None = None
    """The command that converts it to a supported form."""
    makes: str | None = None
    """The result of the command, such as a public key."""
    key: bytes = field(repr=False, default=b"")
    """The DER of a key or signature of another algorithm, such as RSA.

    Empty for all other input.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """Input of a known form that is damaged."""

    what: str
    next_step: str | None = None


Seen = PublicKey | PrivateKeyInfo | Jws | Document | Envelope | Bytes | Other | Damaged

_CERTIFICATE_LABELS = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
_PRINTED = re.compile(r"(?:[A-Za-z0-9-]+ )?(?:Private|Public)-Key:")
_BINARY: Sequence[tuple[bytes, str]] = (
    (LOCAL, "data that pqkeep encrypted locally"),
    (b"openssh-key-v1\x00", "an OpenSSH private key"),
    (b"SSHSIG", "a signature of OpenSSH"),
    (b"\x00\x00\x00\x07ssh-", "an OpenSSH public key"),
    (b"\x00\x00\x00\x0bssh-", "an OpenSSH public key"),
    (b"\x00\x00\x00\x13ecdsa-", "an OpenSSH public key"),
    (b"\xfe\xed\xfe\xed", "a Java key store"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b\x08", "data that gzip compressed"),
    (b"%PDF-", "a PDF document"),
    (b"\x89PNG\r\n", "a PNG picture"),
    (b"\x7fELF", "a program"),
)
_TEXTS: Sequence[tuple[str, str]] = (
    ("ssh-", "an OpenSSH public key"),
    ("ecdsa-sha2-", "an OpenSSH public key"),
    ("sk-ssh-", "an OpenSSH public key"),
    ("sk-ecdsa-", "an OpenSSH public key"),
    ("PuTTY-User-Key-File", "a PuTTY private key"),
    ("age1", "a public key of age"),
    ("AGE-SECRET-KEY-", "a private key of age"),
    ("AGE-PLUGIN-", "a private key of age"),
    ("age-encryption.org/", "data that age encrypted"),
    ("untrusted comment:", "a key or a signature of minisign or signify"),
    ("data:", "a data URL"),
    ("version https://git-lfs", "a pointer of Git LFS, and not the file that it stands for"),
    ("<", "HTML or XML"),
)
_PERCENT_ENCODED = re.compile(r"(?=.*%[0-9A-Fa-f]{2})[A-Za-z0-9%+/=._~-]+\s*", re.DOTALL)
_AGE_PUBLIC = "age1pq1"
_AGE_PRIVATE = "age-secret-key-pq-1"
_OBJECTS: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"import_key_id", "suite"}), "an import key of pqkeep"),
    (frozenset({"ciphertext", "protected"}), "a JSON Web Encryption"),
    (frozenset({"ciphertext", "recipients"}), "a JSON Web Encryption"),
    (
        frozenset({"data", "request_id"}),
        "a whole response of the API: name a file with the value only",
    ),
    (frozenset({"error_code", "message"}), "an error response of the API"),
    (frozenset({"type", "log_id"}), "a line of an export of the audit log"),
)
"""Kinds of JSON objects, by their field names."""
_LABELS: Mapping[str, str] = {
    "OPENSSH PRIVATE KEY": "an OpenSSH private key",
    "SSH SIGNATURE": "a signature of OpenSSH",
    "SSH2 PUBLIC KEY": "an SSH public key",
    "AGE ENCRYPTED FILE": "data that age encrypted",
    "DSA PRIVATE KEY": "a DSA private key",
    "DH PARAMETERS": "Diffie-Hellman parameters",
    "EC PARAMETERS": "parameters of an elliptic curve",
    "X509 CRL": "a certificate revocation list",
    "PKCS7": "a PKCS#7 (CMS) message",
    "CMS": "a CMS message",
}
"""Descriptions of PEM blocks that pqkeep does not support."""


def see(data: bytes) -> Sequence[Seen]:
    """Return the contents of data. A text can hold several blocks or keys."""
    return _see(data, "", _MOST_LAYERS)


def described(seen: Sequence[Seen]) -> str:
    """Return a description of data for a message."""
    if len(seen) == 1:
        first = seen[0]
        lengths = of_length(len(first.data)) if isinstance(first, Bytes) else ()
        return f"{first.what}, the length of {' or '.join(lengths)}" if lengths else first.what
    shown = ", ".join(one.what for one in seen[:_MOST_SHOWN])
    more = ", …" if len(seen) > _MOST_SHOWN else ""
    return f"a file with {len(seen)} parts: {shown}{more}"


def _see(data: bytes, form: str, layers: int) -> Sequence[Seen]:
    if not data:
        return (Other(what="empty"),)
    text = as_text(data)
    if text is None:
        return (_see_bytes(data, form),)
    stripped = text.strip()
    if not stripped:
        return (Other(what="nothing but white space"),)
    try:
        return _see_text(data, stripped, form, layers)
    except TextError as error:
        return (Damaged(what=f"text that cannot be read: {error}", next_step=_repair(str(error))),)


def _repair(problem: str) -> str | None:
    if "quotation" in problem:
        return "remove the marks before each line, or save the attachment itself"
    return None


def _see_text(  # noqa: PLR0911 - one for each form
    data: bytes, text: str, form: str, layers: int
) -> Sequence[Seen]:
    if text[0] in '{["' and not begins_block(text):
        return _see_json(text, form, layers)
    if has_markers(text):
        found = blocks(text)
        return tuple(seen for block in found for seen in _see_block(block, form))
    if text.startswith(ENVELOPE):
        return (Envelope(text="".join(text.split())),)
    jws = _see_compact(text)
    if jws is not None:
        return (jws,)
    of_age = _see_age(text)
    if of_age:
        return of_age
    known = _see_named_text(text)
    if known is not None:
        return (known,)
    digits = hexadecimal_bytes(text)
    if digits is not None:
        return (_see_bytes(digits, _of("hexadecimal", form)),)
    try:
        decoded = base64_bytes(text)
    except TextError:
        return (_text_alone(data, text, form),)
    return (
        _see(decoded, _of("base64", form), layers - 1)
        if layers
        else (_text_alone(data, text, form),)
    )


def _see_age(text: str) -> Sequence[Seen]:
    """Return the post-quantum keys of age in text, or nothing if it has another line."""
    lines = [line.strip() for line in text.splitlines()]
    found: list[Seen] = []
    for line in filter(None, lines):
        if line.startswith("#"):
            continue
        if not line.lower().startswith((_AGE_PUBLIC, _AGE_PRIVATE)):
            return ()
        found.append(_see_age_key(line))
    return found


def _see_age_key(line: str) -> Seen:
    is_public = line.lower().startswith(_AGE_PUBLIC)
    what = f"a {'public' if is_public else 'private'} key of age"
    algorithm = Algorithm.X_WING
    known = PARAMETERS[algorithm]
    try:
        _, data = bech32.decode(line)
    except ValueError as error:
        return Damaged(what=f"{what} that is damaged: it is text {error}")
    if len(data) != (known.public_key if is_public else known.seed):
        return Damaged(what=f"{what} with {len(data)} bytes")
    what = f"{what} ({known.title})"
    if is_public:
        return PublicKey(public_key=data, algorithms=(algorithm,), what=what)
    return PrivateKeyInfo(algorithm=algorithm, content=data, what=what)


def _see_named_text(text: str) -> Other | None:
    """Return the contents of text with a known beginning, or None."""
    for beginning, what in _TEXTS:
        if text.startswith(beginning) or (f"\n{beginning}" in text and beginning.isupper()):
            return Other(what=what)
    if _PRINTED.match(text):
        step = "write the key itself: openssl pkey -in FILE -out key.pem, without -text and -noout"
        return Other(what="the text that openssl pkey -text prints of a key", next_step=step)
    if _PERCENT_ENCODED.fullmatch(text):
        return Other(what="percent-encoded text, as in a URL", next_step="decode it first")
    if "\n\u2014 " in text:
        return Other(what="a signed note")
    return None


def _text_alone(data: bytes, text: str, form: str) -> Seen:
    """Return the contents of text in no known form. Short text may be the bytes of a key."""
    if len(data) in _KEY_SIZES and len(text.split()) == 1:
        return Bytes(data=data, what=_sized(data, form))
    return Other(what="text that is no PEM, no JSON and no base64")


def _of(outer: str, inner: str) -> str:
    return f"{inner} of {outer}" if inner else outer


def _see_block(  # noqa: PLR0911 - one for each form
    block: Block, form: str
) -> Sequence[Seen]:
    label, data = block.label, block.data
    where = _of("PEM", form)
    if block.is_encrypted:
        return (_convertible(_ENCRYPTED, f"{where}, {label}"),)
    if label.startswith("PGP "):
        return (Other(what=f"OpenPGP ({label})"),)
    if label in _LABELS:
        return (Other(what=f"{_LABELS[label]} ({where})"),)
    if label == ARMOR:
        return (Other(what="data that pqkeep encrypted locally, as text"),)
    der = data
    if label == "TRUSTED CERTIFICATE":  # OpenSSL's trust settings follow it
        der = _without_trust(data)
    try:
        kind, seen = _see_der(der, f"{where}, {label}")
    except _der.DerError as error:
        return (
            Damaged(
                what=f"damaged: its block {label} is not DER: {error}",
                next_step=_der_step(error, ""),
            ),
        )
    if kind is not None and label not in _OF_KIND[kind]:
        right = _OF_KIND[kind][0]
        return (
            Damaged(
                what=f"labelled {label} and holds {seen.what}",
                next_step=f"check that it is the right file; the right label is {right}",
            ),
        )
    if kind is None and label not in _KEY_LABELS:
        what = f"{seen.what.partition(' (')[0]} ({where}, {label})"
        return (replace(seen, what=what),)
    return (seen,)


def _without_trust(data: bytes) -> bytes:
    try:
        first = _der.elements(data)[0]
    except _der.DerError:
        return data
    return _der.encoded(first.tag, first.content)


def _see_json(text: str, form: str, layers: int) -> Sequence[Seen]:
    value = json_value(text)
    if isinstance(value, str) and layers:
        return _see(value.encode("utf-8", "replace"), _of("a JSON string", form), layers - 1)
    if not isinstance(value, dict):
        return (Other(what="JSON, but not an object"),)
    values = cast("dict[str, object]", value)
    keys = values.get("keys")
    if isinstance(keys, list) and "format" not in values:
        return _see_jwk_set(cast("list[object]", keys))
    return (_see_object(values),)


def _see_jwk_set(keys: Sequence[object]) -> Sequence[Seen]:
    if not keys:
        return (Other(what="a JWK Set without keys"),)
    return tuple(
        _see_jwk(cast("dict[str, object]", key))
        if isinstance(key, dict) and "kty" in key
        else Damaged(what="a JWK Set with a member that is not a JWK")
        for key in keys
    )


def _see_object(values: Mapping[str, object]) -> Seen:
    kind = values.get("format")
    if isinstance(kind, str) and kind.startswith("pqkeep/"):
        return Document(format=kind, values=values, what=_format_named(kind))
    if "kty" in values:
        return _see_jwk(values)
    if "payload" in values and ("signatures" in values or "signature" in values):
        return _see_json_signature(values)
    for members, what in _OBJECTS:
        if values.keys() >= members:
            return Other(what=what)
    return Other(what="a JSON object of an unknown form")


def _format_named(kind: str) -> str:
    is_plain = re.fullmatch(r"pqkeep/v\d{1,3}/[a-z-]{1,40}", kind)
    return kind if is_plain else "a JSON object with an unknown format"


def _see_jwk(values: Mapping[str, object]) -> Seen:
    kind, alg = values.get("kty"), values.get("alg")
    if isinstance(kind, str) and kind in {"RSA", "EC", "OKP", "oct"}:
        return Other(what=f"a JWK of the type {kind}")
    if kind != "AKP":
        return Other(what="a JWK of an unknown type")
    if not isinstance(alg, str):
        return Damaged(what="a JWK of the type AKP without alg")
    algorithm = BY_JWK.get(alg) or KEM_JWK.get(alg) or (alg if alg in PARAMETERS else None)
    if algorithm is None:
        return Other(what=f"a JWK of {plain(alg)}")
    try:
        return _akp(algorithm, values)
    except TextError as error:
        return Damaged(what=f"a JWK of {title(algorithm)} that is damaged: {error}")


def _akp(algorithm: str, values: Mapping[str, object]) -> Seen:
    """Return the key of a JWK of the type AKP (RFC 9964). Raises TextError."""
    public_key, private_key = _member(values, "pub"), _member(values, "priv")
    size = PARAMETERS[algorithm].public_key
    if public_key is not None and len(public_key) != size:
        return Damaged(what=_wrong_size("public key", algorithm, len(public_key), size, "JWK"))
    if private_key is not None:
        return PrivateKeyInfo(
            algorithm=algorithm,
            content=private_key,
            public_keys=() if public_key is None else (public_key,),
            what=f"a private key of {title(algorithm)} (JWK)",
        )
    if public_key is None:
        raise TextError("it has no pub and no priv")
    kid = values.get("kid")
    is_shown = isinstance(kid, str) and re.fullmatch(r"[A-Za-z0-9._:=-]{1,64}", kid)
    return PublicKey(
        public_key=public_key,
        algorithms=(algorithm,),
        what=f"a public key of {title(algorithm)} (JWK{f', kid {kid}' if is_shown else ''})",
        kid=kid if isinstance(kid, str) else None,
    )


def _member(values: Mapping[str, object], name: str) -> bytes | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise TextError(f"its {name} is empty or not a string")
    return base64_bytes(value)


def plain(name: str) -> str:
    """Return a foreign algorithm name if it can be shown safely."""
    return name if re.fullmatch(r"[A-Za-z0-9+._ -]{1,40}", name) else "an unknown algorithm"


def _see_compact(text: str) -> Seen | None:
    """Return a JWS or a JWE in compact form. None for other text."""
    compact = "".join(text.split())
    if not re.fullmatch(r"e[3wy][A-Za-z0-9_=-]*\.[A-Za-z0-9_.=-]*", compact):
        return None
    match compact.split("."):
        case protected, payload, signature:
            return _jws(protected, payload, signature)
        case _, _, _, _, _:
            return Other(what="a JSON Web Encryption")
        case _:
            return Damaged(what="a JSON Web Signature that was cut: it must have three parts")


def _see_json_signature(values: Mapping[str, object]) -> Seen:
    """Return a JWS in a JSON form (RFC 7515, section 7.2). It must have one signature."""
    signatures = values.get("signatures", [values])
    if not isinstance(signatures, list) or len(cast("list[object]", signatures)) != 1:
        return Other(what="a JSON Web Signature with several signatures, or none")
    (signed,) = cast("list[object]", signatures)
    if not isinstance(signed, dict):
        return Damaged(what="a JSON Web Signature that is damaged")
    member = cast("dict[str, object]", signed)
    parts = (member.get("protected"), values.get("payload"), member.get("signature"))
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) != len(parts):
        return Damaged(what="a JSON Web Signature without protected, payload or signature")
    return _jws(*texts)


def _jws(protected: str, payload: str, signature: str) -> Seen:
    try:
        header = json_value(base64_bytes(protected).decode())
        signed = base64_bytes(signature) if signature else b""
        content = base64_bytes(payload)
    except (TextError, UnicodeDecodeError):
        return Damaged(what="a JSON Web Signature that is damaged: a part of it is not base64url")
    if not isinstance(header, dict):
        return Damaged(what="a JSON Web Signature with a header that is not a JSON object")
    return Jws(
        header=cast("dict[str, object]", header),
        protected=protected,
        payload=payload,
        content=content,
        signature=signed,
        what="a JSON Web Signature",
    )


def _see_bytes(data: bytes, form: str) -> Seen:
    if not data:
        return Other(what="empty")
    for beginning, what in _BINARY:
        if data.startswith(beginning):
            return Other(what=f"{what} ({form})" if form else what)
    if data[0] != _der.SEQUENCE:
        return Bytes(data=data, what=_sized(data, form))
    try:
        kind, seen = _see_der(data, f"DER in {form}" if form else "DER")
    except _der.DerError as error:
        if _looks_like_key(data):
            step = _der_step(error, "-inform DER ")
            return Damaged(what=f"damaged: it begins as DER of a key, but {error}", next_step=step)
        return Bytes(data=data, what=_sized(data, form), problem=str(error))
    is_unknown = kind is None and seen.what.startswith(_UNKNOWN)
    return Bytes(data=data, what=f"{_UNKNOWN} ({_sized(data, form)})") if is_unknown else seen


def _der_step(error: _der.DerError, options: str) -> str | None:
    """Return the next step for invalid DER. OpenSSL can convert BER."""
    if not isinstance(error, _der.BerError):
        return None
    return f"write it as DER: openssl pkey {options}-in FILE -out key.pem"


def _looks_like_key(data: bytes) -> bool:
    """Return True if data begins like a key in DER. Such data is not read as raw key bytes."""
    head = 2 + (data[1] & 0x7F if len(data) > 1 and data[1] & 0x80 else 0)
    rest = data[head : head + 8]
    is_identifier = rest[:1] == b"\x30" and rest[2:3] == b"\x06"
    return is_identifier or rest[:2] == b"\x02\x01"


def _sized(data: bytes, form: str) -> str:
    size = f"{len(data)} bytes" if len(data) != 1 else "one byte"
    return f"{size} ({form})" if form else f"{size} of unknown form"


_UNKNOWN = "DER that is no key"
_KEY_SIZES = frozenset(
    size
    for parameters in PARAMETERS.values()
    for size in (parameters.public_key, parameters.seed, parameters.expanded or 0)
)
_Members = Sequence[_der.Element]


def _see_der(data: bytes, form: str) -> tuple[str | None, Seen]:
    """Return the contents of DER, with its kind if _OF_KIND has it. Raises DerError."""
    members = _der.sequence(data)
    tags = tuple(member.tag for member in members)
    for kind, matches, reading in _READINGS:
        if matches(tags, members):
            seen = reading(members, form)
            if isinstance(seen, Other) and kind != _CERTIFICATE:
                return kind, replace(seen, key=data)
            return kind, seen
    for matches, what in _OTHER_DER:
        if matches(tags, members):
            convertible = _convertible(what, form)
            return None, replace(convertible, key=data) if what in _OTHER_KEYS else convertible
    return None, Other(what=f"{_UNKNOWN} ({form})")


def _identifier(algorithm: _der.Element) -> tuple[str, bool]:
    """Return the object identifier of an AlgorithmIdentifier, and whether it has parameters."""
    members = _der.elements(algorithm.content)
    if not members or members[0].tag != _der.OBJECT_IDENTIFIER:
        raise _der.DerError("its algorithm is missing")
    return _der.dotted(members[0].content), len(members) > 1


def _public(members: _Members, form: str) -> Seen:
    identifier, has_parameters = _identifier(members[0])
    algorithm = BY_IDENTIFIER.get(identifier)
    if algorithm is None:
        return Other(what=f"a public key of {named(identifier)} ({form})")
    if has_parameters:
        return Damaged(
            what=f"a public key of {title(algorithm)} with parameters, which the algorithm does not allow"
        )
    bits = members[1].content
    if bits[:1] != b"\x00":
        return Damaged(what=f"a public key of {title(algorithm)} with a damaged bit string")
    public_key, size = bits[1:], PARAMETERS[algorithm].public_key
    if len(public_key) != size:
        return Damaged(what=_wrong_size("public key", algorithm, len(public_key), size, form))
    what = f"a public key of {title(algorithm)} ({form})"
    return PublicKey(public_key=public_key, algorithms=(algorithm,), what=what)


def _wrong_size(part: str, algorithm: str, size: int, right: int, form: str) -> str:
    return f"a {part} of {title(algorithm)} with {size} bytes and not {right} ({form})"


def _private(members: _Members, form: str) -> Seen:
    identifier, has_parameters = _identifier(members[1])
    algorithm = BY_IDENTIFIER.get(identifier)
    if algorithm is None:
        return Other(what=f"a private key of {named(identifier)} ({form})")
    if has_parameters:
        return Damaged(
            what=f"a private key of {title(algorithm)} with parameters, which the algorithm does not allow"
        )
    public_keys: list[bytes] = []
    for tag, content in members[3:]:
        if tag == 0x81:  # noqa: PLR2004 - [1] IMPLICIT BIT STRING (RFC 5958)
            bits = content
        elif tag == 0xA1:  # noqa: PLR2004 - the same as some write it, EXPLICIT
            bits = _bit_string(content)
        else:  # 0xA0: attributes
            _der.elements(content)
            continue
        if bits[:1] != b"\x00":
            raise _der.DerError("its public key is not a whole number of bytes")
        public_keys.append(bits[1:])
    return PrivateKeyInfo(
        algorithm=algorithm,
        content=members[2].content,
        public_keys=tuple(public_keys),
        what=f"a private key of {title(algorithm)} ({form})",
    )


def _bit_string(data: bytes) -> bytes:
    tag, content = _der.single(data)
    if tag != _der.BIT_STRING:
        raise _der.DerError("its public key is not a bit string")
    return content


def _certificate(members: _Members, form: str) -> Seen:
    to_be_signed = _der.elements(members[0].content)
    at = 6 if to_be_signed[0].tag == 0xA0 else 5  # noqa: PLR2004 - the version, if it is not 1
    if len(to_be_signed) <= at or to_be_signed[at].tag != _der.SEQUENCE:
        raise _der.DerError("it is a certificate without a public key")
    key = _der.elements(to_be_signed[at].content)
    if tuple(member.tag for member in key) != (_der.SEQUENCE, _der.BIT_STRING):
        raise _der.DerError("it is a certificate without a public key")
    seen = _public(key, form)
    if not isinstance(seen, Other):
        return seen
    certified = _der.encoded(_der.SEQUENCE, to_be_signed[at].content)
    return Other(what=f"a certificate with {seen.what}", key=certified)


def _begins_with_identifier(members: _Members) -> bool:
    content = members[0].content
    return members[0].tag == _der.SEQUENCE and content[:1] == bytes((_der.OBJECT_IDENTIFIER,))


def _is_public(tags: tuple[int, ...], members: _Members) -> bool:
    return tags == (_der.SEQUENCE, _der.BIT_STRING) and _begins_with_identifier(members)


def _is_private(tags: tuple[int, ...], members: _Members) -> bool:
    return (
        tags[:3] == (_der.INTEGER, _der.SEQUENCE, _der.OCTET_STRING)
        and members[0].content in {b"\x00", b"\x01"}
        and tags[3:] in {(), (0xA0,), (0x81,), (0xA1,), (0xA0, 0x81), (0xA0, 0xA1)}
    )


def _is_signed(tags: tuple[int, ...], members: _Members) -> bool:
    return tags == (_der.SEQUENCE, _der.SEQUENCE, _der.BIT_STRING)


def _is_certificate(tags: tuple[int, ...], members: _Members) -> bool:
    if not _is_signed(tags, members):
        return False
    inner = [member.tag for member in _der.elements(members[0].content)]
    return inner[:2] == [0xA0, _der.INTEGER] or inner[:6] == [_der.INTEGER, *[_der.SEQUENCE] * 5]


def _is_request(tags: tuple[int, ...], members: _Members) -> bool:
    if not _is_signed(tags, members):
        return False
    inner = [member.tag for member in _der.elements(members[0].content)]
    return inner[:3] == [_der.INTEGER, _der.SEQUENCE, _der.SEQUENCE]


def _is_encrypted(tags: tuple[int, ...], members: _Members) -> bool:
    return tags == (_der.SEQUENCE, _der.OCTET_STRING) and _begins_with_identifier(members)


def _is_ec(tags: tuple[int, ...], members: _Members) -> bool:
    return tags[:2] == (_der.INTEGER, _der.OCTET_STRING) and set(tags[2:]) <= {0xA0, 0xA1}


def _is_pkcs_12(tags: tuple[int, ...], members: _Members) -> bool:
    is_like = tags in {(_der.INTEGER, _der.SEQUENCE), (_der.INTEGER, _der.SEQUENCE, _der.SEQUENCE)}
    return is_like and members[0].content == b"\x03"


def _is_cms(tags: tuple[int, ...], members: _Members) -> bool:
    return tags == (_der.OBJECT_IDENTIFIER, 0xA0)


def _are_integers(count: range) -> Callable[[tuple[int, ...], _Members], bool]:
    return lambda tags, _: set(tags) == {_der.INTEGER} and len(tags) in count


_PUBLIC_KEY, _PRIVATE_KEY, _CERTIFICATE = "public key", "private key", "certificate"
_OF_KIND: Mapping[str, tuple[str, ...]] = {
    _PUBLIC_KEY: ("PUBLIC KEY",),
    _PRIVATE_KEY: ("PRIVATE KEY",),
    _CERTIFICATE: _CERTIFICATE_LABELS,
}
"""The PEM labels of each kind. The correct label is first."""
_KEY_LABELS = frozenset(label for labels in _OF_KIND.values() for label in labels)
_READINGS: Sequence[
    tuple[
        str,
        Callable[[tuple[int, ...], _Members], bool],
        Callable[[_Members, str], Seen],
    ]
] = (
    (_PUBLIC_KEY, _is_public, _public),
    (_PRIVATE_KEY, _is_private, _private),
    (_CERTIFICATE, _is_certificate, _certificate),
)
_REQUEST = "a certificate request"
_ENCRYPTED = "a private key that is encrypted with a password"
_PKCS_12 = "PKCS#12"
_EC, _RSA = "an EC private key (SEC 1)", "an RSA private key (PKCS#1)"
RSA_PUBLIC = "an RSA public key (PKCS#1), or an ECDSA signature"
_OTHER_KEYS = frozenset({_EC, _RSA, RSA_PUBLIC})
_OTHER_DER: Sequence[tuple[Callable[[tuple[int, ...], _Members], bool], str]] = (
    (_is_request, _REQUEST),
    (_is_encrypted, _ENCRYPTED),
    (_is_ec, _EC),
    (_is_pkcs_12, _PKCS_12),
    (_is_cms, "a CMS message"),
    (_are_integers(range(9, 11)), _RSA),
    (_are_integers(range(2, 3)), RSA_PUBLIC),
)


def _convertible(what: str, form: str) -> Other:
    """Return a description of unsupported input, with the command that converts it."""
    der = "-inform DER " if form.startswith("DER") else ""
    steps = {
        _REQUEST: (_PUBLIC_KEY, f"openssl req {der}-in FILE -noout -pubkey -out key.pem"),
        _ENCRYPTED: (_PRIVATE_KEY, f"openssl pkey {der}-in FILE -out key.pem"),
        _PKCS_12: (_PRIVATE_KEY, "openssl pkcs12 -in FILE -nocerts -noenc -out key.pem"),
    }
    makes, command = steps.get(what, (None, None))
    step = None if command is None else f"write the {makes} alone: {command}"
    return Other(what=f"{what} ({form})", next_step=step, makes=makes)

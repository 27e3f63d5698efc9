"""Reads public keys, private keys, signatures and envelopes in all supported forms.

    key = read_public_key(Path("key.pem").read_bytes())

Other input raises UnreadableInputError. The error names form, algorithm and length of the input,
and quotes no content. docs/formats.md lists the forms. No extra is needed, and no signature is
verified.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NamedTuple, TypeVar

from pqkeep.algorithms import (
    BY_JWK,
    OTHER_SIGNATURES,
    PARAMETERS,
    Algorithm,
    canonical,
    title,
)
from pqkeep.errors import UnreadableInputError
from pqkeep.inputs._private_keys import Material, material, seed_form
from pqkeep.inputs._seen import (
    ARMOR,
    LOCAL,
    RSA_PUBLIC,
    Bytes,
    Damaged,
    Document,
    Envelope,
    Jws,
    Other,
    PrivateKeyInfo,
    PublicKey,
    Seen,
    described,
    plain,
    see,
)
from pqkeep.inputs._text import TextError, as_text, base64_bytes, is_utf_16

__all__ = [
    "ARMOR",
    "LOCAL",
    "Document",
    "EnvelopeKey",
    "Jws",
    "Material",
    "PublicKey",
    "RawSignature",
    "as_text",
    "canonical",
    "describe",
    "format_of",
    "jws_algorithm",
    "read_document",
    "read_envelope",
    "read_envelope_key",
    "read_other_key",
    "read_other_signature",
    "read_private_key",
    "read_public_key",
    "read_signature",
    "require_ciphertext",
    "require_public_key",
    "require_sealed",
    "require_signature",
    "seed_form",
    "thumbprint",
    "title",
]

_PUBLIC_FORMS = (
    "name a file with one public key: SubjectPublicKeyInfo as PEM or DER, a JWK, a certificate, "
    "or what pqkeep keys public-key writes"
)
_PRIVATE_FORMS = "name a file with one private key: PKCS#8 as PEM or DER, a JWK, or its seed"
_OTHER_FORMS = "name a file with one key: PKCS#8, PKCS#1 or SEC 1 as PEM or DER"
_SIGNATURE_FORMS = (
    "name a file with one signature: what pqkeep sign writes, a JWS, or the signature alone as "
    "bytes or base64"
)
PUBLIC_KEY_FORMAT = "pqkeep/v1/public-key"
_ENVELOPE = b"pqk1."
_ENVELOPE_TEXT = re.compile(rb"pqk1\.([A-Za-z0-9_-]+)")
_ENVELOPE_SIZES = range(6, 6 + 128 + 1)
"""Bytes of an envelope's header."""
_ENVELOPE_ALGORITHMS: Mapping[int, str] = {
    1: "Kyber768",
    2: "X-Wing",
    3: "ML-KEM-1024",
    4: "XAES-256-GCM",
}
_KEYRING = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SEALING_SIZE = 12 + 16
"""Bytes of nonce and tag in every ciphertext to a public key."""
_CIPHER_SIZE = 24 + 16
"""Bytes of nonce and tag with XAES-256-GCM."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSignature:
    """A signature without the name of its key or hash."""

    signature: bytes = field(repr=False)
    algorithm: str
    what: str


def describe(data: bytes) -> str:
    """Describe data for a message: its form, algorithm and length."""
    encoding = " in UTF-16" if is_utf_16(data) else ""
    return f"{described(see(data))}{encoding}"


def read_public_key(
    data: bytes, *, algorithm: str | None = None, kid: str | None = None
) -> PublicKey:
    """Return the one public key in data.

    ``algorithm`` or ``kid`` selects one of several. Raises UnreadableInputError.
    """
    seen = see(data)
    _require_undamaged(seen)
    read = (_public_key_in(one) if isinstance(one, Document) else one for one in seen)
    keys = _distinct((one for one in read if isinstance(one, PublicKey)), _public_bytes)
    if len(keys) > 1 and kid is not None:
        keys = [key for key in keys if key.kid == kid] or keys
    if len(keys) > 1 and algorithm is not None:
        keys = [key for key in keys if canonical(algorithm) in key.algorithms] or keys
    if len(keys) > 1:
        raise _refused_several(keys, "public key")
    keys = keys or _public_bytes_alone(seen)
    if not keys:
        raise _refused(seen, "a public key of an algorithm of pqkeep", _PUBLIC_FORMS)
    return keys[0]


def read_private_key(data: bytes, algorithm: str) -> tuple[Material, str]:
    """Return the contents of the one private key in data, and its form.

    The consistency of its parts is not checked. Raises UnreadableInputError.
    """
    algorithm = canonical(algorithm)
    if algorithm not in PARAMETERS:
        raise UnreadableInputError(
            f"not read: this client does not know the algorithm {algorithm}",
            "name one of " + ", ".join(PARAMETERS),
        )
    seen = see(data)
    _require_undamaged(seen)
    keys = _distinct(
        (one for one in seen if isinstance(one, PrivateKeyInfo)),
        lambda key: (key.algorithm, key.content),
    )
    if len(keys) > 1:
        keys = [key for key in keys if key.algorithm == algorithm] or keys
    if len(keys) > 1:
        raise _refused_several(keys, "private key")
    if keys:
        (key,) = keys
        if key.algorithm != algorithm:
            raise UnreadableInputError(
                f"{key.what}; a private key of {title(algorithm)} is needed",
                "name that key's file, or the other algorithm",
            )
        held = material(algorithm, key.content)
        if held is None:
            raise UnreadableInputError(
                f"{key.what} in no known form: its content has {len(key.content)} bytes",
                "export the key again with its seed, or convert it with OpenSSL 3.5: "
                "openssl pkey -in FILE -out key.pem",
            )
        beside = frozenset(
            one.public_key
            for one in seen
            if isinstance(one, PublicKey) and algorithm in one.algorithms
        )
        known = (*held.public_keys, *key.public_keys)
        return replace(held, public_keys=known, beside=beside), key.what
    if len(seen) == 1 and isinstance(seen[0], Bytes):
        held = material(algorithm, seen[0].data)
        if held is not None:
            return held, f"a private key of {title(algorithm)}, {seen[0].what}"
    raise _refused(seen, f"a private key of {title(algorithm)}", _PRIVATE_FORMS)


def read_other_key(data: bytes, needed: str) -> tuple[bytes, str]:
    """Return DER and form of the only key in data, if its algorithm is not ours, such as RSA.

    A private key takes precedence over its own public key or certificate in the same file.
    ``needed`` names the key for messages. Raises UnreadableInputError.
    """
    seen = see(data)
    _require_undamaged(seen)
    keys = _distinct((one for one in seen if isinstance(one, Other) and one.key), _other_key)
    private = [one for one in keys if "private" in one.what]
    keys = private or keys
    if len(keys) > 1:
        raise _refused_several(keys, "key")
    if not keys:
        raise _refused(seen, needed, _OTHER_FORMS)
    return keys[0].key, keys[0].what


def _other_key(seen: Other) -> bytes:
    return seen.key


def read_other_signature(data: bytes, algorithm: str) -> RawSignature:
    """Return the one signature of a legacy algorithm in data: bytes, base64 or hexadecimal.

    Raises UnreadableInputError.
    """
    seen = see(data)
    if len(seen) == 1:
        one, held = seen[0], b""
        if isinstance(one, Bytes):
            held = one.data
        elif isinstance(one, Other) and one.what.startswith(RSA_PUBLIC):
            held = one.key
        if held:
            what = f"a signature of {algorithm}"
            return RawSignature(signature=held, algorithm=algorithm, what=what)
    raise _refused(seen, f"a signature of {algorithm}", _SIGNATURE_FORMS)


def read_signature(data: bytes) -> Document | Jws | RawSignature:
    """Return the one signature in data. Raises UnreadableInputError."""
    seen = see(data)
    _require_undamaged(seen)
    if len(seen) == 1:
        match seen[0]:
            case Document() | Jws() as signature:
                return signature
            case Bytes() as alone:
                return _raw_signature(alone)
            case _:
                pass
    raise _refused(seen, "a signature", _SIGNATURE_FORMS)


def format_of(data: bytes) -> str | None:
    """Return the format of a pqkeep JSON object, or None for other data."""
    seen = see(data)
    return seen[0].format if isinstance(seen[0], Document) else None


def read_document(data: bytes, kind: str) -> Mapping[str, object]:
    """Return the members of a pqkeep JSON object of one format. Raises UnreadableInputError."""
    seen = see(data)
    _require_undamaged(seen)
    (first, *more) = seen
    if more or not isinstance(first, Document) or first.format != kind:
        raise _refused(seen, kind, "use the original, unchanged file")
    return {name: value for name, value in first.values.items() if name != "format"}


class EnvelopeKey(NamedTuple):
    """The key that an envelope names. Decryption shows whether it is true."""

    keyring: str
    algorithm: str
    key_version: int


def read_envelope(data: bytes) -> str:
    """Return the text of an envelope, in one line. Raises UnreadableInputError."""
    seen = see(data)
    if len(seen) != 1 or not isinstance(seen[0], Envelope):
        raise _refused(seen, "an envelope of pqkeep", "use the original, unchanged file")
    text = seen[0].text
    body = text.partition(".")[2]
    try:
        decoded = urlsafe_b64decode(body + "=" * (-len(body) % 4)) if body.isascii() else b""
        is_whole = base64_bytes(body) == decoded and "=" not in body and not {"+", "/"} & set(body)
    except (TextError, binascii.Error):
        decoded, is_whole = b"", False
    _envelope_key(decoded if is_whole else b"", len(decoded))
    return text


def read_envelope_key(data: bytes) -> EnvelopeKey:
    """Return the key in the header of an envelope. The ciphertext is not decoded.

    Raises UnreadableInputError.
    """
    text = b"".join(data.split())
    if not text.startswith(_ENVELOPE):
        raise _refused(see(data), "an envelope of pqkeep", "use the original, unchanged file")
    match = _ENVELOPE_TEXT.fullmatch(text)
    body = b"" if match is None or len(match[1]) % 4 == 1 else match[1]
    begin = body[: -(-_ENVELOPE_SIZES[-1] // 3) * 4]
    header = urlsafe_b64decode(begin + b"=" * (-len(begin) % 4))
    return _envelope_key(header, len(body) * 3 // 4)


def _envelope_key(data: bytes, size: int) -> EnvelopeKey:
    """Return the key in an envelope of so many bytes. ``data`` may have only its beginning."""
    fixed = _ENVELOPE_SIZES[0]
    end = fixed + data[5] if len(data) > fixed else size
    if (
        end >= size
        or end not in _ENVELOPE_SIZES
        or data[0] not in _ENVELOPE_ALGORITHMS
        or not any(data[1:5])
        or not _KEYRING.fullmatch(data[fixed:end])
    ):
        raise UnreadableInputError(
            "an envelope of pqkeep that is damaged: it was truncated or changed",
            "use the original, unchanged file",
        )
    algorithm = _ENVELOPE_ALGORITHMS[data[0]]
    _require_sealed(algorithm, size - end, 0)
    version = int.from_bytes(data[1:5], "big")
    return EnvelopeKey(data[fixed:end].decode("ascii"), algorithm, version)


def jws_algorithm(jws: Jws) -> str:
    """Return the algorithm of a JWS that pqkeep verifies. Raises UnreadableInputError."""
    alg = jws.header.get("alg")
    algorithm = BY_JWK.get(alg) if isinstance(alg, str) else None
    if algorithm is None:
        raise UnreadableInputError(
            f"a JSON Web Signature with {plain(alg) if isinstance(alg, str) else 'no alg'}",
            "verify it with a library that knows the algorithm; pqkeep verifies "
            + ", ".join(BY_JWK),
        )
    if "crit" in jws.header or "b64" in jws.header:
        raise UnreadableInputError(
            "a JSON Web Signature with unsupported critical parameters (crit or b64)",
            "verify it with a library that supports them",
        )
    require_signature(algorithm, jws.signature)
    return algorithm


def thumbprint(algorithm: str, public_key: bytes) -> str | None:
    """Return the thumbprint of a public key (RFC 7638, RFC 9964), its id in JWS.

    None without a JWK form.
    """
    known = PARAMETERS.get(algorithm)
    if known is None or known.jwk is None:
        return None
    pub = urlsafe_b64encode(public_key).rstrip(b"=").decode("ascii")
    members = f'{{"alg":"{known.jwk}","kty":"AKP","pub":"{pub}"}}'
    return urlsafe_b64encode(sha256(members.encode()).digest()).rstrip(b"=").decode("ascii")


def require_signature(algorithm: str, signature: bytes) -> None:
    """Raise UnreadableInputError if the length of a signature is wrong for its algorithm."""
    known = PARAMETERS.get(algorithm)
    if known is None:
        return
    if not known.signature:
        raise UnreadableInputError(
            f"a signature of {title(algorithm)}, which does not sign",
            "ask the signer for the signature",
        )
    if len(signature) not in known.signature:
        sizes = known.signature
        right = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise UnreadableInputError(
            f"a signature of {title(algorithm)} with {len(signature)} bytes and not {right}"
            + _other_signature(len(signature)),
            "use the original file: this one was cut, or is of another algorithm",
        )


def require_public_key(algorithm: str, public_key: bytes) -> None:
    """Raise UnreadableInputError if the length of a public key is wrong for its algorithm."""
    known = PARAMETERS.get(algorithm)
    if known is not None:
        _require_size(algorithm, "public key", public_key, known.public_key)


def require_ciphertext(algorithm: str, kem_ciphertext: bytes) -> None:
    """Raise UnreadableInputError if the length of a KEM ciphertext is wrong for its algorithm."""
    known = PARAMETERS.get(algorithm)
    if known is None:
        return
    if known.ciphertext is None:
        raise UnreadableInputError(
            f"a KEM ciphertext of {title(algorithm)}, which signs",
            "use the original, unchanged file",
        )
    _require_size(algorithm, "KEM ciphertext", kem_ciphertext, known.ciphertext)


def require_sealed(algorithm: str, sealed: bytes, *, least: int = 0) -> None:
    """Raise UnreadableInputError for fewer bytes than KEM ciphertext, nonce, ``least`` and tag."""
    _require_sealed(algorithm, len(sealed), least)


def _require_sealed(algorithm: str, size: int, least: int) -> None:
    known = PARAMETERS.get(algorithm)
    if algorithm == Algorithm.XAES_256_GCM and size < _CIPHER_SIZE + least:
        raise UnreadableInputError(
            f"encrypted with {algorithm} and has only {size} bytes: it was cut",
            "use the original, unchanged file",
        )
    if known is None:
        return
    if known.ciphertext is None:
        raise UnreadableInputError(
            f"encrypted to {title(algorithm)}, which signs", "use the original, unchanged file"
        )
    if size < known.ciphertext + _SEALING_SIZE + least:
        raise UnreadableInputError(
            f"encrypted to {title(algorithm)} and has only {size} bytes: it was cut",
            "use the original, unchanged file",
        )


def _require_size(algorithm: str, part: str, data: bytes, size: int) -> None:
    if len(data) != size:
        raise UnreadableInputError(
            f"a {part} of {title(algorithm)} with {len(data)} bytes and not {size}",
            "use the original file: this one was cut, or is of another algorithm",
        )


def _other_signature(size: int) -> str:
    names = [title(name) for name, known in PARAMETERS.items() if size in known.signature]
    if not names and size in OTHER_SIGNATURES:
        names = [OTHER_SIGNATURES[size]]
    return f", which is the length of {' or '.join(names)}" if names else ""


def _raw_signature(alone: Bytes) -> RawSignature:
    size = len(alone.data)
    for algorithm, known in PARAMETERS.items():
        if size in known.signature:
            what = f"a signature of {title(algorithm)}, {alone.what}"
            return RawSignature(signature=alone.data, algorithm=algorithm, what=what)
    other = _other_signature(size) or ", which matches no signature length that pqkeep verifies"
    raise UnreadableInputError(f"{alone.what}{other}", _SIGNATURE_FORMS)


def _public_key_in(document: Document) -> PublicKey | Document:
    """Return the key in the output of pqkeep keys public-key. Raises UnreadableInputError."""
    if document.format != PUBLIC_KEY_FORMAT:
        return document
    algorithm, text = document.values.get("algorithm"), document.values.get("public_key")
    try:
        public_key = base64_bytes(text) if isinstance(text, str) else b""
    except TextError:
        public_key = b""
    if not isinstance(algorithm, str) or not public_key:
        raise UnreadableInputError(
            f"a damaged {PUBLIC_KEY_FORMAT}", "use the original, unchanged file"
        )
    require_public_key(algorithm, public_key)
    what = f"a public key of {title(algorithm)} ({PUBLIC_KEY_FORMAT})"
    return PublicKey(public_key=public_key, algorithms=(algorithm,), what=what)


def _public_bytes(key: PublicKey) -> tuple[tuple[str, ...], bytes]:
    return key.algorithms, key.public_key


def _public_bytes_alone(seen: Sequence[Seen]) -> list[PublicKey]:
    """Return raw bytes as a public key of each algorithm with this length. Can be empty."""
    if len(seen) != 1 or not isinstance(seen[0], Bytes):
        return []
    alone = seen[0]
    algorithms = tuple(
        algorithm for algorithm, known in PARAMETERS.items() if len(alone.data) == known.public_key
    )
    if not algorithms:
        return []
    names = " or ".join(map(title, algorithms))
    what = f"a public key of {names} by its length, {alone.what}"
    return [PublicKey(public_key=alone.data, algorithms=algorithms, what=what)]


def _distinct(values: Iterable[T], identity: Callable[[T], object]) -> list[T]:
    """Return values without duplicates. A file can have the same block twice, for example."""
    return list({identity(value): value for value in values}.values())


def _require_undamaged(seen: Sequence[Seen]) -> None:
    for one in seen:
        if isinstance(one, Damaged):
            raise UnreadableInputError(
                one.what, one.next_step or "use the original, unchanged file"
            )


def _refused_several(
    keys: Sequence[PublicKey] | Sequence[PrivateKeyInfo] | Sequence[Other], kind: str
) -> UnreadableInputError:
    return UnreadableInputError(
        f"{described(keys)}; one {kind} is needed", f"name a file with only the needed {kind}"
    )


def _refused(seen: Sequence[Seen], needed: str, forms: str) -> UnreadableInputError:
    steps = [
        one.next_step
        for one in seen
        if isinstance(one, Other)
        and one.next_step
        and (one.makes is None or needed.startswith(f"a {one.makes}"))
    ]
    problems = [f" ({one.problem})" for one in seen if isinstance(one, Bytes) and one.problem]
    return UnreadableInputError(
        f"{described(seen)}{''.join(problems)}; {needed} is needed", steps[0] if steps else forms
    )

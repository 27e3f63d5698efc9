"""CMS (RFC 5652) with ML-KEM (RFC 9629, RFC 9936), ML-DSA (RFC 9882) and SLH-DSA (RFC 9814).

    message = encrypt(data, [Recipient(public_key, "ML-KEM-1024")])
    signed = sign(data, key, signer)

Encrypted data is AuthEnvelopedData with AES-256-GCM, and other ciphers are refused. Signatures have
signed attributes, so the signer sees a digest and not the data. Private keys stay in the service. It
needs the extra ``pqkeep[local]``. A message has at most 32 MiB, in memory.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pqkeep.algorithms import BY_IDENTIFIER, PARAMETERS, Algorithm, canonical
from pqkeep.errors import DecryptionError, UnreadableInputError, how_to_install
from pqkeep.inputs import _der
from pqkeep.inputs._der import DerError, Element, encoded, object_identifier

LARGEST = 32 * 1024 * 1024
"""The most bytes of a message or its content."""
MOST_RECIPIENTS = 32
"""The most recipients of a message that ``recipients`` returns, and that ``encrypt`` takes."""
_MOST_ELEMENTS = 200_000
_DEEPEST = 16
_INTEGER, _OCTETS, _SEQUENCE, _SET = 0x02, 0x04, 0x30, 0x31
_IN_0, _AS_0, _AS_1, _AS_4 = 0x80, 0xA0, 0xA1, 0xA4
"""Context-specific tags: primitive, and constructed."""
_CONSTRUCTED = 0x20
_LONG_TAG = 0x1F
_LONG, _LONGEST = 0x80, 0x84
"""Lengths in more bytes; alone it is an indefinite length."""
_DATA = "1.2.840.113549.1.7.1"
_SIGNED = "1.2.840.113549.1.7.2"
_AUTH_ENVELOPED = "1.2.840.113549.1.9.16.1.23"
_ENVELOPED = "1.2.840.113549.1.7.3"
_KEM_RECIPIENT = "1.2.840.113549.1.9.16.13.3"
_AES_256_GCM = "2.16.840.1.101.3.4.1.46"
_AES_256_WRAP = "2.16.840.1.101.3.4.1.45"
_CONTENT_TYPE = "1.2.840.113549.1.9.3"
_MESSAGE_DIGEST = "1.2.840.113549.1.9.4"
_HASHES: Mapping[str, str] = {
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
_KDFS: Mapping[str, str] = {
    "1.2.840.113549.1.9.16.3.28": "SHA256",
    "1.2.840.113549.1.9.16.3.29": "SHA384",
    "1.2.840.113549.1.9.16.3.30": "SHA512",
}
"""The hash function of each HKDF algorithm (RFC 8619), by object identifier."""
_HKDF_SHA_256 = "1.2.840.113549.1.9.16.3.28"
_KEY = 32
_NONCE = 12
_TAG = 16
_KEMS = (Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024)
_SIGNERS = tuple(
    algorithm
    for algorithm, known in PARAMETERS.items()
    if known.signature and algorithm != Algorithm.COMPOSITE_ML_DSA
)


@dataclass(frozen=True, slots=True)
class Identifier:
    """The identifier of a key: of its certificate, or SHA-1 of the key (RFC 5280, 4.2.1.2)."""

    encoded: bytes

    @property
    def key_identifier(self) -> bytes | None:
        """The subject key identifier. None for issuer and serial number."""
        element = _der.single(self.encoded)
        return None if element.tag == _SEQUENCE else element.content


def identifier_of(public_key: bytes) -> Identifier:
    """Return the identifier of a key without a certificate."""
    digest = hashlib.sha1(public_key, usedforsecurity=False).digest()
    return Identifier(encoded(_IN_0, digest))


@dataclass(frozen=True, slots=True)
class Recipient:
    """A public key of ML-KEM to encrypt to."""

    public_key: bytes = field(repr=False)
    algorithm: str


class Wrapped(NamedTuple):
    """The content key, wrapped to one recipient."""

    identifier: Identifier
    algorithm: str
    kem_ciphertext: bytes
    hash: str
    other_info: bytes
    encrypted_key: bytes


class Encrypted(NamedTuple):
    """Encrypted data. Nothing is authenticated before ``decrypt`` returns."""

    recipients: Sequence[Wrapped]
    """The recipients with ML-KEM."""
    nonce: bytes
    ciphertext: bytes
    """The ciphertext with its tag."""
    attributes: bytes
    """DER of the authenticated attributes."""


class Signed(NamedTuple):
    """Signed data with one signer. Nothing is verified yet."""

    content: bytes | None
    """The signed content. None if the signature is detached."""
    content_type: str
    identifier: Identifier
    algorithm: str
    hash: str
    attributes: bytes
    """DER of the signed attributes, as the signer signed it. Empty without attributes."""
    signature: bytes


def encrypt(data: bytes, recipients: Sequence[Recipient]) -> bytes:
    """Return data as AuthEnvelopedData. Raises ValueError for an invalid recipient or much data."""
    from pqkeep.local import encapsulate  # noqa: PLC0415 - it loads cryptography

    if not 0 < len(recipients) <= MOST_RECIPIENTS or len(data) > LARGEST:
        raise ValueError(
            f"1 to {MOST_RECIPIENTS} recipients and at most {LARGEST} bytes are needed"
        )
    crypto = _Crypto()
    key, nonce = os.urandom(_KEY), os.urandom(_NONCE)
    wrapped: list[bytes] = []
    for recipient in recipients:
        algorithm = canonical(recipient.algorithm)
        if algorithm not in _KEMS:
            raise ValueError(f"the algorithm must be one of {', '.join(_KEMS)}")
        made = encapsulate(public_key=recipient.public_key, algorithm=algorithm, key_version=1)
        kek = crypto.derive("SHA256", made.shared_secret, _OTHER_INFO)
        kem_recipient = _sequence(
            _integer(0),
            identifier_of(recipient.public_key).encoded,
            _algorithm(PARAMETERS[algorithm].identifier),
            encoded(_OCTETS, made.kem_ciphertext),
            _algorithm(_HKDF_SHA_256),
            _integer(_KEY),
            _algorithm(_AES_256_WRAP),
            encoded(_OCTETS, crypto.wrap(kek, key)),
        )
        wrapped.append(encoded(_AS_4, object_identifier(_KEM_RECIPIENT) + kem_recipient))
    sealed = crypto.seal(key, nonce, data)
    parameters = _sequence(encoded(_OCTETS, nonce), _integer(_TAG))
    body = _sequence(
        _integer(0),
        _set(wrapped),
        _sequence(
            object_identifier(_DATA),
            _algorithm(_AES_256_GCM, parameters),
            encoded(_IN_0, sealed[:-_TAG]),
        ),
        encoded(_OCTETS, sealed[-_TAG:]),
    )
    return _sequence(object_identifier(_AUTH_ENVELOPED), encoded(_AS_0, body))


def read_encrypted(data: bytes) -> Encrypted:
    """Return the parts of AuthEnvelopedData. Raises UnreadableInputError."""
    try:
        return _encrypted(_content(data, _AUTH_ENVELOPED))
    except (DerError, IndexError, ValueError) as error:
        raise _unreadable(error) from None


def decrypt(message: Encrypted, wrapped: Wrapped, shared_secret: bytes) -> bytes:
    """Return the content. Raises DecryptionError for another key or a changed message."""
    crypto = _Crypto()
    key = crypto.unwrap(
        crypto.derive(wrapped.hash, shared_secret, wrapped.other_info), wrapped.encrypted_key
    )
    content = None
    if key is not None and len(key) == _KEY:
        content = crypto.open(key, message.nonce, message.ciphertext, message.attributes)
    if content is None:
        raise DecryptionError("the CMS message was changed, or encrypted to another key")
    return content


def sign(
    data: bytes,
    public_key: bytes,
    algorithm: str,
    signer: Callable[[bytes], bytes],
    *,
    certificate: bytes | None = None,
    detached: bool = False,
) -> bytes:
    """Return data as SignedData. ``signer`` gets the DER of the signed attributes.

    A certificate (DER) of the key becomes a part of the message and names the signer. Raises
    ValueError for another algorithm, another certificate, or much data.
    """
    if algorithm not in _SIGNERS or len(data) > LARGEST:
        raise ValueError(f"{', '.join(_SIGNERS)} sign at most {LARGEST} bytes as CMS")
    hashing = _hash_for(algorithm)
    digest_algorithm = _algorithm(hashing)
    attributes = _set(
        [
            _attribute(_CONTENT_TYPE, object_identifier(_DATA)),
            _attribute(
                _MESSAGE_DIGEST, encoded(_OCTETS, hashlib.new(_HASHES[hashing], data).digest())
            ),
        ]
    )
    identifier = identifier_of(public_key)
    if certificate is not None:
        identifier = _issuer_and_serial(certificate, public_key)
    version = 3 if identifier.key_identifier is not None else 1
    signer_info = _sequence(
        _integer(version),
        identifier.encoded,
        digest_algorithm,
        bytes((_AS_0,)) + attributes[1:],
        _algorithm(PARAMETERS[algorithm].identifier),
        encoded(_OCTETS, signer(attributes)),
    )
    content = b"" if detached else encoded(_AS_0, encoded(_OCTETS, data))
    body = _sequence(
        _integer(version),
        _set([digest_algorithm]),
        _sequence(object_identifier(_DATA), content),
        b"" if certificate is None else encoded(_AS_0, certificate),
        _set([signer_info]),
    )
    return _sequence(object_identifier(_SIGNED), encoded(_AS_0, body))


def read_signed(data: bytes) -> Signed:
    """Return the parts of SignedData with one signer. Raises UnreadableInputError."""
    try:
        return _signed(_content(data, _SIGNED))
    except (DerError, IndexError, ValueError) as error:
        raise _unreadable(error) from None


def signed_bytes(message: Signed, content: bytes) -> bytes | None:
    """Return the bytes that the signature covers, or None if the content is not the signed one."""
    if not message.attributes:
        return content
    found: dict[str, Sequence[Element]] = {}
    for attribute in _der.elements(_der.single(message.attributes).content):
        name, values = _der.elements(attribute.content)
        if _der.dotted(name.content) in found:
            return None
        found[_der.dotted(name.content)] = _der.elements(values.content)
    digest = hashlib.new(message.hash, content).digest()
    kind = object_identifier(message.content_type)
    expected = {
        _CONTENT_TYPE: [_der.single(kind)],
        _MESSAGE_DIGEST: [Element(_OCTETS, digest)],
    }
    is_of_content = all(found.get(name) == value for name, value in expected.items())
    return message.attributes if is_of_content else None


def _encrypted(body: Sequence[Element]) -> Encrypted:
    version, recipients, info, *rest = body
    if version != (_INTEGER, b"\0") or recipients.tag != _SET:
        raise DerError("it has another version, or information about its originator")
    kind, cipher, ciphertext = _der.elements(info.content)
    if _der.dotted(kind.content) != _DATA:
        raise DerError("its content is not data")
    identifier, parameters = _parameters(cipher)
    if identifier != _AES_256_GCM or parameters is None:
        raise DerError("its cipher is not AES-256-GCM")
    nonce, *length = _der.elements(parameters.content)
    if nonce.tag != _OCTETS or len(nonce.content) != _NONCE or length != [(_INTEGER, b"\x10")]:
        raise DerError("its nonce does not have 12 bytes, or its tag does not have 16")
    attributes = b""
    if rest and rest[0].tag == _AS_1:
        attributes = encoded(_SET, rest.pop(0).content)
    mac = rest[0]
    if mac.tag != _OCTETS or len(mac.content) != _TAG:
        raise DerError("its tag has not 16 bytes")
    found = [
        one
        for one in _der.elements(recipients.content)
        if one.tag == _AS_4 and _is_kem(_der.elements(one.content))
    ]
    if len(found) > MOST_RECIPIENTS:
        raise DerError("it has too many recipients")
    wrapped = [_wrapped(_der.elements(_der.elements(one.content)[1].content)) for one in found]
    return Encrypted(
        [one for one in wrapped if one is not None],
        nonce.content,
        _octets(ciphertext) + mac.content,
        attributes,
    )


def _is_kem(members: Sequence[Element]) -> bool:
    return len(members) == 1 + 1 and _der.dotted(members[0].content) == _KEM_RECIPIENT


def _wrapped(members: Sequence[Element]) -> Wrapped | None:
    """Return a recipient, or None for algorithms that pqkeep does not have."""
    version, identifier, kem, kem_ciphertext, kdf, length, *rest = members
    has_material = rest[0].tag == _AS_0
    material = encoded(_AS_0, rest.pop(0).content) if has_material else b""
    wrap, encrypted_key = rest
    algorithm = BY_IDENTIFIER.get(_parameters(kem)[0])
    hashing = _KDFS.get(_parameters(kdf)[0])
    if (
        algorithm is None
        or algorithm not in _KEMS
        or hashing is None
        or _parameters(wrap) != (_AES_256_WRAP, None)
        or version != (_INTEGER, b"\0")
        or length != (_INTEGER, bytes((_KEY,)))
        or {kem_ciphertext.tag, encrypted_key.tag} != {_OCTETS}
        or len(kem_ciphertext.content) != PARAMETERS[algorithm].ciphertext
    ):
        return None
    return Wrapped(
        Identifier(encoded(*identifier)),
        algorithm,
        kem_ciphertext.content,
        hashing,
        _sequence(encoded(*wrap), encoded(*length), material),
        encrypted_key.content,
    )


def _signed(body: Sequence[Element]) -> Signed:
    _, _, info, *rest = body
    kind, *content = _der.elements(info.content)
    signers = _der.elements(rest[-1].content)
    if len(signers) != 1:
        raise DerError("it has no signer, or several")
    _, identifier, digest, *parts = _der.elements(signers[0].content)
    attributes = b""
    if parts[0].tag == _AS_0:
        attributes = encoded(_SET, parts.pop(0).content)
    algorithm, signature = parts[:2]
    name = BY_IDENTIFIER.get(_parameters(algorithm)[0])
    hashing = _HASHES.get(_parameters(digest)[0])
    if name not in _SIGNERS or _parameters(algorithm)[1] is not None:
        raise DerError("its signature is of an algorithm that pqkeep does not have")
    if attributes and hashing is None:
        raise DerError("its digest is not SHA-256, SHA-384 or SHA-512")
    if signature.tag != _OCTETS or (not attributes and _der.dotted(kind.content) != _DATA):
        raise DerError("its signature has another form")
    data = None
    if content:
        data = _octets(_der.single(content[0].content))
    return Signed(
        data,
        _der.dotted(kind.content),
        Identifier(encoded(*identifier)),
        name,
        hashing or "sha512",
        attributes,
        signature.content,
    )


def _content(data: bytes, kind: str) -> Sequence[Element]:
    """Return the members of the content of a message of one type. Raises DerError."""
    if len(data) > LARGEST + LARGEST // 64:
        raise DerError(f"it has more than {LARGEST} bytes")
    found, content = _der.sequence(_Reader(data).definite())
    named = _der.dotted(found.content)
    if named == _ENVELOPED and kind == _AUTH_ENVELOPED:
        raise DerError("it is EnvelopedData, which protects nothing from changes: use AES-256-GCM")
    if named != kind or content.tag != _AS_0:
        raise DerError("it is of another type")
    return _der.sequence(content.content)


class _Reader:
    """Rewrites BER with definite lengths, and joins strings that are in parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST_ELEMENTS

    def definite(self) -> bytes:
        """Return all data. Raises DerError."""
        written, end = self._element(0, len(self._data), 0)
        if end != len(self._data):
            raise DerError(f"bytes follow its end: {len(self._data) - end}")
        return written

    def _element(self, at: int, limit: int, depth: int) -> tuple[bytes, int]:
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            raise DerError("it has too many parts")
        if limit - at < 1 + 1:
            raise DerError("it was cut")
        tag, size = self._data[at], self._data[at + 1]
        at += 2
        is_indefinite = size == _LONG
        if (
            tag & _LONG_TAG == _LONG_TAG
            or size > _LONGEST
            or (is_indefinite and not tag & _CONSTRUCTED)
        ):
            raise DerError("it has an unknown tag or length")
        if size > _LONG:
            count = size & 0x7F
            size = int.from_bytes(self._data[at : at + count], "big")
            at += count
        end = limit if is_indefinite else at + size
        if end > limit:
            raise DerError("it was cut")
        if not tag & _CONSTRUCTED:
            return encoded(tag, self._data[at:end]), end
        parts: list[bytes] = []
        while (self._data[at : at + 2] != b"\0\0") if is_indefinite else at < end:
            part, at = self._element(at, end, depth + 1)
            parts.append(part)
        if is_indefinite:
            at += 2
        if tag == _OCTETS | _CONSTRUCTED:
            return encoded(_OCTETS, _joined(parts)), at
        return encoded(tag, b"".join(parts)), at


def _joined(parts: Sequence[bytes]) -> bytes:
    strings = [_der.single(part) for part in parts]
    if any(one.tag != _OCTETS for one in strings):
        raise DerError("it has a damaged string")
    return b"".join(one.content for one in strings)


def _octets(element: Element) -> bytes:
    """Return the content of an octet string. Its tag may be implicit."""
    if element.tag in {_OCTETS, _IN_0}:
        return element.content
    if element.tag != _AS_0:
        raise DerError("it has no content")
    parts: list[bytes] = []
    rest = element.content
    while rest:
        first, rest = _der.first(rest)
        parts.append(encoded(*first))
    return _joined(parts)


def _parameters(algorithm: Element) -> tuple[str, Element | None]:
    """Return the object identifier and parameters of an AlgorithmIdentifier."""
    identifier, *parameters = _der.elements(algorithm.content)
    if algorithm.tag != _SEQUENCE or len(parameters) > 1:
        raise DerError("it has a damaged algorithm")
    return _der.dotted(identifier.content), parameters[0] if parameters else None


def _issuer_and_serial(certificate: bytes, public_key: bytes) -> Identifier:
    """Return the identifier of a certificate. Raises ValueError for that of another key."""
    try:
        body = list(_der.elements(_der.sequence(certificate)[0].content))
        if body[0].tag == _AS_0:
            del body[0]
        serial, _, issuer, _, _, key = body[:6]
        bits = _der.elements(key.content)[1]
    except (DerError, IndexError, ValueError):
        raise ValueError("the certificate is not DER") from None
    if bits.content != b"\0" + public_key:
        raise ValueError("the certificate is of another key")
    return Identifier(_sequence(encoded(*issuer), encoded(*serial)))


def _hash_for(algorithm: str) -> str:
    """Return the digest that RFC 9882 and RFC 9814 name for an algorithm."""
    is_small = algorithm in {Algorithm.SLH_DSA_SHA2_128S, Algorithm.SLH_DSA_SHA2_128F}
    return next(name for name, of in _HASHES.items() if of == ("sha256" if is_small else "sha512"))


def _attribute(name: str, value: bytes) -> bytes:
    return _sequence(object_identifier(name), encoded(_SET, value))


def _algorithm(identifier: str, parameters: bytes = b"") -> bytes:
    return _sequence(object_identifier(identifier), parameters)


def _sequence(*members: bytes) -> bytes:
    return encoded(_SEQUENCE, b"".join(members))


def _set(members: Sequence[bytes]) -> bytes:
    return encoded(_SET, b"".join(sorted(members)))


def _integer(value: int) -> bytes:
    return encoded(_INTEGER, bytes((value,)))


_OTHER_INFO = _sequence(_algorithm(_AES_256_WRAP), _integer(_KEY))
"""CMSORIforKEMOtherInfo (RFC 9629, section 5)."""


def _unreadable(error: Exception) -> UnreadableInputError:
    why = str(error) if isinstance(error, DerError) else "it has another structure"
    return UnreadableInputError(
        f"not a CMS message that pqkeep reads: {why}",
        "write DER, for example with openssl cms -outform DER; docs/cms.md names the types",
    )


class _Crypto:
    """The primitives of the library."""

    def __init__(self) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives import hashes, keywrap  # noqa: PLC0415
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"CMS encryption is not installed: {how_to_install('local')}", name="cryptography"
            ) from None
        self._hashes = {
            "SHA256": hashes.SHA256(),
            "SHA384": hashes.SHA384(),
            "SHA512": hashes.SHA512(),
        }
        self._hkdf = HKDF
        self._aead = AESGCM
        self._keywrap = keywrap
        self._invalid_tag = InvalidTag

    def derive(self, name: str, secret: bytes, info: bytes) -> bytes:
        """Return the key that wraps the content key."""
        return self._hkdf(self._hashes[name], _KEY, None, info).derive(secret)

    def wrap(self, kek: bytes, key: bytes) -> bytes:
        """Wrap a key (RFC 3394)."""
        return self._keywrap.aes_key_wrap(kek, key)

    def unwrap(self, kek: bytes, wrapped: bytes) -> bytes | None:
        """Return the key, or None if it was wrapped under another key."""
        try:
            return self._keywrap.aes_key_unwrap(kek, wrapped)
        except (self._keywrap.InvalidUnwrap, ValueError):
            return None

    def seal(self, key: bytes, nonce: bytes, data: bytes) -> bytes:
        """Encrypt data with AES-256-GCM."""
        return self._aead(key).encrypt(nonce, data, b"")

    def open(self, key: bytes, nonce: bytes, data: bytes, attributes: bytes) -> bytes | None:
        """Return the data, or None if it was changed."""
        try:
            return self._aead(key).decrypt(nonce, data, attributes)
        except self._invalid_tag:
            return None

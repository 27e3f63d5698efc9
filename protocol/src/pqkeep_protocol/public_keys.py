"""Public keys in standard formats: SubjectPublicKeyInfo (RFC 5280, DER or PEM), JWK, certificates, age.

    SubjectPublicKeyInfo = SEQUENCE { SEQUENCE { object identifier }, BIT STRING { public key } }

The bit string is the public key in its standard's encoding, without further structure. The object
identifier and the size are fixed for each algorithm, so all bytes before the key are fixed too. A
key has exactly one encoding, and any other byte is refused. An error names the form and algorithm
of the refused data, if they are known, and repeats none of it.
"""

import binascii
import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

from pqkeep_protocol.algorithms import ALGORITHMS, KEY_PAIRS, LEGACY, Algorithm
from pqkeep_protocol.der import BIT_STRING, SEQUENCE, DerError, certified_key, der, form_of

OBJECT_IDENTIFIER: Mapping[Algorithm, bytes] = {
    Algorithm.ML_KEM_768: bytes.fromhex("0609608648016503040402"),
    Algorithm.X_WING: bytes.fromhex("060b2b0601040183e62d81c87a"),
    Algorithm.ML_KEM_1024: bytes.fromhex("0609608648016503040403"),
    Algorithm.ML_DSA_65: bytes.fromhex("0609608648016503040312"),
    Algorithm.COMPOSITE_ML_DSA: bytes.fromhex("06082b0601050507062d"),
    Algorithm.ML_DSA_87: bytes.fromhex("0609608648016503040313"),
    Algorithm.SLH_DSA_SHA2_128S: bytes.fromhex("0609608648016503040314"),
    Algorithm.SLH_DSA_SHA2_128F: bytes.fromhex("0609608648016503040315"),
    Algorithm.SLH_DSA_SHA2_192S: bytes.fromhex("0609608648016503040316"),
    Algorithm.SLH_DSA_SHA2_256S: bytes.fromhex("0609608648016503040318"),
}
"""DER. ML-KEM by RFC 9935, ML-DSA by RFC 9881, SLH-DSA by RFC 9909; X-Wing by
draft-connolly-cfrg-xwing-kem, Composite-ML-DSA by draft-ietf-lamps-pq-composite-sigs."""

JWK_ALGORITHM: Mapping[Algorithm, str] = {
    Algorithm.ML_DSA_65: "ML-DSA-65",
    Algorithm.ML_DSA_87: "ML-DSA-87",
    Algorithm.SLH_DSA_SHA2_128S: "SLH-DSA-SHA2-128s",
    Algorithm.SLH_DSA_SHA2_128F: "SLH-DSA-SHA2-128f",
}
"""``alg`` of keys with a JWK form: ML-DSA by RFC 9964, SLH-DSA by draft-ietf-cose-sphincs-plus.

Neither document defines the other algorithms."""

AGE_PREFIXES: Mapping[Algorithm, str] = {Algorithm.X_WING: "age1pq"}
"""The human-readable part of recipients of age (c2sp.org/age, MLKEM768-X25519)."""

PEM_LABEL = "PUBLIC KEY"
MAX_TEXT = 65_536
"""Characters of a document. An SLH-DSA certificate has under 50,000, a public key under 4,000."""

_PEM_LINE = 64
_ENCODER = msgspec.json.Encoder(order="sorted")


_CERTIFICATES = ("CERTIFICATE", "X509 CERTIFICATE")
_LABELS: Mapping[str, str] = {
    "PRIVATE KEY": "a private key (PKCS#8)",
    "ENCRYPTED PRIVATE KEY": "an encrypted private key (PKCS#8)",
    "RSA PRIVATE KEY": "an RSA private key (PKCS#1)",
    "EC PRIVATE KEY": "an EC private key (SEC 1)",
    "DSA PRIVATE KEY": "a DSA private key",
    "OPENSSH PRIVATE KEY": "an OpenSSH private key",
    "PGP PRIVATE KEY BLOCK": "an OpenPGP private key",
    PEM_LABEL: "a public key",
    "RSA PUBLIC KEY": "an RSA public key (PKCS#1)",
    "SSH2 PUBLIC KEY": "an SSH public key",
    "PGP PUBLIC KEY BLOCK": "an OpenPGP public key",
    "PGP MESSAGE": "an OpenPGP message",
    "PGP SIGNATURE": "an OpenPGP signature",
    "CERTIFICATE": "a certificate",
    "X509 CERTIFICATE": "a certificate",
    "TRUSTED CERTIFICATE": "a certificate with OpenSSL's trust settings",
    "CERTIFICATE REQUEST": "a certificate request (PKCS#10)",
    "NEW CERTIFICATE REQUEST": "a certificate request (PKCS#10)",
    "X509 CRL": "a list of revoked certificates",
    "PKCS7": "a message or a list of certificates (PKCS#7)",
    "CMS": "a message or a list of certificates (PKCS#7)",
    "EC PARAMETERS": "EC parameters",
    "DH PARAMETERS": "Diffie-Hellman parameters",
    "AGE ENCRYPTED FILE": "a file encrypted with age",
}
"""The kinds of documents, by PEM label."""
_BLOCK = re.compile(r"-----BEGIN ([^\n]{0,64}?)-----(.*?)-----END \1-----", re.DOTALL)
_BEGIN = re.compile(r"-----BEGIN ([^\n]{0,64}?)-----")
_PRIVATE_MEMBERS = frozenset({"priv", "d", "p", "q", "dp", "dq", "qi", "oth"})
_KEY_TYPES = frozenset({"RSA", "EC", "OKP", "oct"})
_JWK_ALGORITHMS_ELSEWHERE = frozenset(
    {"ML-DSA-44", "ML-KEM-512", "ML-KEM-768", "ML-KEM-1024", "ES256", "RS256", "EdDSA"}
)
DO_NOT_SEND = "do not send it; treat the key as known to anyone who has seen it"


class NotAPublicKeyError(ValueError):
    """The data is not a public key of a supported algorithm.

    The message completes the sentence "it is …". It names the kind of the data, and repeats none of
    it.
    """


_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32_BITS = 5
_BECH32_CHECKSUM = 6
"""The number of characters of the checksum."""

_RSA = bytes.fromhex("06092a864886f70d0101010500")
_EC = bytes.fromhex("06072a8648ce3d0201")
LEGACY_IDENTIFIER: Mapping[Algorithm, bytes] = {
    **dict.fromkeys(LEGACY, _RSA),
    Algorithm.ECDSA_P_256: _EC + bytes.fromhex("06082a8648ce3d030107"),
    Algorithm.ECDSA_P_384: _EC + bytes.fromhex("06052b81040022"),
    Algorithm.ECDSA_P_521: _EC + bytes.fromhex("06052b81040023"),
}
"""DER: object identifier and parameters of legacy keys, by RFC 3279 and RFC 5480. The key's bits
are an RSAPublicKey (RFC 8017), or an uncompressed point (SEC 1)."""


def algorithm_identifier(algorithm: Algorithm) -> bytes:
    """Return the DER of an AlgorithmIdentifier. Only legacy algorithms have parameters."""
    content = LEGACY_IDENTIFIER.get(algorithm) or OBJECT_IDENTIFIER[algorithm]
    return der(SEQUENCE, content)


def to_der(algorithm: Algorithm, public_key: bytes) -> bytes:
    """Return a public key as SubjectPublicKeyInfo."""
    bits = der(BIT_STRING, b"\x00" + public_key)
    return der(SEQUENCE, algorithm_identifier(algorithm) + bits)


def _der_prefix(algorithm: Algorithm) -> bytes:
    size = ALGORITHMS[algorithm].public_key_size
    return to_der(algorithm, bytes(size))[:-size]


_PREFIXES: Mapping[Algorithm, bytes] = {
    algorithm: _der_prefix(algorithm) for algorithm in KEY_PAIRS
}


def from_der(data: bytes) -> tuple[Algorithm, bytes]:
    """Return the algorithm and public key of a SubjectPublicKeyInfo or a certificate.

    The key has its algorithm's size; its first use checks its validity. A certificate is not
    verified. Raises NotAPublicKeyError.
    """
    for algorithm, prefix in _PREFIXES.items():
        public_key = data[len(prefix) :]
        if data.startswith(prefix) and len(public_key) == ALGORITHMS[algorithm].public_key_size:
            return algorithm, public_key
    view = memoryview(data)
    try:
        certified = bytes(certified_key(view))
    except DerError:
        raise _not(form_of(view) or "not the DER of a public key") from None
    if certified == data:
        raise _not("a certificate without a key")
    try:
        return from_der(certified)
    except NotAPublicKeyError as error:
        raise _not(f"a certificate with {error}") from None


def _not(form: str) -> NotAPublicKeyError:
    is_private = "private key" in form
    return NotAPublicKeyError(f"{form}: {DO_NOT_SEND}" if is_private else form)


def to_pem(algorithm: Algorithm, public_key: bytes) -> str:
    """Return a public key as PEM (RFC 7468)."""
    text = b64encode(to_der(algorithm, public_key)).decode("ascii")
    lines = (text[start : start + _PEM_LINE] for start in range(0, len(text), _PEM_LINE))
    return "\n".join((f"-----BEGIN {PEM_LABEL}-----", *lines, f"-----END {PEM_LABEL}-----", ""))


def from_pem(text: str) -> tuple[Algorithm, bytes]:
    """Return the algorithm and public key of a text with one PEM block (RFC 7468).

    The block is a public key or a certificate. Text around it and white space in it are ignored.
    Raises NotAPublicKeyError.
    """
    begun = [_form_of_label(label) for label in _BEGIN.findall(text)]
    private = next((form for form in begun if "private key" in form), "")
    if private:
        raise _not(private)
    if len(begun) > 1:  # checked before the search for blocks, which takes quadratic time
        raise _not(f"{len(begun)} PEM blocks ({', '.join(sorted(set(begun)))}): send one")
    block = _BLOCK.search(text)
    if block is None:
        raise _not("PEM without its end line, or with another one" if begun else "not PEM")
    label, content = block.groups()
    if label not in {PEM_LABEL, *_CERTIFICATES}:
        raise _not(begun[0])
    try:
        data = b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError):
        raise _not("PEM with content that is not base64") from None
    return from_der(data)


def to_age(algorithm: Algorithm, public_key: bytes) -> str:
    """Return a public key as a recipient of age: Bech32 (BIP 173) without its length limit."""
    prefix = AGE_PREFIXES[algorithm]
    bits = int.from_bytes(public_key, "big") << -8 * len(public_key) % _BECH32_BITS
    count = -(-8 * len(public_key) // _BECH32_BITS)
    values = [bits >> _BECH32_BITS * place & 31 for place in reversed(range(count))]
    expanded = [*(ord(one) >> 5 for one in prefix), 0, *(ord(one) & 31 for one in prefix)]
    checksum = _bech32_remainder((*expanded, *values, *bytes(_BECH32_CHECKSUM))) ^ 1
    values += [checksum >> _BECH32_BITS * place & 31 for place in reversed(range(_BECH32_CHECKSUM))]
    return f"{prefix}1{''.join(_BECH32[value] for value in values)}"


def _bech32_remainder(values: Iterable[int]) -> int:
    remainder = 1
    for value in values:
        top = remainder >> 25
        remainder = (remainder & 0x1FFFFFF) << _BECH32_BITS ^ value
        for place, generator in enumerate(_BECH32_GENERATORS):
            remainder ^= generator if top >> place & 1 else 0
    return remainder


def _form_of_label(label: str) -> str:
    unknown = "a private key" if "PRIVATE KEY" in label else "an unknown block"
    return _LABELS.get(label, unknown)


def from_jwk(members: Mapping[str, object]) -> tuple[Algorithm, bytes]:
    """Return the algorithm and public key of a JWK of key type AKP (RFC 9964).

    Only the members ``kty``, ``alg`` and ``pub`` are read. Raises NotAPublicKeyError.
    """
    kind, alg, pub = (members.get(name) for name in ("kty", "alg", "pub"))
    kind, alg = (value if isinstance(value, str) else "" for value in (kind, alg))
    if "keys" in members and not kind:
        raise _not("a JWK Set: send one of its keys")
    if not members.keys().isdisjoint(_PRIVATE_MEMBERS):
        raise _not("a JWK with a private key")
    if kind != "AKP":
        raise _not(f"a JWK of key type {kind}" if kind in _KEY_TYPES else "not a JWK of type AKP")
    algorithm = next((key for key, name in JWK_ALGORITHM.items() if name == alg), None)
    if algorithm is None:
        name = alg if alg in _JWK_ALGORITHMS_ELSEWHERE else "an algorithm without a JWK form here"
        raise _not(f"a JWK of {name}")
    try:
        text = pub if isinstance(pub, str) else ""
        public_key = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        public_key = b""
    if base64url(public_key) != pub:
        raise _not(f"a JWK of {alg} with a pub that is not base64url without padding")
    size = ALGORITHMS[algorithm].public_key_size
    if len(public_key) != size:
        raise _not(f"a JWK of {alg} with a key of {len(public_key):,} bytes, not {size:,}")
    return algorithm, public_key


class Jwk(msgspec.Struct, frozen=True, kw_only=True):
    """A public key as JWK, of key type AKP (RFC 9964)."""

    kid: str
    kty: str = "AKP"
    alg: str
    use: str = "sig"
    pub: str


def to_jwk(algorithm: Algorithm, public_key: bytes) -> Jwk:
    """Return a public key as JWK. Raises KeyError if the algorithm is not in JWK_ALGORITHM."""
    alg = JWK_ALGORITHM[algorithm]
    return Jwk(kid=thumbprint(alg, public_key), alg=alg, pub=base64url(public_key))


def thumbprint(alg: str, public_key: bytes) -> str:
    """Return a key's thumbprint (RFC 7638), over the members that RFC 9964 requires for AKP."""
    members = {"alg": alg, "kty": "AKP", "pub": base64url(public_key)}
    return base64url(sha256(_ENCODER.encode(members)).digest())


def base64url(data: bytes) -> str:
    """Return base64url without padding (RFC 7515, section 2)."""
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")

"""Legacy algorithms. They only read: RSA-OAEP decrypts, RSA and ECDSA verify.

RSA is RFC 8017: RSAES-OAEP with MGF1 of the same hash function, RSASSA-PKCS1-v1_5, and RSASSA-PSS
with a salt of any length. ECDSA is FIPS 186-5, with a signature in DER or as r || s. PKCS#1 v1.5
decryption is not here: an attacker who learns whether its padding was valid can decrypt.

    public key of RSA         RSAPublicKey (RFC 8017, appendix A.1.1)
    public key of ECDSA       04 || x || y (SEC 1)
    stored key that decrypts  PrivateKeyInfo (RFC 5208) in DER, as the library writes it
    stored key that verifies  its public key: the private key is never imported
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)

from pqkeep_keyservice.crypto.dem import DecryptionError
from pqkeep_keyservice.crypto.key_wrapping import PrivateKeyError
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm
from pqkeep_protocol.errors import ErrorKind

MIN_RSA_BITS, MAX_RSA_BITS = 2048, 4096
MAX_EXPONENT_BITS = 64
"""Bits of the public exponent. Nearly all keys have 65537."""


class DecryptionKey:
    """The private half of an RSA-OAEP key."""

    def __init__(self, private: rsa.RSAPrivateKey, hash_: hashes.HashAlgorithm) -> None:
        self._private = private
        self._hash = hash_

    def decrypt(self, ciphertext: bytes, label: bytes) -> bytes:
        """Return the plaintext. Raises DecryptionError on every failure."""
        padding = OAEP(MGF1(self._hash), self._hash, label or None)
        try:
            return self._private.decrypt(ciphertext, padding)
        except ValueError:
            raise DecryptionError from None

    def public_bytes(self) -> bytes:
        """Return the RSAPublicKey."""
        return _rsa_public_bytes(self._private.public_key())


@dataclass(frozen=True, slots=True)
class Decryption:
    """RSA-OAEP with one hash function."""

    hash: hashes.HashAlgorithm

    def adopt(self, document: Secret) -> tuple[bytes, Secret]:
        """Return the public key and the stored form of a private key: PKCS#8 or PKCS#1 in DER.

        The numbers must agree, and the key must decrypt a ciphertext of its own. Raises
        PrivateKeyError.
        """
        try:
            unchecked = load_der_private_key(
                document.reveal(), None, unsafe_skip_rsa_key_validation=True
            )
        except UnsupportedAlgorithm:
            raise PrivateKeyError(ErrorKind.PRIVATE_KEY_ALGORITHM) from None
        except (ValueError, TypeError):  # TypeError: the document is encrypted
            raise PrivateKeyError(ErrorKind.PRIVATE_KEY_MALFORMED) from None
        if not isinstance(unchecked, rsa.RSAPrivateKey) or _is_for_pss_only(document):
            raise PrivateKeyError(ErrorKind.PRIVATE_KEY_ALGORITHM)
        public = unchecked.public_key()
        require_parameters(public)
        if not (_agree(unchecked.private_numbers()) and _decrypts(unchecked)):
            raise PrivateKeyError(ErrorKind.PRIVATE_KEY_CONTRADICTION)
        stored = unchecked.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return _rsa_public_bytes(public), Secret(stored)

    def load_seed(self, seed: Secret) -> DecryptionKey:
        """Load a stored key. Its parts were checked when it was imported."""
        private = load_der_private_key(seed.reveal(), None, unsafe_skip_rsa_key_validation=True)
        if not isinstance(private, rsa.RSAPrivateKey):
            raise ValueError("a stored key is not of RSA")  # noqa: TRY004 - a damaged row
        return DecryptionKey(private, self.hash)


Verify = Callable[[bytes, bytes, "hashes.HashAlgorithm | Prehashed"], None]


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """The public half of a key that signed with RSA or ECDSA."""

    _verify: Verify
    _hash: hashes.HashAlgorithm

    def verify(self, signature: bytes, message: bytes, context: bytes = b"") -> None:
        """Raise InvalidSignature unless the signature is valid. There are no contexts."""
        if context:
            raise InvalidSignature
        self._verify(signature, message, self._hash)

    def verify_digest(self, signature: bytes, digest: bytes, hash_: HashAlgorithm) -> None:
        """Raise InvalidSignature unless the signature over a digest is valid."""
        self._verify(signature, digest, Prehashed(_HASH[hash_]))


@dataclass(frozen=True, slots=True)
class RsaVerification:
    """RSASSA-PKCS1-v1_5 or RSASSA-PSS with one hash function."""

    hash: hashes.HashAlgorithm
    is_pss: bool

    def adopt(self, document: Secret) -> tuple[bytes, Secret]:
        """Return a public key, twice: in its encoding, and in its stored form.

        The document is a SubjectPublicKeyInfo. Raises PrivateKeyError.
        """
        public = _public_key(document)
        is_allowed = self.is_pss or not _is_for_pss_only(document)
        if not isinstance(public, rsa.RSAPublicKey) or not is_allowed:
            raise PrivateKeyError(ErrorKind.PRIVATE_KEY_ALGORITHM)
        require_parameters(public)
        data = _rsa_public_bytes(public)
        return data, Secret(data)

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a public key. Raises ValueError."""
        public = load_der_public_key(data)
        if not isinstance(public, rsa.RSAPublicKey):
            raise ValueError("not a public key of RSA")  # noqa: TRY004 - a damaged row
        padding = PSS(MGF1(self.hash), PSS.AUTO) if self.is_pss else PKCS1v15()

        def verify(signature: bytes, data: bytes, hash_: hashes.HashAlgorithm | Prehashed) -> None:
            public.verify(signature, data, padding, hash_)

        return VerifyingKey(verify, self.hash)


@dataclass(frozen=True, slots=True)
class EcdsaVerification:
    """ECDSA with one curve."""

    curve: ec.EllipticCurve
    hash: hashes.HashAlgorithm
    """Of a message. A digest comes with the name of its hash function."""

    def adopt(self, document: Secret) -> tuple[bytes, Secret]:
        """Return a public key, twice: in its encoding, and in its stored form.

        The document is a SubjectPublicKeyInfo. Raises PrivateKeyError.
        """
        public = _public_key(document)
        if (
            not isinstance(public, ec.EllipticCurvePublicKey)
            or public.curve.name != self.curve.name
        ):
            raise PrivateKeyError(ErrorKind.PRIVATE_KEY_ALGORITHM)
        data = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return data, Secret(data)

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a public key. Raises ValueError."""
        public = ec.EllipticCurvePublicKey.from_encoded_point(self.curve, data)
        size = (self.curve.key_size + 7) // 8

        def verify(signature: bytes, data: bytes, hash_: hashes.HashAlgorithm | Prehashed) -> None:
            if len(signature) == 2 * size:  # in DER, one signature in 2^60 is so short
                r, s = int.from_bytes(signature[:size]), int.from_bytes(signature[size:])
                try:
                    public.verify(encode_dss_signature(r, s), data, ec.ECDSA(hash_))
                except InvalidSignature:
                    pass
                else:
                    return
            public.verify(signature, data, ec.ECDSA(hash_))

        return VerifyingKey(verify, self.hash)


Verification = RsaVerification | EcdsaVerification


def _public_key(document: Secret) -> object:
    try:
        return load_der_public_key(bytes(document.reveal()))
    except UnsupportedAlgorithm:
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_ALGORITHM) from None
    except ValueError:
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_MALFORMED) from None


def _is_for_pss_only(document: Secret) -> bool:
    """Return whether a document's algorithm is RSASSA-PSS (RFC 4055), which allows nothing else."""
    return _ID_RSASSA_PSS in bytes(document.reveal()[:_HEADER])


_ID_RSASSA_PSS = bytes.fromhex("06092a864886f70d01010a")
_HEADER = 32
"""A document's algorithm begins within this many bytes."""


def require_parameters(public: rsa.RSAPublicKey) -> None:
    """Raise PrivateKeyError on a size or a public exponent that is not supported."""
    exponent = public.public_numbers().e
    is_supported = (
        MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS
        and exponent % 2 == 1
        and exponent > 1
        and exponent.bit_length() <= MAX_EXPONENT_BITS
    )
    if not is_supported:
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_PARAMETERS)


def _agree(numbers: rsa.RSAPrivateNumbers) -> bool:
    """Return whether a private key's numbers are those of RFC 8017, section 3.2.

    The library also tests the primes, which takes seconds for 4096 bits and hours for longer ones.
    A composite number makes a weak key, as other bad primes do. Only its owner is harmed.
    """
    p, q, d = numbers.p, numbers.q, numbers.d
    modulus, exponent = numbers.public_numbers.n, numbers.public_numbers.e
    return (
        p * q == modulus
        and min(p, q) > 2  # noqa: PLR2004 - odd primes
        and modulus % 2 == 1
        and 0 < d < modulus
        and (d * exponent - 1) % (p - 1) == 0
        and (d * exponent - 1) % (q - 1) == 0
        and numbers.dmp1 == d % (p - 1)
        and numbers.dmq1 == d % (q - 1)
        and 0 < numbers.iqmp < p
        and numbers.iqmp * q % p == 1
    )


def _decrypts(private: rsa.RSAPrivateKey) -> bool:
    """Return whether a private key decrypts a ciphertext of its public key."""
    padding = OAEP(MGF1(hashes.SHA256()), hashes.SHA256(), None)
    text = os.urandom(32)
    try:
        return private.decrypt(private.public_key().encrypt(text, padding), padding) == text
    except ValueError:
        return False


def _rsa_public_bytes(public: rsa.RSAPublicKey) -> bytes:
    return public.public_bytes(Encoding.DER, PublicFormat.PKCS1)


_HASH: Mapping[HashAlgorithm, hashes.HashAlgorithm] = {
    HashAlgorithm.SHA_256: hashes.SHA256(),
    HashAlgorithm.SHA_384: hashes.SHA384(),
    HashAlgorithm.SHA_512: hashes.SHA512(),
}
DECRYPTION: Mapping[Algorithm, Decryption] = {
    Algorithm.RSA_OAEP_SHA_1: Decryption(hashes.SHA1()),  # noqa: S303 - collisions do not matter
    Algorithm.RSA_OAEP_SHA_256: Decryption(hashes.SHA256()),
    Algorithm.RSA_OAEP_SHA_384: Decryption(hashes.SHA384()),
    Algorithm.RSA_OAEP_SHA_512: Decryption(hashes.SHA512()),
}
VERIFICATION: Mapping[Algorithm, Verification] = {
    Algorithm.RSA_PKCS1_SHA_256: RsaVerification(hashes.SHA256(), is_pss=False),
    Algorithm.RSA_PKCS1_SHA_384: RsaVerification(hashes.SHA384(), is_pss=False),
    Algorithm.RSA_PKCS1_SHA_512: RsaVerification(hashes.SHA512(), is_pss=False),
    Algorithm.RSA_PSS_SHA_256: RsaVerification(hashes.SHA256(), is_pss=True),
    Algorithm.RSA_PSS_SHA_384: RsaVerification(hashes.SHA384(), is_pss=True),
    Algorithm.RSA_PSS_SHA_512: RsaVerification(hashes.SHA512(), is_pss=True),
    Algorithm.ECDSA_P_256: EcdsaVerification(ec.SECP256R1(), hashes.SHA256()),
    Algorithm.ECDSA_P_384: EcdsaVerification(ec.SECP384R1(), hashes.SHA384()),
    Algorithm.ECDSA_P_521: EcdsaVerification(ec.SECP521R1(), hashes.SHA512()),
}

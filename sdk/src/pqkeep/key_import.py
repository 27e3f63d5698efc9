"""Wraps a private key for import. Only the key service can unwrap it.

    import_key = client.keys.get_import_key("Dilithium3")
    client.keys.import_key(import_key, wrap(import_key, Path("key.pem").read_bytes()))

docs/formats.md lists the forms of private keys. It needs the extra ``pqkeep[local]``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha3_256, sha256, shake_256

from pqkeep import inputs
from pqkeep._data import Data, json_object, strict_json
from pqkeep.algorithms import LEGACY, LEGACY_DECRYPTING, Algorithm
from pqkeep.errors import (
    InvalidRequestError,
    MalformedResponseError,
    UnreadableInputError,
    how_to_install,
)
from pqkeep.models import ImportKey
from pqkeep.resources.keys import import_key_in

try:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.asymmetric.mldsa import (
        MLDSA65PrivateKey,
        MLDSA87PrivateKey,
    )
    from cryptography.hazmat.primitives.asymmetric.mlkem import (
        MLKEM768PrivateKey,
        MLKEM1024PrivateKey,
        MLKEM1024PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_der_private_key,
        load_der_public_key,
    )
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        f"importing keys is not installed: {how_to_install('local')}", name="cryptography"
    ) from None

__all__ = ["PrivateKey", "read_import_key", "read_private_key", "wrap"]

SUITE = "ML-KEM-1024, HKDF-SHA-384, AES-256-GCM"
_CONTRADICTION = "export the key again from its source: its parts contradict each other"
_IMPORT_KEY_SIZE = 1568
_SCALAR_AT = slice(32 + 7, 32 + 7 + 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateKey:
    """A private key with its public key and algorithm."""

    algorithm: str
    public_key: bytes = field(repr=False)
    pkcs8: bytes = field(repr=False)
    """The private key in the service's form, with only the seed. For a legacy key that verifies: its
    SubjectPublicKeyInfo, without the private key."""
    form: str
    """A description of the file's form, for messages."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, in hexadecimal digits."""
        return sha256(self.public_key).hexdigest()


def read_private_key(
    data: bytes, algorithm: str, *, expected_public_key: bytes | None = None
) -> PrivateKey:
    """Return the private key in a file. It must be of this algorithm.

    The public key is computed from the seed. It must match the expanded key and the public key in
    the file, if they are there. It must also match ``expected_public_key``, in any form that
    ``inputs.read_public_key`` takes. Raises UnreadableInputError.

    For a legacy algorithm (RSA, ECDSA) the file is PKCS#8, PKCS#1 or SEC 1. If it only verifies, the
    file may also be a public key or a certificate.
    """
    algorithm = inputs.canonical(algorithm)
    if algorithm in LEGACY:
        return _legacy_key(data, Algorithm(algorithm), expected_public_key)
    held, form = inputs.read_private_key(data, algorithm)
    public_key = _derived(algorithm, held)
    key = PrivateKey(
        algorithm=algorithm,
        public_key=public_key,
        pkcs8=inputs.seed_form(algorithm, held.seed),
        form=form,
    )
    if expected_public_key is not None:
        found = inputs.read_public_key(expected_public_key, algorithm=algorithm)
        expected = found.public_key
        if algorithm not in found.algorithms:
            raise UnreadableInputError(
                f"{form}, and the expected public key is {found.what}",
                "name the public key that belongs to the private key",
            )
        if expected != public_key:
            raise UnreadableInputError(
                f"{form} with another public key than the expected one: its fingerprint is "
                f"{key.fingerprint}, and not {sha256(expected).hexdigest()}",
                "name the private key that belongs to the expected public key",
            )
    return key


def _legacy_key(
    data: bytes, algorithm: Algorithm, expected_public_key: bytes | None = None
) -> PrivateKey:
    """Return a key of RSA or an elliptic curve. Raises UnreadableInputError."""
    decrypts = algorithm in LEGACY_DECRYPTING
    needed = f"a private key for {algorithm}" if decrypts else f"a key for {algorithm}"
    document, form = inputs.read_other_key(data, needed)
    private: object = None
    try:
        if "private key" in form:
            private = load_der_private_key(document, None)
            public: object = private.public_key()
        else:
            public = load_der_public_key(document)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UnreadableInputError(
            f"{form} that is damaged or unsupported", _CONTRADICTION
        ) from None
    public_key, held = _legacy_forms(algorithm, public)
    if decrypts:
        held = _rsa_pkcs8(private)
    is_for_pss_only = "RSASSA-PSS" in form and not algorithm.startswith("RSA-PSS")
    if not (public_key and held) or is_for_pss_only:
        raise UnreadableInputError(
            f"{form}; {needed} is needed", "name that key's file, or the other algorithm"
        )
    key = PrivateKey(algorithm=algorithm, public_key=public_key, pkcs8=held, form=form)
    if expected_public_key is not None:
        like = Algorithm.RSA_PKCS1_SHA_256 if decrypts else algorithm
        expected = _legacy_key(expected_public_key, like)
        if expected.public_key != public_key:
            raise UnreadableInputError(
                f"{form} with another public key than the expected one: its fingerprint is "
                f"{key.fingerprint}, and not {expected.fingerprint}",
                "name the private key that belongs to the expected public key",
            )
    return key


def _legacy_forms(algorithm: Algorithm, public: object) -> tuple[bytes, bytes]:
    """Return a public key in the service's encoding and as a document; empty for a wrong key."""
    curve = _CURVES.get(algorithm)
    if isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == curve:
        data = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    elif isinstance(public, rsa.RSAPublicKey) and curve is None:
        data = public.public_bytes(Encoding.DER, PublicFormat.PKCS1)
    else:
        return b"", b""
    return data, public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _rsa_pkcs8(private: object) -> bytes:
    """Return PKCS#8 of an RSA key; empty for other keys."""
    if not isinstance(private, rsa.RSAPrivateKey):
        return b""
    return private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


_CURVES: Mapping[str, str] = {
    Algorithm.ECDSA_P_256: "secp256r1",
    Algorithm.ECDSA_P_384: "secp384r1",
    Algorithm.ECDSA_P_521: "secp521r1",
}


def wrap(
    import_key: ImportKey,
    private_key: bytes | PrivateKey,
    *,
    expected_public_key: bytes | None = None,
) -> bytes:
    """Wrap a private key, or the content of its file, for an import key.

    Raises UnreadableInputError if the private key is of another algorithm, is inconsistent, or does
    not match ``expected_public_key``. Raises InvalidRequestError for an import key of an unknown
    suite.
    """
    if import_key.suite != SUITE:
        raise InvalidRequestError(
            f"the service wraps with {import_key.suite}, which this client does not know: "
            "use a newer client"
        )
    if isinstance(private_key, bytes):
        private_key = read_private_key(
            private_key, import_key.algorithm, expected_public_key=expected_public_key
        )
    if private_key.algorithm != inputs.canonical(import_key.algorithm):
        raise InvalidRequestError(
            f"the private key is of {private_key.algorithm}, and the import key is for "
            f"{import_key.algorithm}: get an import key of {private_key.algorithm}"
        )
    try:
        public_key = MLKEM1024PublicKey.from_public_bytes(import_key.public_key)
    except ValueError:
        raise InvalidRequestError("the import key is damaged: get another one") from None
    suite = Suite(KEM.MLKEM1024, KDF.HKDF_SHA384, AEAD.AES_256_GCM)
    return suite.encrypt(private_key.pkcs8, public_key, import_key.info)


def read_import_key(document: bytes) -> ImportKey:
    """Read an import key that was saved as JSON, as the portal does.

    Raises UnreadableInputError if it is not an import key.
    """
    text = inputs.as_text(document)
    try:
        values = json_object(strict_json(text or ""))
        import_key = import_key_in(Data(values or {}, None))
        if import_key.keyring and len(import_key.public_key) == _IMPORT_KEY_SIZE:
            return import_key
    except (ValueError, MalformedResponseError):
        pass
    raise UnreadableInputError(
        f"{inputs.describe(document)}; an undamaged import key is needed",
        "save the import key again",
    )


def _derived(algorithm: str, held: inputs.Material) -> bytes:
    """Return the public key of a seed. All other parts of the file must fit the key."""
    try:
        public_key = _PUBLIC_KEYS[algorithm](held.seed)
    except ValueError:
        raise UnreadableInputError(
            f"a private key of {inputs.title(algorithm)} that is out of range",
            "export the key again from its source",
        ) from None
    if any(known != public_key for known in held.public_keys):
        raise UnreadableInputError(
            f"a private key of {inputs.title(algorithm)} with another key's public key in the file",
            _CONTRADICTION,
        )
    if held.beside and public_key not in held.beside:
        raise UnreadableInputError(
            f"a private key of {inputs.title(algorithm)} beside a public key or a certificate "
            "of another one",
            "name a file with only the private key, or add its own certificate",
        )
    if held.point is not None and not _is_point_of(held.point, public_key):
        raise UnreadableInputError(
            f"a private key of {inputs.title(algorithm)} with another key's elliptic-curve public key "
            "in the file",
            _CONTRADICTION,
        )
    if held.expanded is not None:
        differing = _EXPANDED[algorithm](held.seed, public_key, held.expanded)
        if differing:
            raise UnreadableInputError(
                f"a private key of {inputs.title(algorithm)} with contradictory seed and expanded key "
                f"(in {', '.join(differing)})",
                _CONTRADICTION,
            )
    return public_key


def _is_point_of(point: bytes, public_key: bytes) -> bool:
    """Return True if a point of P-256, compressed or not, is in a composite public key."""
    own = public_key[-65:]
    return point in {own, bytes((2 + (own[-1] & 1),)) + own[1:33]}


def _ml_kem_differences(seed: bytes, public_key: bytes, expanded: bytes) -> list[str]:
    """Compare the parts of dk = dk_PKE || ek || H(ek) || z with the seed (FIPS 203)."""
    parts = {"ek": public_key, "H(ek)": sha3_256(public_key).digest(), "z": seed[32:]}
    return _differing(expanded, len(expanded) - len(public_key) - 64, parts)


def _ml_dsa_differences(dimensions: bytes) -> Callable[[bytes, bytes, bytes], list[str]]:
    """Return a function that compares rho || K || tr with the seed (FIPS 204, algorithm 6)."""

    def differences(seed: bytes, public_key: bytes, expanded: bytes) -> list[str]:
        hashed = shake_256(seed + dimensions).digest(128)
        parts = {
            "rho": public_key[:32],
            "K": hashed[96:],
            "tr": shake_256(public_key).digest(64),
        }
        return _differing(expanded, 0, parts)

    return differences


def _differing(data: bytes, at: int, parts: Mapping[str, bytes]) -> list[str]:
    found: list[str] = []
    for name, value in parts.items():
        if data[at : at + len(value)] != value:
            found.append(name)
        at += len(value)
    return found


def _x_wing(seed: bytes) -> bytes:
    expanded = shake_256(seed).digest(96)
    m_key = MLKEM768PrivateKey.from_seed_bytes(expanded[:64]).public_key().public_bytes_raw()
    x_key = X25519PrivateKey.from_private_bytes(expanded[64:]).public_key().public_bytes_raw()
    return m_key + x_key


def _composite(seed: bytes) -> bytes:
    scalar = int.from_bytes(seed[_SCALAR_AT])
    point = ec.derive_private_key(scalar, ec.SECP256R1()).public_key()
    m_key = MLDSA65PrivateKey.from_seed_bytes(seed[:32]).public_key().public_bytes_raw()
    return m_key + point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _slh_dsa(seed: bytes) -> bytes:
    """Return the public half of a private key. The key service tests that both halves match."""
    return seed[len(seed) // 2 :]


_PUBLIC_KEYS: Mapping[str, Callable[[bytes], bytes]] = {
    Algorithm.ML_KEM_768: lambda seed: (
        MLKEM768PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    ),
    Algorithm.ML_KEM_1024: lambda seed: (
        MLKEM1024PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    ),
    Algorithm.X_WING: _x_wing,
    Algorithm.ML_DSA_65: lambda seed: (
        MLDSA65PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    ),
    Algorithm.ML_DSA_87: lambda seed: (
        MLDSA87PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    ),
    Algorithm.COMPOSITE_ML_DSA: _composite,
    Algorithm.SLH_DSA_SHA2_128S: _slh_dsa,
    Algorithm.SLH_DSA_SHA2_128F: _slh_dsa,
    Algorithm.SLH_DSA_SHA2_192S: _slh_dsa,
    Algorithm.SLH_DSA_SHA2_256S: _slh_dsa,
}
_EXPANDED: Mapping[str, Callable[[bytes, bytes, bytes], list[str]]] = {
    Algorithm.ML_KEM_768: _ml_kem_differences,
    Algorithm.ML_KEM_1024: _ml_kem_differences,
    Algorithm.ML_DSA_65: _ml_dsa_differences(bytes((6, 5))),
    Algorithm.ML_DSA_87: _ml_dsa_differences(bytes((8, 7))),
}
"""Compares an expanded key with its seed. Returns the names of the parts that differ."""

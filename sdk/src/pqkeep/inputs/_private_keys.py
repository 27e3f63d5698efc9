"""Reads the contents of private keys: from PKCS#8, from a JWK, or as raw bytes.

    ML-KEM (RFC 9935), ML-DSA (RFC 9881) = [0] seed | OCTET STRING expanded | SEQUENCE { both }
    SLH-DSA (RFC 9909), X-Wing           = the private key
    Composite-ML-DSA                     = the seed of ML-DSA-65 || ECPrivateKey (RFC 5915)

Some implementations add another OCTET STRING around these, or leave out the inner one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pqkeep.algorithms import PARAMETERS, Algorithm, Parameters, title
from pqkeep.errors import UnreadableInputError
from pqkeep.inputs import _der

_SEED, _EXPLICIT_SEED = 0x80, 0xA0
_M_SEED, _SCALAR = 32, 32
_EC_HEAD = bytes.fromhex("30310201010420")
_EC_TAIL = bytes.fromhex("a00a06082a8648ce3d030107")
_P_256 = _EC_TAIL[2:]
_MOST_LAYERS = 3
"""The most OCTET STRINGs inside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The contents of a private key."""

    seed: bytes = field(repr=False)
    """The private key in the service's storage form."""
    expanded: bytes | None = field(repr=False, default=None)
    public_keys: tuple[bytes, ...] = field(repr=False, default=())
    point: bytes | None = field(repr=False, default=None)
    """The elliptic-curve part of a composite public key."""
    beside: frozenset[bytes] = field(repr=False, default=frozenset())
    """Public keys of the algorithm in other blocks of the file, such as certificates."""


def material(algorithm: str, content: bytes) -> Material | None:
    """Return the contents of a private key, or None if its form is unknown.

    Raises UnreadableInputError if it has no seed.
    """
    parameters = PARAMETERS[algorithm]
    found = (
        _composite(content)
        if algorithm == Algorithm.COMPOSITE_ML_DSA
        else _material(parameters, content, _MOST_LAYERS)
    )
    if found is not None and not found.seed:
        raise UnreadableInputError(
            f"a private key of {title(algorithm)} that holds only the expanded key, and no seed",
            "export the key again with its seed; an expanded key alone cannot be imported",
        )
    return found


def _material(parameters: Parameters, content: bytes, layers: int) -> Material | None:
    """Return the contents of a private key. The seed is empty if only the expanded key is there."""
    alone = _by_length(parameters, content)
    if alone is not None:
        return alone
    try:
        tag, inner = _der.single(content)
        if tag == _SEED:
            is_seed = len(inner) == parameters.seed and parameters.expanded is not None
            return Material(seed=inner) if is_seed else None
        if tag == _EXPLICIT_SEED:
            is_seed = _der.single(inner)[:1] == (_der.OCTET_STRING,)
            return _by_length(parameters, inner[2:]) if is_seed else None
        if tag == _der.OCTET_STRING and layers:
            return _material(parameters, inner, layers - 1)
        return _both(parameters, _der.elements(inner)) if tag == _der.SEQUENCE else None
    except _der.DerError:
        return None


def _by_length(parameters: Parameters, content: bytes) -> Material | None:
    """Return the contents of raw bytes: a seed or an expanded key, maybe with another part.

    None for other lengths.
    """
    seed, expanded, public_key = parameters.seed, parameters.expanded, parameters.public_key
    size = len(content)
    if size == seed:
        return Material(seed=content)
    if expanded is None:
        return None
    if size in {expanded, expanded + public_key}:
        return Material(seed=b"", expanded=content[:expanded])
    if size == seed + public_key:
        return Material(seed=content[:seed], public_keys=(content[seed:],))
    if size == seed + expanded:
        return Material(seed=content[:seed], expanded=content[seed:])
    return None


def _both(parameters: Parameters, members: Sequence[_der.Element]) -> Material | None:
    sizes = [(member.tag, len(member.content)) for member in members]
    right = [(_der.OCTET_STRING, parameters.seed), (_der.OCTET_STRING, parameters.expanded)]
    if sizes != right:
        return None
    return Material(seed=members[0].content, expanded=members[1].content)


def _composite(content: bytes) -> Material | None:
    """Return the contents of a composite private key, with the curve's part in the service's form."""
    if len(content) > _M_SEED and content[_M_SEED] == _der.SEQUENCE:
        try:
            half = _ec_private_key(content[_M_SEED:])
        except _der.DerError:
            half = None
        if half is not None:
            return replace(half, seed=content[:_M_SEED] + half.seed)
    try:
        tag, inner = _der.single(content)
    except _der.DerError:
        return None
    return _composite(inner) if tag == _der.OCTET_STRING else None


def _ec_private_key(data: bytes) -> Material | None:
    """Return an ECPrivateKey of P-256 with the curve and without the public key."""
    members = _der.sequence(data)
    tags = tuple(member.tag for member in members)
    if tags[:2] != (_der.INTEGER, _der.OCTET_STRING) or members[0].content != b"\x01":
        return None
    scalar, point = members[1].content, None
    if len(scalar) != _SCALAR or tags[2:] not in {(), (0xA0,), (0xA1,), (0xA0, 0xA1)}:
        return None
    for tag, content in members[2:]:
        if tag == _EXPLICIT_SEED:  # the curve
            if content != _P_256:
                return None
        else:
            inner = _der.single(content)
            if inner.tag != _der.BIT_STRING or inner.content[:1] != b"\x00":
                return None
            point = inner.content[1:]
    return Material(seed=_EC_HEAD + scalar + _EC_TAIL, point=point)


def seed_form(algorithm: str, seed: bytes) -> bytes:
    """Return a private key as the PKCS#8 that the service accepts, with only the seed."""
    parameters = PARAMETERS[algorithm]
    content = seed if parameters.expanded is None else _der.encoded(_SEED, seed)
    identifier = _der.encoded(_der.SEQUENCE, _der.object_identifier(parameters.identifier))
    members = _der.encoded(_der.INTEGER, b"\x00") + identifier
    return _der.encoded(_der.SEQUENCE, members + _der.encoded(_der.OCTET_STRING, content))

"""Keys outside pqkeep, as a bill of materials of CycloneDX describes them.

Only short, checked texts of a document are kept, and never the document itself. A document that
contains a private key is refused, so that its owner notices the mistake.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, cast

import msgspec
import pybase64
from msgspec import UNSET, Struct, UnsetType

from pqkeep_gateway.storage.external_keys import MAX_TEXT, ExternalKey
from pqkeep_protocol.der import form_of
from pqkeep_protocol.documents import MalformedDocumentError, decode_json, is_printable

MAX_KEYS = 1_000
"""Keys in one document."""
MAX_DOCUMENT = 1_048_576
"""Characters of a document."""
_MAX_DEPTH = 64
_SHORTEST_KEY = 32
"""Characters below which a text cannot hold a private key in base64 or hexadecimal."""


class InvalidInventoryError(Exception):
    """A document cannot be taken. The message completes "document …", and repeats none of it."""


class _Property(Struct):
    name: str | UnsetType = UNSET
    value: str | UnsetType = UNSET


class _Occurrence(Struct):
    location: str | UnsetType = UNSET


class _Evidence(Struct):
    occurrences: tuple[_Occurrence, ...] = ()


class _Algorithm(Struct, rename="camel"):
    nist_quantum_security_level: int = 0


class _Related(Struct):
    type: str = ""
    ref: str = ""


class _Material(Struct, rename="camel"):
    type: str = ""
    state: str = ""
    algorithm_ref: str = ""
    related_cryptographic_assets: tuple[_Related, ...] = ()


class _CertificateState(Struct):
    state: str = ""


class _Certificate(Struct, rename="camel"):
    subject_public_key_ref: str = ""
    signature_algorithm_ref: str = ""
    certificate_state: tuple[_CertificateState, ...] = ()
    related_cryptographic_assets: tuple[_Related, ...] = ()


class _Crypto(Struct, rename="camel"):
    asset_type: str
    algorithm_properties: _Algorithm | None = None
    certificate_properties: _Certificate | None = None
    related_crypto_material_properties: _Material | None = None


class _Component(Struct, rename="camel"):
    type: str
    name: str
    bom_ref: str = msgspec.field(default="", name="bom-ref")
    crypto_properties: _Crypto | None = None
    properties: tuple[_Property, ...] = ()
    evidence: _Evidence | None = None
    components: tuple["_Component", ...] = ()


class _Bom(Struct, rename="camel"):
    bom_format: Literal["CycloneDX"]
    spec_version: Literal["1.6", "1.7"]
    components: tuple[_Component, ...] = ()


_KINDS = frozenset({"private-key", "public-key", "secret-key", "key"})
_PROPERTIES = ("place", "owner", "successor")


def read_inventory(text: str) -> tuple[ExternalKey, ...]:
    """Return the keys in a document of CycloneDX 1.6 or 1.7. Raises InvalidInventoryError."""
    try:
        _refuse_private_keys(decode_json(text, object))
        bom = decode_json(text, _Bom)
    except MalformedDocumentError:
        raise InvalidInventoryError(
            "must be a bill of materials of CycloneDX, version 1.6 or 1.7, as JSON"
        ) from None
    components = list(_flat(bom.components))
    algorithms = _algorithms(components)
    keys = tuple(
        key for component in components if (key := _key(component, algorithms)) is not None
    )
    if not keys:
        raise InvalidInventoryError("has no keys: no component is a key or a certificate")
    if len(keys) > MAX_KEYS:
        raise InvalidInventoryError(f"has more than {MAX_KEYS:,} keys: divide it into sources")
    return keys


def digest_of(source: str, keys: Sequence[ExternalKey]) -> bytes:
    """Return the SHA-256 of a source's name and keys, as RFC 8785 writes them."""
    content = {"keys": [msgspec.structs.asdict(key) for key in keys], "source": source}
    return sha256(msgspec.json.encode(content, order="sorted")).digest()


def _flat(components: Sequence[_Component], depth: int = 0) -> Iterator[_Component]:
    if depth == _MAX_DEPTH:
        raise InvalidInventoryError("is nested too deeply")
    for component in components:
        yield component
        yield from _flat(component.components, depth + 1)


def _key(component: _Component, algorithms: Mapping[str, _Component]) -> ExternalKey | None:
    """Return the key of a component; None for any other component."""
    crypto = component.crypto_properties
    if component.type != "cryptographic-asset" or crypto is None:
        return None
    material, certificate = crypto.related_crypto_material_properties, crypto.certificate_properties
    if certificate is not None:
        kind = "certificate"
        state = next((one.state for one in certificate.certificate_state if one.state), "")
        references = [certificate.subject_public_key_ref, *_references(certificate)]
        references.append(certificate.signature_algorithm_ref)
    elif material is not None and material.type in _KINDS:
        kind, state = material.type, material.state
        references = [material.algorithm_ref, *_references(material)]
    else:
        return None
    algorithm = _first(references, algorithms)
    said = {
        entry.name: entry.value
        for entry in component.properties
        if isinstance(entry.name, str) and isinstance(entry.value, str)
    }
    texts = {name: said.get(f"pqkeep:{name}", "") for name in _PROPERTIES}
    if not texts["place"] and component.evidence is not None:
        locations = [one.location for one in component.evidence.occurrences]
        texts["place"] = next((one for one in locations if isinstance(one, str)), "")
    level = 0 if algorithm is None else _level(algorithm)
    stated = said.get("pqkeep:moved")
    return ExternalKey(
        name=_checked("name", component.name),
        kind=cast("Any", kind),
        algorithm=_checked("algorithm", "" if algorithm is None else algorithm.name),
        state=_checked("state", state),
        **{name: _checked(name, text) for name, text in texts.items()},
        moved=stated == "true" if stated is not None else state == "destroyed" or level > 0,
    )


def _algorithms(components: Sequence[_Component]) -> dict[str, _Component]:
    """Return the algorithm with this reference, or of the key with this reference."""
    assets = {component.bom_ref: component for component in components if component.bom_ref}
    algorithms = {
        reference: asset
        for reference, asset in assets.items()
        if asset.crypto_properties is not None and asset.crypto_properties.asset_type == "algorithm"
    }
    of_keys: dict[str, _Component] = {}
    for reference, asset in assets.items():
        crypto = asset.crypto_properties
        material = None if crypto is None else crypto.related_crypto_material_properties
        if material is not None and reference not in algorithms:
            found = _first([material.algorithm_ref, *_references(material)], algorithms)
            if found is not None:
                of_keys[reference] = found
    return algorithms | of_keys


def _references(asset: _Material | _Certificate) -> Iterator[str]:
    return (related.ref for related in asset.related_cryptographic_assets)


def _first(references: Iterable[str], algorithms: Mapping[str, _Component]) -> _Component | None:
    """Return the first algorithm that is referred to, or None."""
    return next((algorithms[name] for name in references if name in algorithms), None)


def _level(algorithm: _Component) -> int:
    crypto = algorithm.crypto_properties
    properties = None if crypto is None else crypto.algorithm_properties
    return 0 if properties is None else properties.nist_quantum_security_level


def _checked(name: str, text: str) -> str:
    if len(text) > MAX_TEXT or not is_printable(text):
        raise InvalidInventoryError(
            f"has a key with a {name} that is not a printable text of at most {MAX_TEXT} characters"
        )
    return text


_MARKS = (
    (re.compile(r"BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"), "a private key in PEM"),
    (re.compile("PuTTY-User-Key-File-"), "a private key of PuTTY"),
    (re.compile("AGE-SECRET-KEY-", re.IGNORECASE), "a private key of age"),
)
_PRIVATE_JWK = "a private or secret key as a JWK"
_JSON_NAMES = re.compile(r'"([a-z]{1,8})\\{0,8}"\s{0,8}:')
"""The names in JSON that is a text, even a text in a text."""
_DATA_URL = re.compile(r"\Adata:[^,]{0,200},")
_JWK_SECRETS = frozenset({"d", "priv", "k", "p", "q", "dp", "dq", "qi", "oth"})
_SECRET_NAMES = frozenset(
    {
        "privatekey",
        "secretkey",
        "privkey",
        "secret",
        "seed",
        "password",
        "passphrase",
        "keymaterial",
    }
)
_SECRET_MATERIAL = frozenset(
    {
        *("private-key", "secret-key", "key", "seed", "shared-secret", "password", "credential"),
        *("token", "other", "unknown", "additional-data"),
    }
)
_is_hexadecimal = re.compile(r"(?:[0-9a-fA-F]{2}[:\s]?)+").fullmatch


def _refuse_private_keys(document: object) -> None:
    """Raise InvalidInventoryError, which names its kind, if a document has a private key."""
    waiting: list[tuple[object, int]] = [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise InvalidInventoryError("is nested too deeply")
        if isinstance(value, dict):
            members = cast("dict[str, object]", value)
            _refuse_members(members)
            waiting += [(member, depth + 1) for pair in members.items() for member in pair]
        elif isinstance(value, list):
            waiting += [(member, depth + 1) for member in cast("list[object]", value)]
        elif isinstance(value, str) and len(value) >= _SHORTEST_KEY and (kind := _private(value)):
            _refuse(kind)


def _refuse_members(members: Mapping[str, object]) -> None:
    if "kty" in members and _JWK_SECRETS & members.keys():
        _refuse(_PRIVATE_JWK)
    if members.get("value") and str(members.get("type")) in _SECRET_MATERIAL:
        _refuse("the value of a secret key")
    for name, value in members.items():
        folded = name.lower().replace("_", "").replace("-", "")
        if folded in _SECRET_NAMES and isinstance(value, str) and value:
            _refuse("a value under the name of a private key")
    stated = members.get("name")
    if isinstance(stated, str) and members.get("value"):
        folded = stated.lower().rpartition(":")[2].replace("_", "").replace("-", "")
        if folded in _SECRET_NAMES:
            _refuse("a value under the name of a private key")


def _private(text: str) -> str:
    """Return the kind of a private key in a text, or an empty text."""
    if kind := _marked(text):
        return kind
    data = _decoded(_DATA_URL.sub("", text, count=1))
    if data is None:
        return ""
    if kind := _marked(data.decode("latin-1")):
        return kind
    if data.startswith(b"openssh-key-v1\0"):
        return "an OpenSSH private key"
    form = form_of(memoryview(data))
    return form if "private key" in form else ""


def _marked(text: str) -> str:
    """Return the kind of a private key that a text names, or an empty text."""
    for mark, kind in _MARKS:
        if mark.search(text):
            return kind
    members = set(_JSON_NAMES.findall(text))
    return _PRIVATE_JWK if "kty" in members and _JWK_SECRETS & members else ""


def _decoded(text: str) -> bytes | None:
    """Return the bytes of a text in hexadecimal, base64 or base64url; None for any other text."""
    packed = "".join(text.split())
    if _is_hexadecimal(text):
        return bytes.fromhex(packed.replace(":", ""))
    packed = packed.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return pybase64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except ValueError:
        return None


def _refuse(kind: str) -> None:
    raise InvalidInventoryError(
        f"contains {kind}: it is not stored; treat the key as known to anyone who has seen it"
    )

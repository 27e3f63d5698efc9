"""/api/v1/inventory/cbom: the tenant's keys as a cryptographic bill of materials of CycloneDX.

A document describes at most MAX_KEYS key versions, which is one request to the key service. The same
state gives the same document: the serial number is derived from its content, and the timestamp is
the newest time in it. GET returns the document; POST signs it, with a record.
"""

import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.callers import PERMISSION_OF, Permission, may
from pqkeep_gateway.api import signature
from pqkeep_gateway.api.audit_data import instant
from pqkeep_gateway.api.errors import AUDIT_CODES, BAD_REQUEST_FIELDS, codes_of_operation, error_for
from pqkeep_gateway.api.key_fields import is_keyring_name
from pqkeep_gateway.api.key_operation import KeyAccess, Steps
from pqkeep_gateway.api.keys import AFTER, cursor_in_all
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Existing, Warned
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, forbidden, not_found
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    choice_field,
    integer_field,
)
from pqkeep_gateway.http.text import base64, timestamp
from pqkeep_gateway.shards import Shards
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Kind, Operation
from pqkeep_protocol.audit import (
    MAX_INVENTORY_LISTED,
    AuditKey,
    CountedLog,
    InventoryKey,
    ListAuditKeys,
    ListInventory,
)
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, KeyInfo, KeyStatus
from pqkeep_protocol.messages import (
    MAX_KEYS_LISTED,
    Attribution,
    Library,
    ListKeys,
    ListLibraries,
)
from pqkeep_protocol.metrics import GetMetrics
from pqkeep_protocol.tls_groups import NAMES, POST_QUANTUM

MAX_KEYS = MAX_KEYS_LISTED
"""Key versions in one document. With the longest names it is smaller than a payload of JWS."""

MAX_PRINCIPALS = 20
"""Entries by principal of one key version. With MAX_INVENTORY_LISTED they fit into a JWS."""
_GATEWAY = Attribution("", "gateway", "")
_ENCODER = msgspec.json.Encoder()

Json = dict[str, Any]


class SpecVersion(StrEnum):
    """The versions of CycloneDX."""

    V1_6 = "1.6"
    V1_7 = "1.7"


class Uses(StrEnum):
    """The uses that a document states."""

    NONE = "none"
    COUNTS = "counts"
    PRINCIPALS = "principals"


@dataclass(frozen=True, slots=True)
class Described:
    """An algorithm in the words of CycloneDX's registry of cryptography.

    ``level``: the security category of NIST; 0 if a quantum computer breaks it. ``bits``: the size
    of a private or symmetric key in the form that the key service stores; 0 for a legacy key.
    """

    name: str
    parameter_set: str
    level: int
    bits: int
    oid: str = ""
    family: str = ""
    """Empty for an algorithm that the registry does not have."""
    curve: str = ""


def _slh_dsa(kind: str, level: int, bytes_: int, arc: int) -> Described:
    oid = f"2.16.840.1.101.3.4.3.{arc}"
    return Described(f"SLH-DSA-{kind}", kind, level, 8 * 4 * bytes_, oid, "SLH-DSA")


def _legacy(name: str, oid: str, family: str, curve: str = "") -> Described:
    return Described(name, name.removeprefix(f"{family}-"), 0, 0, oid, family, curve)


_PSS = "1.2.840.113549.1.1.10"
DESCRIBED: Mapping[Algorithm, Described] = {
    Algorithm.ML_KEM_768: Described(
        "ML-KEM-768", "768", 3, 512, "2.16.840.1.101.3.4.4.2", "ML-KEM"
    ),
    Algorithm.X_WING: Described(
        "X-Wing", "ML-KEM-768+X25519", 3, 256, "1.3.6.1.4.1.62253.25722", curve="other/Curve25519"
    ),
    Algorithm.ML_KEM_1024: Described(
        "ML-KEM-1024", "1024", 5, 512, "2.16.840.1.101.3.4.4.3", "ML-KEM"
    ),
    Algorithm.ML_DSA_65: Described("ML-DSA-65", "65", 3, 256, "2.16.840.1.101.3.4.3.18", "ML-DSA"),
    Algorithm.COMPOSITE_ML_DSA: Described(
        "MLDSA65-ECDSA-P256-SHA512",
        "ML-DSA-65+ECDSA-P-256",
        3,
        664,
        "1.3.6.1.5.5.7.6.45",
        curve="nist/P-256",
    ),
    Algorithm.ML_DSA_87: Described("ML-DSA-87", "87", 5, 256, "2.16.840.1.101.3.4.3.19", "ML-DSA"),
    Algorithm.SLH_DSA_SHA2_128S: _slh_dsa("SHA2-128s", 1, 16, 20),
    Algorithm.SLH_DSA_SHA2_128F: _slh_dsa("SHA2-128f", 1, 16, 21),
    Algorithm.SLH_DSA_SHA2_192S: _slh_dsa("SHA2-192s", 3, 24, 22),
    Algorithm.SLH_DSA_SHA2_256S: _slh_dsa("SHA2-256s", 5, 32, 24),
    Algorithm.XAES_256_GCM: Described("XAES-256-GCM", "256", 5, 256, family="AES"),
    Algorithm.HMAC_SHA_256: Described("HMAC-SHA-256", "256", 5, 256, "1.2.840.113549.2.9", "HMAC"),
    Algorithm.HMAC_SHA_512: Described("HMAC-SHA-512", "512", 5, 512, "1.2.840.113549.2.11", "HMAC"),
    **{
        algorithm: _legacy(f"RSAES-OAEP-{hash_}", "1.2.840.113549.1.1.7", "RSAES-OAEP")
        for algorithm, hash_ in (
            (Algorithm.RSA_OAEP_SHA_1, "SHA-1"),
            (Algorithm.RSA_OAEP_SHA_256, "SHA-256"),
            (Algorithm.RSA_OAEP_SHA_384, "SHA-384"),
            (Algorithm.RSA_OAEP_SHA_512, "SHA-512"),
        )
    },
    **{
        algorithm: _legacy(f"{family}-{hash_}", oid, family)
        for algorithm, family, hash_, oid in (
            (Algorithm.RSA_PKCS1_SHA_256, "RSASSA-PKCS1", "SHA-256", "1.2.840.113549.1.1.11"),
            (Algorithm.RSA_PKCS1_SHA_384, "RSASSA-PKCS1", "SHA-384", "1.2.840.113549.1.1.12"),
            (Algorithm.RSA_PKCS1_SHA_512, "RSASSA-PKCS1", "SHA-512", "1.2.840.113549.1.1.13"),
            (Algorithm.RSA_PSS_SHA_256, "RSASSA-PSS", "SHA-256", _PSS),
            (Algorithm.RSA_PSS_SHA_384, "RSASSA-PSS", "SHA-384", _PSS),
            (Algorithm.RSA_PSS_SHA_512, "RSASSA-PSS", "SHA-512", _PSS),
        )
    },
    Algorithm.ECDSA_P_256: _legacy("ECDSA-P-256", "1.2.840.10045.4.3.2", "ECDSA", "nist/P-256"),
    Algorithm.ECDSA_P_384: _legacy("ECDSA-P-384", "1.2.840.10045.4.3.3", "ECDSA", "nist/P-384"),
    Algorithm.ECDSA_P_521: _legacy("ECDSA-P-521", "1.2.840.10045.4.3.4", "ECDSA", "nist/P-521"),
}
"""Every algorithm of keys. X-Wing and the composite algorithm have the strength of their
post-quantum part."""

_PRIMITIVES: Mapping[Kind, str] = {
    Kind.KEM: "kem",
    Kind.SIGNATURE: "signature",
    Kind.CIPHER: "ae",
    Kind.MAC: "mac",
    Kind.LEGACY_DECRYPTION: "pke",
    Kind.LEGACY_VERIFICATION: "signature",
}
_FUNCTIONS: Mapping[str, frozenset[Operation]] = {
    "keygen": frozenset({Operation.GENERATE_KEY}),
    "encapsulate": frozenset({Operation.ENCAPSULATE}),
    "decapsulate": frozenset({Operation.DECAPSULATE}),
    "encrypt": frozenset({Operation.ENCRYPT}),
    "decrypt": frozenset({Operation.DECRYPT}),
    "sign": frozenset({Operation.SIGN}),
    "tag": frozenset({Operation.COMPUTE_MAC}),
    "verify": frozenset({Operation.VERIFY, Operation.VERIFY_MAC}),
}
_MATERIAL: Mapping[Kind, str] = {
    Kind.CIPHER: "secret-key",
    Kind.MAC: "secret-key",
    Kind.LEGACY_VERIFICATION: "public-key",
}
"""The type of key material, where it is not a private key."""
_STATES: Mapping[KeyStatus, str] = {
    KeyStatus.ACTIVE: "active",
    KeyStatus.RETIRED: "deactivated",
    KeyStatus.DISABLED: "suspended",
    KeyStatus.ARCHIVED: "destroyed",
}
"""The states of SP 800-57, part 1, 7. A deactivated key still decrypts and verifies."""
_SEAL, _SEAL_REF = "AES-256-GCM", "algorithm:AES-256-GCM"
_SEAL_KDF, _SEAL_KDF_REF = "HKDF-SHA-256", "algorithm:HKDF-SHA-256"


class Cbom(Data, frozen=True, kw_only=True):
    """A cryptographic bill of materials."""

    spec_version: SpecVersion
    cbom: Annotated[Json, Meta(description="The document.")]
    next: Annotated[
        str | UnsetType,
        Meta(description="Present if the tenant has more keys: send it as after."),
    ] = UNSET


class SignedCbom(Data, frozen=True, kw_only=True):
    """A JWS that contains a cryptographic bill of materials."""

    spec_version: SpecVersion
    jws: Annotated[str, Meta(description="Header, document and signature in compact form.")]
    next: Annotated[
        str | UnsetType,
        Meta(description="Present if the tenant has more keys: send it as after."),
    ] = UNSET


SIGNERS = tuple(
    algorithm for algorithm, spec in ALGORITHMS.items() if Operation.SIGN_JWS in spec.operations
)
"""The algorithms of JWS."""


def _parse_signer(value: object) -> tuple[str, Algorithm]:
    keyring, slash, name = value.rpartition("/") if isinstance(value, str) else ("", "", "")
    algorithm = next((known for known in SIGNERS if name in (known, DESCRIBED[known].name)), None)
    if not (slash and is_keyring_name(keyring) and algorithm):
        raise InvalidValueError(
            "must be a keyring, a slash and one of "
            + ", ".join(DESCRIBED[one].name for one in SIGNERS)
        )
    return keyring, algorithm


VERSION = choice_field(
    "version", "The version of CycloneDX.", tuple(SpecVersion), SpecVersion.V1_7
).or_default(SpecVersion.V1_7)
USES = choice_field(
    "uses",
    "The uses to state: none; of each key version and operation; or also by principal. They are "
    "counted up to a checkpoint, which the document names.",
    tuple(Uses),
    Uses.COUNTS,
).or_default(Uses.NONE)
SIGNED_BY: Field[tuple[str, Algorithm]] = Field(
    name="signed_by",
    description="The key that signs the document: a keyring, a slash and an algorithm of JWS. Its "
    "active version signs, as `sign_jws` does.",
    schema={"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}/[A-Za-z0-9-]+$"},
    example="default/ML-DSA-65",
    parse=_parse_signer,
)
LIMIT = integer_field(
    "limit",
    f"The most key versions in the document. Left out: {MAX_KEYS}. With `uses=principals` a document "
    f"has at most {MAX_INVENTORY_LISTED}.",
    100,
    at_least=1,
    at_most=MAX_KEYS,
).or_default(MAX_KEYS)
_EXAMPLE = Cbom(
    spec_version=SpecVersion.V1_7,
    cbom={"bomFormat": "CycloneDX", "specVersion": "1.7"},
)


def endpoints(access: KeyAccess, shards: Shards, groups: Sequence[str]) -> tuple[Endpoint, ...]:
    """Return the endpoints of the bill of materials.

    ``groups``: see ``tls_groups``.
    """
    row = next(row for row in signature.OPERATIONS if row.operation is Operation.SIGN_JWS)
    sign = Steps(row, access)

    async def describe(call: ApiCall) -> Cbom:
        uses = call[USES]
        if uses is not Uses.NONE and not may(call.principal.caller, Permission.VIEW_INVENTORY):
            raise forbidden(f"{USES.name}: this role may not see uses")
        page = await (_list_keys if uses is Uses.NONE else _list_uses)(access, call)
        installation = await _describe(shards, call, groups)
        described = document(
            call[VERSION],
            call.tenant.tenant,
            page.keys,
            installation,
            is_whole=call[AFTER] is None and not page.has_more,
            counted=page.counted,
        )
        following = cursor_in_all(page.keys[-1]) if page.has_more else UNSET
        return Cbom(spec_version=call[VERSION], cbom=described, next=following)

    async def get_cbom(call: ApiCall) -> Cbom:
        """Return the tenant's keys as a cryptographic bill of materials (CycloneDX).

        It lists the algorithms, the key versions with their states, and the cryptography of the
        installation itself. A document has at most 500 key versions.
        """
        return await describe(call)

    async def sign_cbom(call: ApiCall) -> SignedCbom | Warned:
        """Sign the document that `GET /inventory/cbom` returns.

        It costs one operation, and leaves the record of `sign_jws`.
        """
        signer = call[SIGNED_BY]
        made = await describe(call)
        signed = await _signed(sign, call, signer, _ENCODER.encode(made.cbom))
        jws = cast("signature.SignedJws", signed.response if isinstance(signed, Warned) else signed)
        response = SignedCbom(spec_version=made.spec_version, jws=jws.jws, next=made.next)
        return Warned(response, signed.notice) if isinstance(signed, Warned) else response

    def endpoint(
        method: str,
        handler: Callable[[ApiCall], Awaitable[Data | Warned]],
        permission: Permission,
        example: Data,
        *fields: Field[Any],
    ) -> Endpoint:
        return Endpoint(
            method=method,
            path="/inventory/cbom",
            name=handler.__name__,
            handler=handler,
            permission=permission,
            example=example,
            fields=(*fields, VERSION, USES, LIMIT, AFTER),
            field_codes=BAD_REQUEST_FIELDS,
            codes=AUDIT_CODES
            | codes_of_operation(Operation.LIST_KEYS)
            | codes_of_operation(Operation.SIGN_JWS),
            recorded_as=AuditEvent.GET_CBOM,
        )

    signed = SignedCbom(
        spec_version=SpecVersion.V1_7, jws="eyJhbGciOi….eyJib21Gb3JtYX….c2lnbmF0dXJl"
    )
    return (
        endpoint("GET", get_cbom, Permission.VIEW_KEYS, _EXAMPLE),
        endpoint("POST", sign_cbom, PERMISSION_OF[Operation.SIGN_JWS], signed, SIGNED_BY),
    )


class _Page(NamedTuple):
    """Key versions, and the checkpoint up to which their uses are counted."""

    keys: Sequence[KeyInfo | InventoryKey]
    has_more: bool
    counted: CountedLog | None = None


async def _list_keys(access: KeyAccess, call: ApiCall) -> _Page:
    """Return a page of keys. Raises ApiError."""
    request = ListKeys(
        tenant=call.tenant.tenant,
        algorithm=None,
        status=None,
        after=call[AFTER],
        all_keyrings=True,
        limit=call[LIMIT],
        legacy=True,
    )
    try:
        found = await access.keys.execute(request, call.attribution, call.tenant.placement)
    except KeyServiceError as refusal:
        raise error_for(request.operation, refusal, call.values) from None
    return _Page(found.keys, found.has_more)


async def _list_uses(access: KeyAccess, call: ApiCall) -> _Page:
    """Return a page of the same keys with their uses. Raises ApiError."""
    by_principal = call[USES] is Uses.PRINCIPALS
    request = ListInventory(
        tenant=call.tenant.tenant,
        after=call[AFTER],
        is_keyring_deleted=False,
        principals=MAX_PRINCIPALS if by_principal else 0,
        limit=min(call[LIMIT], MAX_INVENTORY_LISTED) if by_principal else call[LIMIT],
    )
    try:
        found = await access.keys.execute(request, call.attribution, call.tenant.placement)
    except KeyServiceError as refusal:
        if refusal.kind is ErrorKind.RECORD_NOT_FOUND:
            raise not_found("there is no checkpoint yet; try again in a second") from None
        raise error_for(Operation.LIST_KEYS, refusal, call.values) from None
    return _Page(found.keys, found.has_more, found.counted)


async def _signed(
    sign: Steps, call: ApiCall, signer: tuple[str, Algorithm], text: bytes
) -> Data | Existing | Warned:
    """Sign a document as the endpoint of JWS does: with its scopes, policies, quota and record."""
    keyring, algorithm = signer
    values = {"keyring": keyring, "algorithm": algorithm.value, "payload": base64(text)}
    try:
        return await sign.handle(structs.replace(call, values=values))
    except ApiError as error:
        if error.code.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
            error.field = SIGNED_BY.name
        raise
    except FieldError as error:
        raise FieldError(SIGNED_BY.name, Problem.MALFORMED, error.message) from None


def tls_groups(*, has_tls: bool, require_post_quantum: bool) -> tuple[str, ...]:
    """Return the key exchange groups of the gateway's own TLS, empty without TLS."""
    allowed = POST_QUANTUM if require_post_quantum else frozenset(NAMES.values())
    return tuple(name for name in NAMES.values() if has_tls and name in allowed)


@dataclass(frozen=True, slots=True)
class Installation:
    """The cryptography of the installation itself."""

    libraries: Sequence[Library]
    root_key: int
    root_key_since: datetime
    checkpoint_keys: Sequence[AuditKey]
    tls_groups: Sequence[str]


async def _describe(shards: Shards, call: ApiCall, groups: Sequence[str]) -> Installation:
    """Ask the key service of the tenant's shard. Raises KeyServiceError."""
    keys = shards.of(await shards.residence(call.tenant.tenant))
    libraries = await keys.execute(ListLibraries(tenant=INSTALLATION), _GATEWAY)
    numbers = (await keys.execute(GetMetrics(tenant=INSTALLATION), _GATEWAY)).samples
    audit_keys = await keys.execute(ListAuditKeys(tenant=INSTALLATION), _GATEWAY)
    root_key, since = (
        next((sample.value for sample in numbers.get(name, ())), 0)
        for name in ("pqkeep_root_key_id", "pqkeep_root_key_added_timestamp_seconds")
    )
    return Installation(
        libraries.libraries,
        int(root_key),
        datetime.fromtimestamp(since, UTC),
        audit_keys.keys,
        groups,
    )


def document(
    version: SpecVersion,
    tenant: UUID,
    keys: Sequence[KeyInfo | InventoryKey],
    installation: Installation,
    *,
    is_whole: bool,
    counted: CountedLog | None = None,
) -> Json:
    """Return the document.

    ``is_whole``: whether ``keys`` are all the tenant's key versions. ``counted``: the checkpoint
    up to which the uses of ``keys`` are counted.
    """
    checkpoints = {key.algorithm for key in installation.checkpoint_keys}
    algorithms = sorted({key.algorithm for key in keys} | checkpoints)
    components = [
        *(_algorithm(algorithm, version) for algorithm in algorithms),
        *_own_algorithms(version),
        *(_key(key, version, installation.root_key) for key in keys),
        _root_key(installation),
        *(_checkpoint_key(key) for key in installation.checkpoint_keys),
        *_tls(installation.tls_groups, version),
        *(_library(library) for library in installation.libraries),
    ]
    about = [("tenant", str(tenant))]
    newest = max([installation.root_key_since, *(key.created_at for key in keys)])
    if counted is not None:
        newest = max(newest, datetime.fromtimestamp(counted.at_us // 1_000_000, UTC))
        about += [
            ("counted-log", str(counted.log_id)),
            ("counted-records", str(counted.size)),
            ("counted-root", base64(counted.root)),
        ]
    content: Json = {
        "bomFormat": "CycloneDX",
        "specVersion": version.value,
        "serialNumber": "",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(newest),
            "lifecycles": [{"phase": "operations"}],
            "component": {
                "type": "platform",
                "bom-ref": f"tenant:{tenant}",
                "name": "pqkeep",
                "properties": _properties(about),
            },
        },
        "components": components,
        "dependencies": list(_implementations(algorithms, installation.libraries)),
        "compositions": [
            {
                "aggregate": "complete" if is_whole else "incomplete",
                "assemblies": [f"tenant:{tenant}"],
            }
        ],
    }
    digest = sha256(_ENCODER.encode(content)).digest()
    content["serialNumber"] = UUID(bytes=digest[:16], version=4).urn
    return content


def _algorithm(algorithm: Algorithm, version: SpecVersion) -> Json:
    described, spec = DESCRIBED[algorithm], ALGORITHMS[algorithm]
    functions = [name for name, uses in _FUNCTIONS.items() if uses & spec.operations]
    if spec.kind is Kind.LEGACY_DECRYPTION:  # as a part of re-encrypt
        functions = ["decrypt"]
    return _algorithm_component(described, _PRIMITIVES[spec.kind], functions, version)


def _own_algorithms(version: SpecVersion) -> Iterable[Json]:
    """Yield the algorithms that seal private keys under the root key."""
    seal = Described(_SEAL, "256", 5, 256, "2.16.840.1.101.3.4.1.46", "AES")
    yield _algorithm_component(seal, "ae", ["encrypt", "decrypt"], version)
    kdf = Described(_SEAL_KDF, "SHA-256", 5, 256, "1.2.840.113549.1.9.16.3.28", "HKDF")
    yield _algorithm_component(kdf, "kdf", ["keyderive"], version)


def _algorithm_component(
    described: Described, primitive: str, functions: Sequence[str], version: SpecVersion
) -> Json:
    properties: Json = {
        "primitive": primitive,
        "parameterSetIdentifier": described.parameter_set,
        "executionEnvironment": "software-plain-ram",
        "implementationPlatform": "generic",
        "certificationLevel": ["none"],
        "cryptoFunctions": list(functions),
        "nistQuantumSecurityLevel": described.level,
    }
    if primitive == "ae":
        properties["mode"] = "gcm"
    if version is SpecVersion.V1_7 and described.family:
        properties["algorithmFamily"] = described.family
    if described.curve:
        name = "ellipticCurve" if version is SpecVersion.V1_7 else "curve"
        properties[name] = described.curve
    crypto: Json = {"assetType": "algorithm", "algorithmProperties": properties}
    if described.oid:
        crypto["oid"] = described.oid
    return _asset(f"algorithm:{described.name}", described.name, crypto)


def _asset(
    reference: str, name: str, crypto: Json, properties: Sequence[tuple[str, str]] = ()
) -> Json:
    return {
        "type": "cryptographic-asset",
        "bom-ref": reference,
        "name": name,
        "cryptoProperties": crypto,
        **({"properties": _properties(properties)} if properties else {}),
    }


def _properties(named: Iterable[tuple[str, str]]) -> list[Json]:
    return [{"name": f"pqkeep:{name}", "value": value} for name, value in named]


def state_of(key: KeyInfo | InventoryKey) -> str:
    """Return a key version's state in the words of SP 800-57.

    A version that waits for its destruction is suspended: every use is refused, and a person can
    cancel.
    """
    if key.archive_at is not None and key.status is not KeyStatus.ARCHIVED:
        return "suspended"
    return _STATES[key.status]


def _fingerprint(key: KeyInfo | InventoryKey) -> str:
    if isinstance(key, InventoryKey):
        return key.fingerprint.hex()
    is_symmetric = ALGORITHMS[key.algorithm].is_symmetric
    return key.public_key.hex() if is_symmetric else sha256(key.public_key).hexdigest()


def _uses(key: InventoryKey) -> Iterable[tuple[str, str]]:
    """Yield the uses of a key version as properties."""
    yield "uses", str(sum(used.uses for used in key.operations))
    if key.operations:
        yield "first-used-at", instant(min(used.first_used_us for used in key.operations))
        yield "last-used-at", instant(max(used.last_used_us for used in key.operations))
    for used in key.operations:
        yield f"uses:{used.operation}", str(used.uses)
    for by in key.principals:
        yield f"used-by:{by.operation}", f"{by.principal} {by.uses}"
    if key.principals and key.has_more_principals:
        yield "more-principals", "true"


def _key(key: KeyInfo | InventoryKey, version: SpecVersion, root_key: int) -> Json:
    described, spec = DESCRIBED[key.algorithm], ALGORITHMS[key.algorithm]
    is_symmetric = spec.is_symmetric
    name = f"{key.keyring}/{described.name}/{key.version}"
    fingerprint = _fingerprint(key)
    material: Json = {
        "type": _MATERIAL.get(spec.kind, "private-key"),
        "id": fingerprint,
        "state": state_of(key),
        "algorithmRef": f"algorithm:{described.name}",
        "creationDate": timestamp(key.created_at),
    }
    if described.bits:
        material["size"] = described.bits
    if key.status is not KeyStatus.ARCHIVED:
        material["securedBy"] = {
            "mechanism": f"{_SEAL} under root key {root_key}",
            "algorithmRef": _SEAL_REF,
        }
    if version is SpecVersion.V1_7:
        if not is_symmetric:
            material["fingerprint"] = {"alg": "SHA-256", "content": fingerprint}
        material["relatedCryptographicAssets"] = [
            {"type": "algorithm", "ref": f"algorithm:{described.name}"}
        ]
    properties = [
        ("keyring", key.keyring),
        ("algorithm", key.algorithm.value),
        ("key-version", str(key.version)),
        ("status", key.status.value),
        ("origin", "imported" if key.imported else "generated"),
    ]
    if key.archive_at is not None:
        properties.append(("archive-at", timestamp(key.archive_at)))
    if isinstance(key, InventoryKey):
        properties += _uses(key)
    crypto = {"assetType": "related-crypto-material", "relatedCryptoMaterialProperties": material}
    return _asset(f"key:{name}", name, crypto, properties)


def _root_key(installation: Installation) -> Json:
    material = {
        "type": "secret-key",
        "id": f"root-key-{installation.root_key}",
        "state": "active",
        "algorithmRef": _SEAL_KDF_REF,
        "creationDate": timestamp(installation.root_key_since),
        "size": 256,
    }
    crypto = {"assetType": "related-crypto-material", "relatedCryptoMaterialProperties": material}
    name = f"root key {installation.root_key}"
    return _asset("installation:root-key", name, crypto, [("owner", "installation")])


def _checkpoint_key(key: AuditKey) -> Json:
    described = DESCRIBED[key.algorithm]
    material = {
        "type": "public-key",
        "id": sha256(key.public_key).hexdigest(),
        "algorithmRef": f"algorithm:{described.name}",
        "size": 8 * len(key.public_key),
        "format": "raw",
    }
    crypto = {"assetType": "related-crypto-material", "relatedCryptoMaterialProperties": material}
    name = f"checkpoint key {described.name}/{key.version}"
    reference = f"installation:checkpoint-key:{described.name}/{key.version}"
    return _asset(reference, name, crypto, [("owner", "installation")])


def _tls(groups: Sequence[str], version: SpecVersion) -> Iterable[Json]:
    """Yield the protocol of the gateway's own TLS, if TLS is on."""
    if not groups:
        return
    suite: Json = {"name": "TLS 1.3, as OpenSSL negotiates it"}
    if version is SpecVersion.V1_7:
        suite["tlsGroups"] = list(groups)
    protocol = {"type": "tls", "version": "1.3", "cipherSuites": [suite]}
    yield _asset(
        "installation:tls",
        "TLS of the gateway",
        {"assetType": "protocol", "protocolProperties": protocol},
        [("tls-groups", " ".join(groups)), ("openssl", ssl.OPENSSL_VERSION)],
    )


def _library(library: Library) -> Json:
    kind = "generic" if library.name == "openssl" else "pypi"
    return {
        "type": "library",
        "bom-ref": f"library:{library.name}",
        "name": library.name,
        "version": library.version,
        "purl": f"pkg:{kind}/{library.name}@{library.version}",
    }


def _implementations(
    algorithms: Sequence[Algorithm], libraries: Sequence[Library]
) -> Iterable[Json]:
    """Yield the algorithms that each library implements."""
    names = {
        algorithm: "pqcrypto" if DESCRIBED[algorithm].family == "SLH-DSA" else "cryptography"
        for algorithm in algorithms
    }
    for library in libraries:
        provided = [
            f"algorithm:{DESCRIBED[algorithm].name}"
            for algorithm, name in names.items()
            if name == library.name
        ]
        if library.name == "cryptography":
            provided += [_SEAL_REF, _SEAL_KDF_REF]
        depends = ["library:openssl"] if library.name == "cryptography" else []
        yield {
            "ref": f"library:{library.name}",
            "dependsOn": depends,
            **({"provides": provided} if provided else {}),
        }

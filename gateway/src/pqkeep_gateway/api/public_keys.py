"""GET /api/v1/kms/keys/{key_version}/public-key and /kms/jwks: public keys in standard formats."""

from contextlib import aclosing
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from pqkeep_gateway.access.callers import PERMISSION_OF
from pqkeep_gateway.api.errors import KEY_FIELDS, codes_of_operation, error_for
from pqkeep_gateway.api.key_fields import KEY_VERSION, KEYRING, KeyResponse, keyring_named
from pqkeep_gateway.api.key_operation import KeyAccess, KeyCall, KeyOperation, endpoint
from pqkeep_gateway.http.endpoint import JWK_SET, ApiCall, Document, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import FieldError, Problem, choice_field
from pqkeep_gateway.http.text import base64
from pqkeep_protocol import messages, public_keys
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, MAX_VERSIONS, KeyInfo
from pqkeep_protocol.messages import GetKey, ListPublicKeys
from pqkeep_protocol.public_keys import AGE_PREFIXES, JWK_ALGORITHM, Jwk


class PublicKeyFormat(StrEnum):
    """The formats of a public key."""

    RAW = "raw"
    PEM = "pem"
    DER = "der"
    JWK = "jwk"
    AGE = "age"

    def is_defined_for(self, algorithm: Algorithm) -> bool:
        """Return True if a standard defines the format for keys of the algorithm."""
        match self:
            case PublicKeyFormat.JWK:
                return algorithm in JWK_ALGORITHM
            case PublicKeyFormat.AGE:
                return algorithm in AGE_PREFIXES
            case _:
                return True


class FormattedPublicKey(KeyResponse, frozen=True, kw_only=True):
    """A public key in one format."""

    format: PublicKeyFormat
    public_key: Annotated[
        str | Jwk, Meta(description="raw and der in base64, pem and age as text, jwk as an object.")
    ]
    key_version: Annotated[
        int, Meta(ge=1, description="Starts at 1 for each algorithm of a keyring.")
    ]
    algorithm: Algorithm


class JwkSet(Data, frozen=True, kw_only=True):
    """A JWK Set (RFC 7517)."""

    keys: tuple[Jwk, ...]


_FORMAT = choice_field(
    "format",
    "raw: the encoding of the algorithm's standard. der and pem: SubjectPublicKeyInfo. jwk: only for "
    f"{', '.join(JWK_ALGORITHM)}. age: a recipient of age, only for {', '.join(AGE_PREFIXES)}.",
    tuple(PublicKeyFormat),
    PublicKeyFormat.PEM,
).or_default(PublicKeyFormat.PEM)

_ALL = len(JWK_ALGORITHM) * MAX_VERSIONS

_KEY = b"\x1d\xa2\x7f" * 8
_JWK = Jwk(
    kid=public_keys.thumbprint("ML-DSA-65", _KEY),
    alg="ML-DSA-65",
    pub=public_keys.base64url(_KEY),
)


def endpoints(access: KeyAccess) -> tuple[Endpoint, ...]:
    """Return the endpoints of public keys."""
    return (
        endpoint(
            KeyOperation(
                "GET",
                "/kms/keys/{key_version}/public-key",
                Operation.GET_KEY,
                get,
                formatted,
                of_key_pairs=True,
                name="get_public_key",
                fields=(KEY_VERSION, _FORMAT),
                example=FormattedPublicKey(
                    format=PublicKeyFormat.JWK,
                    public_key=_JWK,
                    key_version=1,
                    algorithm=Algorithm.ML_DSA_65,
                ),
            ),
            access,
        ),
        Endpoint(
            method="GET",
            path="/kms/jwks",
            name="list_jwks",
            handler=_KeySets(access).list_jwks,
            permission=PERMISSION_OF[Operation.LIST_PUBLIC_KEYS],
            example=JwkSet(keys=(_JWK,)),
            fields=(KEYRING,),
            field_codes=KEY_FIELDS[Operation.LIST_PUBLIC_KEYS],
            codes=codes_of_operation(Operation.LIST_PUBLIC_KEYS),
            recorded_as=Operation.LIST_PUBLIC_KEYS,
            keyring_of=keyring_named,
            content_type=JWK_SET,
        ),
    )


def get(call: KeyCall) -> GetKey:
    """Return the public key of one version, in any status, in a standard format."""
    version, wanted = call[KEY_VERSION], call[_FORMAT]
    if not wanted.is_defined_for(call.algorithm):
        name = "a JWK" if wanted is PublicKeyFormat.JWK else "a recipient of age"
        message = f"no standard defines {name} for a key of {call.algorithm}"
        raise FieldError(_FORMAT.name, Problem.MALFORMED, message)
    return GetKey(tenant=call.tenant, algorithm=call.algorithm, version=version)


def formatted(call: ApiCall, request: GetKey, result: messages.Key) -> FormattedPublicKey:
    """Return the public key in the requested format."""
    wanted = call[_FORMAT]
    return FormattedPublicKey(
        format=wanted,
        public_key=_written(result.key, wanted),
        key_version=request.version,
        algorithm=request.algorithm,
    )


class _KeySets:
    """The handler of the JWK Set."""

    def __init__(self, access: KeyAccess) -> None:
        self._access = access

    async def list_jwks(self, call: ApiCall) -> Document:
        """List a keyring's keys that verify signatures, active and retired, as a JWK Set.

        The body has no envelope, as verifiers of JWS expect. It has only keys of algorithms with a
        JWK, within the scopes of an API key.
        """
        keyring = call[KEYRING] or DEFAULT_KEYRING
        attribution, algorithms = self._access.attribute_some(
            call, Operation.LIST_PUBLIC_KEYS, keyring, JWK_ALGORITHM
        )
        request = ListPublicKeys(tenant=call.tenant.tenant, keyring=keyring, algorithms=algorithms)
        found: list[Jwk] = []
        placement = call.tenant.placement
        try:
            async with aclosing(self._access.pages(request, attribution, placement, _ALL)) as pages:
                async for page in pages:
                    found += [
                        public_keys.to_jwk(key.algorithm, key.public_key)
                        for key in page.keys
                        if key.allows(Operation.VERIFY)
                    ]
        except KeyServiceError as refusal:
            raise error_for(request.operation, refusal, call.values) from None
        return Document(JWK_SET, msgspec.json.encode(JwkSet(keys=tuple(found))))


def _written(key: KeyInfo, wanted: PublicKeyFormat) -> str | Jwk:
    algorithm, public_key = key.algorithm, key.public_key
    match wanted:
        case PublicKeyFormat.RAW:
            return base64(public_key)
        case PublicKeyFormat.DER:
            return base64(public_keys.to_der(algorithm, public_key))
        case PublicKeyFormat.PEM:
            return public_keys.to_pem(algorithm, public_key)
        case PublicKeyFormat.JWK:
            return public_keys.to_jwk(algorithm, public_key)
        case PublicKeyFormat.AGE:
            return public_keys.to_age(algorithm, public_key)

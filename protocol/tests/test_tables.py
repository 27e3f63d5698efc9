"""The tables are complete, and agree with each other and the interface specification."""

import pytest

from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    KEY_PAIRS,
    LEGACY,
    LIFECYCLE,
    ON_KEYRINGS,
    ON_RULES,
    ON_TENANTS,
    Algorithm,
    Kind,
    Operation,
)
from pqkeep_protocol.audit_events import AuditEvent, KeyServiceEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import USABLE, KeyStatus
from pqkeep_protocol.messages import AnyRequest

KNOWN = set(Operation)
KEM = {"encrypt", "decrypt", "encapsulate", "decapsulate", "wrap", "unwrap", "re-encrypt"} & KNOWN
KEM |= {"generate-data-key"}
MAC = {"compute-mac", "verify-mac"}
SIGNATURE = {"sign", "verify", "sign-hash", "verify-hash"} & KNOWN
EXTERNAL_MU = {"sign-mu", "verify-mu"} & KNOWN
READS = {
    "decrypt",
    "decapsulate",
    "unwrap",
    "re-encrypt",
    "verify",
    "verify-hash",
    "verify-mu",
    "verify-mac",
} & KNOWN
SIZES = {  # FIPS 203, table 3; FIPS 204, table 2; FIPS 205, table 2; the two drafts
    "Kyber768": (Kind.KEM, 1184, 1088),
    "X-Wing": (Kind.KEM, 1216, 1120),
    "ML-KEM-1024": (Kind.KEM, 1568, 1568),
    "Dilithium3": (Kind.SIGNATURE, 1952, 3309),
    "Composite-ML-DSA": (Kind.SIGNATURE, 2017, 3381),
    "ML-DSA-87": (Kind.SIGNATURE, 2592, 4627),
    "SLH-DSA-SHA2-128s": (Kind.SIGNATURE, 32, 7856),
    "SLH-DSA-SHA2-128f": (Kind.SIGNATURE, 32, 17088),
    "SLH-DSA-SHA2-192s": (Kind.SIGNATURE, 48, 16224),
    "SLH-DSA-SHA2-256s": (Kind.SIGNATURE, 64, 29792),
    "XAES-256-GCM": (Kind.CIPHER, 0, 0),
    "HMAC-SHA-256": (Kind.MAC, 0, 32),
    "HMAC-SHA-512": (Kind.MAC, 0, 64),
    **dict.fromkeys(
        ("RSA-OAEP-SHA-1", "RSA-OAEP-SHA-256", "RSA-OAEP-SHA-384", "RSA-OAEP-SHA-512"),
        (Kind.LEGACY_DECRYPTION, 0, 0),
    ),
    **dict.fromkeys(
        (
            *("RSA-PKCS1-SHA-256", "RSA-PKCS1-SHA-384", "RSA-PKCS1-SHA-512"),
            *("RSA-PSS-SHA-256", "RSA-PSS-SHA-384", "RSA-PSS-SHA-512"),
            *("ECDSA-P-256", "ECDSA-P-384", "ECDSA-P-521"),
        ),
        (Kind.LEGACY_VERIFICATION, 0, 0),
    ),
}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_has_its_row(algorithm: Algorithm) -> None:
    """Each algorithm has a row with the sizes of its standard."""
    spec = ALGORITHMS[algorithm]
    assert (spec.kind, spec.public_key_size, spec.output_size) == SIZES[algorithm]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_an_algorithm_does_what_its_kind_does(algorithm: Algorithm) -> None:
    """Encryption keys never sign, signature keys never decrypt, legacy keys are never made here."""
    spec = ALGORITHMS[algorithm]
    expected = {
        Kind.KEM: KEM,
        Kind.SIGNATURE: SIGNATURE,
        Kind.CIPHER: KEM - {"encapsulate", "decapsulate"},
        Kind.MAC: MAC,
        Kind.LEGACY_DECRYPTION: {"re-encrypt"},
        Kind.LEGACY_VERIFICATION: {"verify", "verify-hash"},
    }[spec.kind]
    if algorithm.value == "ML-KEM-1024":  # the specification has no wrapping with it
        expected = expected - {"wrap", "unwrap"}
    if algorithm.value in {"Dilithium3", "ML-DSA-87"}:  # mu of FIPS 204, JWS of RFC 9964
        expected = expected | EXTERNAL_MU | {"sign-jws"}
    assert spec.operations - LIFECYCLE == expected
    missing = set[str]()
    if spec.is_symmetric:
        missing = {"get-import-key", "import-key", "list-public-keys"}
    if spec.is_legacy:
        missing = {"generate-key", "rotate-key", "list-public-keys"}
    assert LIFECYCLE - spec.operations == missing


def test_the_specification_has_ten_algorithms() -> None:
    """The order is: the specification's ten algorithms, symmetric algorithms, legacy ones."""
    assert tuple(Algorithm)[:10] == KEY_PAIRS
    assert all(ALGORITHMS[algorithm].is_symmetric for algorithm in tuple(Algorithm)[10:13])
    assert tuple(Algorithm)[13:] == LEGACY


@pytest.mark.parametrize("operation", sorted((KEM | SIGNATURE | EXTERNAL_MU | MAC) - READS))
def test_new_use_wants_the_active_key(operation: str) -> None:
    """The specification's first column: encrypt, encapsulate and sign only with active keys."""
    assert USABLE[Operation(operation)] == {KeyStatus.ACTIVE}


@pytest.mark.parametrize("operation", sorted(READS))
def test_reading_goes_on_with_retired_keys(operation: str) -> None:
    """The second column: retired keys can decrypt and verify too. Archived keys can do nothing."""
    assert USABLE[Operation(operation)] == {KeyStatus.ACTIVE, KeyStatus.RETIRED}


def test_no_operation_is_without_a_rule() -> None:
    """Each operation is on a key, keyring or tenant, or has a row of permitted statuses."""
    others = LIFECYCLE | ON_KEYRINGS | ON_TENANTS | ON_RULES
    assert set(USABLE) | others == set(Operation)
    assert not set(USABLE) & others


def test_every_operation_has_exactly_one_request() -> None:
    """Each operation has exactly one request, and no request destroys a key."""
    requested = [request.operation for request in AnyRequest.__args__]
    assert sorted([*requested, Operation.ARCHIVE_KEY]) == sorted(Operation)


@pytest.mark.parametrize("kind", ErrorKind)
def test_an_error_says_its_kind_and_no_more(kind: ErrorKind) -> None:
    """The text of a refusal is its kind, without anything of the request."""
    error = KeyServiceError(kind)
    assert (error.kind, str(error), error.args) == (kind, kind.value, (kind.value,))


def test_recorded_operations_are_different_and_fit() -> None:
    """Names of events and operations are unique, and fit into a record."""
    names = [str(name) for name in (*Operation, *AuditEvent, *KeyServiceEvent)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 32

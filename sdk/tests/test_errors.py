"""Each class of error comes from a refusal of the real service; errors keep secrets."""

import copy
import socket
from collections.abc import Callable
from contextlib import closing
from uuid import UUID, uuid4

import pytest
from tests.patience import PATIENCE

from pqkeep import (
    AuthenticationError,
    Client,
    ConnectionFailedError,
    DecryptionError,
    EncryptionInputError,
    HashAlgorithmError,
    HashLengthError,
    InvalidModeError,
    InvalidRequestError,
    MessageTooLargeError,
    NotFoundError,
    PermissionDeniedError,
    PolicyDeniedError,
    PqkeepError,
    RateLimitError,
    SignatureInputError,
    UnwrappingError,
    UnwrappingInputError,
    WrappingInputError,
)

KEM = "Kyber768"
SIGNATURE = "Dilithium3"
NEVER_MADE = "pqk_" + "0" * 49
Connect = Callable[..., Client]


def test_wrong_api_key(connect: Connect, base_url: str) -> None:
    """An unknown API key raises AuthenticationError without the key."""
    with pytest.raises(AuthenticationError) as caught:
        connect(base_url, NEVER_MADE).keys.list()
    assert (caught.value.status, caught.value.error_code) == (401, "ERR_AUTH_001")
    assert NEVER_MADE not in str(caught.value) + repr(caught.value)


def test_not_for_this_credential(connect: Connect, service: dict[str, str]) -> None:
    """The operator may not use keys: PermissionDeniedError."""
    with pytest.raises(PermissionDeniedError) as caught:
        connect(service["base_url"], service["operator_key"]).keys.list()
    assert (caught.value.status, caught.value.error_code) == (403, "ERR_FORBIDDEN_001")


def test_not_in_the_plan(connect: Connect, operator: Client, base_url: str) -> None:
    """A feature outside the plan raises PolicyDeniedError, a PermissionDeniedError."""
    tenant = operator.tenants.create(f"test {uuid4()}", plan="free")
    client = connect(base_url, operator.api_keys.create(tenant.id).api_key)
    with pytest.raises(PolicyDeniedError) as caught:
        client.kem.encrypt(b"", algorithm="X-Wing")
    assert (caught.value.status, caught.value.error_code) == (403, "ERR_POLICY_001")
    assert isinstance(caught.value, PermissionDeniedError)


def test_too_many_requests(connect: Connect, operator: Client, base_url: str) -> None:
    """Too many requests raise RateLimitError with the seconds to wait."""
    tenant = operator.tenants.create(f"test {uuid4()}")
    operator.tenants.update(tenant.id, requests_per_minute=2)
    api_key = operator.api_keys.create(tenant.id).api_key
    client = connect(base_url, api_key, timeout=PATIENCE, retries=0)
    assert client.keys.list() == client.keys.list() == ()
    with pytest.raises(RateLimitError) as caught:
        tuple(client.keys.list() for _ in range(5))
    assert (caught.value.status, caught.value.error_code) == (429, "ERR_RATE_LIMIT_001")
    assert caught.value.retry_after is not None
    assert 1 <= caught.value.retry_after <= 60


def test_no_key(client: Client) -> None:
    """Every operation without a matching key raises NotFoundError."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: client.kem.encrypt(b""),
        lambda: client.kem.decrypt(bytes(2000), key_version=1),
        lambda: client.kem.encapsulate(key_version=1),
        lambda: client.kem.decapsulate(bytes(1088), key_version=1),
        lambda: client.signatures.sign(b""),
        lambda: client.signatures.verify(b"", b"", key_version=1),
        lambda: client.keys.rotate(KEM),
        lambda: client.keys.retire(KEM, key_version=1),
        lambda: client.keys.active(KEM),
        lambda: client.keys.get(KEM, key_version=1),
    )
    for call in calls:
        with pytest.raises(NotFoundError) as caught:
            call()
        assert (caught.value.status, caught.value.error_code) == (404, "ERR_NOT_FOUND_001")


def test_missing_version(client: Client) -> None:
    """A version that never existed raises NotFoundError."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"a secret")
    with pytest.raises(NotFoundError):
        client.kem.decrypt(sealed.ciphertext, key_version=2)


def test_another_tenant(
    client: Client, connect: Connect, base_url: str, new_api_key: Callable[[], str]
) -> None:
    """Another tenant does not find our key, and cannot open our ciphertexts with its own key."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"a secret")
    other = connect(base_url, new_api_key())
    assert other.keys.list() == ()
    with pytest.raises(NotFoundError):
        other.kem.decrypt(sealed.ciphertext, key_version=1)
    other.keys.generate(KEM)
    with pytest.raises(DecryptionError) as caught:
        other.kem.decrypt(sealed.ciphertext, key_version=1)
    assert caught.value.error_code == "ERR_KEM_002"


def test_invalid_requests(client: Client) -> None:
    """Each kind of invalid request raises its own class, with the error code."""
    client.keys.generate(KEM)
    client.keys.generate(SIGNATURE)
    sealed = client.kem.encrypt(b"a secret").ciphertext
    wrapped = client.kem.wrap(bytes(32), key_version=1).wrapped_key
    too_much = bytes(1_048_577)
    digest, sha = bytes(32), "SHA-256"
    kem, signatures, keys = client.kem, client.signatures, client.keys
    calls: tuple[tuple[type[PqkeepError], str, Callable[[], object]], ...] = (
        (EncryptionInputError, "KEM_001", lambda: kem.encrypt(b"", key_version=0)),
        (EncryptionInputError, "KEM_001", lambda: kem.encrypt(too_much)),
        (EncryptionInputError, "KEM_001", lambda: kem.encapsulate(key_version=-1)),
        (DecryptionError, "KEM_002", lambda: kem.decrypt(sealed[:-1] + b"x", key_version=1)),
        (DecryptionError, "KEM_002", lambda: kem.decrypt(b"short", key_version=1)),
        (DecryptionError, "KEM_002", lambda: kem.decapsulate(b"short", key_version=1)),
        (InvalidModeError, "KEM_007", lambda: kem.encrypt(b"", mode="odd")),
        (WrappingInputError, "KEM_010", lambda: kem.wrap(bytes(17), key_version=1)),
        (UnwrappingInputError, "KEM_011", lambda: kem.unwrap(b"short", key_version=1)),
        (UnwrappingError, "KEM_012", lambda: kem.unwrap(wrapped[:-1] + b"x", key_version=1)),
        (SignatureInputError, "SIG_001", lambda: signatures.sign(b"", key_version=0)),
        (MessageTooLargeError, "SIG_002", lambda: signatures.sign(too_much)),
        (
            HashAlgorithmError,
            "SIG_010",
            lambda: signatures.sign_hash(digest, hash_algorithm="MD5"),
        ),
        (
            HashLengthError,
            "SIG_011",
            lambda: signatures.sign_hash(digest[1:], hash_algorithm=sha),
        ),
        (InvalidRequestError, "INVALID_001", lambda: kem.encrypt(b"", algorithm="ROT13")),
        (InvalidRequestError, "INVALID_001", lambda: kem.encrypt(b"", algorithm=SIGNATURE)),
        (InvalidRequestError, "INVALID_001", lambda: keys.generate(KEM)),
        (InvalidRequestError, "INVALID_001", lambda: keys.generate("a b&c=d")),
        (InvalidRequestError, "INVALID_001", lambda: keys.get(KEM, key_version=0)),
        (InvalidRequestError, "INVALID_001", lambda: keys.list(status="lost")),
    )
    for error, code, call in calls:
        with pytest.raises(InvalidRequestError) as caught:
            call()
        assert type(caught.value) is error
        assert (caught.value.status, caught.value.error_code) == (400, f"ERR_{code}")


def test_what_an_error_says(client: Client) -> None:
    """An error has message, field and request id, shows them, and can be copied."""
    with pytest.raises(PqkeepError) as caught:
        client.keys.list(algorithm="ROT13")
    error = caught.value
    assert error.field == "algorithm"
    assert error.retry_after is None
    assert str(UUID(error.request_id)) == error.request_id
    assert str(error) == f"{error.message} (ERR_INVALID_001, algorithm, request {error.request_id})"
    copied = copy.copy(error)
    assert type(copied) is type(error)
    assert vars(copied) == vars(error)
    assert str(copied) == str(error)


def test_secrets_are_not_shown(client: Client, api_key: str) -> None:
    """No repr shows an API key, a shared secret or a plaintext."""
    client.keys.generate(KEM)
    made = client.kem.encapsulate(key_version=1)
    assert repr(made) == f"Encapsulation(key_version=1, algorithm='{KEM}')"
    wrapped = client.kem.wrap(bytes(32), key_version=1)
    assert repr(wrapped).startswith("WrappedKey(key_version=1, algorithm=")
    for name in ("kem", "signatures", "macs", "keys", "tenants", "api_keys", "audit", "_transport"):
        assert api_key not in repr(client) + repr(getattr(client, name))
    assert api_key not in repr(client._transport._settings)


def test_connection_refused(connect: Connect) -> None:
    """A refused connection raises ConnectionFailedError without key and request."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        client = connect(f"http://127.0.0.1:{bound.getsockname()[1]}", NEVER_MADE)
        with pytest.raises(ConnectionFailedError, match="cannot be reached") as caught:
            client.kem.encrypt(b"a secret")
    error = caught.value
    assert (error.status, error.error_code) == (None, None)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert NEVER_MADE not in str(error) + repr(vars(error))

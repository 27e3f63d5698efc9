"""Every class of error, by a request that the real service refuses; and what errors keep quiet."""

import copy
import socket
from collections.abc import Callable
from contextlib import closing
from uuid import UUID, uuid4

import pytest

from pqkeep import (
    AuthenticationError,
    Client,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
    RateLimitError,
    ServiceUnavailableError,
)
from pqkeep._transport import Transport

KEM = "Kyber768"
SIGNATURE = "Dilithium3"
NEVER_MADE = "pqk_" + "0" * 49


def test_wrong_api_key(base_url: str) -> None:
    """An API key that nobody has is an AuthenticationError that does not tell the key."""
    with Client(base_url, NEVER_MADE) as client, pytest.raises(AuthenticationError) as caught:
        client.keys.list()
    assert (caught.value.status, caught.value.error_code) == (401, "ERR_AUTH_001")
    assert NEVER_MADE not in str(caught.value) + repr(caught.value)


def test_not_for_this_credential(base_url: str, service: dict[str, str]) -> None:
    """The operator uses no keys: PermissionDeniedError."""
    with (
        Client(base_url, service["operator_key"]) as client,
        pytest.raises(PermissionDeniedError) as caught,
    ):
        client.keys.list()
    assert (caught.value.status, caught.value.error_code) == (403, "ERR_FORBIDDEN_001")


def test_no_key(client: Client) -> None:
    """Every operation without a key to do it with is a NotFoundError."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: client.kem.encrypt(b""),
        lambda: client.kem.decrypt(bytes(2000), key_version=1),
        lambda: client.kem.encapsulate(key_version=1),
        lambda: client.kem.decapsulate(bytes(1088), key_version=1),
        lambda: client.signatures.sign(b""),
        lambda: client.signatures.verify(b"", b"", key_version=1),
        lambda: client.keys.rotate(KEM),
        lambda: client.keys.retire(KEM, 1),
        lambda: client.keys.active(KEM),
        lambda: client.keys.get(KEM, 1),
    )
    for call in calls:
        with pytest.raises(NotFoundError) as caught:
            call()
        assert (caught.value.status, caught.value.error_code) == (404, "ERR_NOT_FOUND_001")


def test_missing_version(client: Client) -> None:
    """A version that was never made is a NotFoundError, where version 1 is not."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"a secret")
    with pytest.raises(NotFoundError):
        client.kem.decrypt(sealed.ciphertext, key_version=2)


def test_another_tenant(client: Client, base_url: str, new_api_key: Callable[[], str]) -> None:
    """Another tenant finds no key of ours, and its own key opens nothing of ours."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"a secret")
    with Client(base_url, new_api_key()) as other:
        assert other.keys.list() == ()
        with pytest.raises(NotFoundError):
            other.kem.decrypt(sealed.ciphertext, key_version=1)
        other.keys.generate(KEM)
        with pytest.raises(InvalidRequestError) as caught:
            other.kem.decrypt(sealed.ciphertext, key_version=1)
    assert caught.value.error_code == "ERR_KEM_002"


def test_invalid_requests(client: Client) -> None:
    """What the service cannot take is an InvalidRequestError with the code of what is wrong."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"a secret").ciphertext
    too_much = bytes(1_048_577)
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("ERR_KEM_001", lambda: client.kem.encrypt(b"", key_version=0)),
        ("ERR_KEM_001", lambda: client.kem.encrypt(too_much)),
        ("ERR_KEM_001", lambda: client.kem.encapsulate(key_version=-1)),
        ("ERR_KEM_002", lambda: client.kem.decrypt(sealed[:-1] + b"x", key_version=1)),
        ("ERR_KEM_002", lambda: client.kem.decrypt(b"short", key_version=1)),
        ("ERR_KEM_002", lambda: client.kem.decapsulate(b"short", key_version=1)),
        ("ERR_SIG_002", lambda: client.signatures.sign(too_much)),
        ("ERR_INVALID_001", lambda: client.kem.encrypt(b"", algorithm="ROT13")),
        ("ERR_INVALID_001", lambda: client.kem.encrypt(b"", algorithm=SIGNATURE)),
        ("ERR_INVALID_001", lambda: client.keys.generate(KEM)),
        ("ERR_INVALID_001", lambda: client.keys.generate("a b&c=d")),
        ("ERR_INVALID_001", lambda: client.keys.get(KEM, 0)),
        ("ERR_INVALID_001", lambda: client.keys.list(status="lost")),
    )
    for code, call in calls:
        with pytest.raises(InvalidRequestError) as caught:
            call()
        assert (caught.value.status, caught.value.error_code) == (400, code)


def test_conflict(operator: Transport) -> None:
    """A name that is taken is a ConflictError."""
    body = {"name": f"test {uuid4()}"}
    operator.post("/tenants", body)
    with pytest.raises(ConflictError) as caught:
        operator.post("/tenants", body)
    assert (caught.value.status, caught.value.error_code) == (409, "ERR_CONFLICT_001")


def test_too_many_requests(base_url: str) -> None:
    """Too many sign-ups are a RateLimitError that says how many seconds to wait."""

    def sign_up_often() -> None:
        for _ in range(100):
            anonymous.post("/tenants", {"name": f"test {uuid4()}"})

    with closing(Transport(base_url, NEVER_MADE, 30.0)) as anonymous:
        del anonymous._http.headers["X-API-Key"]
        with pytest.raises(RateLimitError) as caught:
            sign_up_often()
    assert (caught.value.status, caught.value.error_code) == (429, "ERR_RATE_LIMIT_001")
    assert caught.value.retry_after is not None
    assert 1 <= caught.value.retry_after <= 3600


def test_what_an_error_says(client: Client) -> None:
    """An error has message, field and request ID, shows them, and survives being copied."""
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


def test_secrets_are_not_shown(client: Client) -> None:
    """No repr has an API key, a shared secret or a plaintext in it."""
    api_key = client._transport._http.headers["X-API-Key"]
    client.keys.generate(KEM)
    made = client.kem.encapsulate(key_version=1)
    assert repr(made) == f"Encapsulation(key_version=1, algorithm='{KEM}')"
    for shown in (client, client._transport, client.kem, client.signatures, client.keys):
        assert api_key not in repr(shown)


@pytest.mark.parametrize("api_key", ["", "two words", "line\nbreak", "clé", "nul\0"])
def test_impossible_api_keys(api_key: str) -> None:
    """What cannot be an API key is refused before it is used, and not repeated."""
    with pytest.raises(ValueError, match="the API key must be") as caught:
        Client("http://127.0.0.1", api_key)
    assert not api_key or api_key not in str(caught.value)


@pytest.mark.parametrize("base_url", ["", "127.0.0.1:8080", "ftp://h", "http://", "http://h:x"])
def test_impossible_addresses(base_url: str) -> None:
    """What cannot be the service's address is refused before it is used."""
    with pytest.raises(ValueError, match="the base URL must be"):
        Client(base_url, NEVER_MADE)


def test_connection_refused() -> None:
    """Where nobody listens is a ServiceUnavailableError that holds neither key nor request."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with Client(url, NEVER_MADE) as client, pytest.raises(ServiceUnavailableError) as caught:
            client.kem.encrypt(b"a secret")
    error = caught.value
    assert (error.status, error.error_code, error.request_id) == (None, None, None)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert NEVER_MADE not in str(error) + repr(vars(error))


def test_no_answer_in_time() -> None:
    """Someone who listens and does not answer is a ServiceUnavailableError."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, NEVER_MADE, timeout=0.1) as client,
            pytest.raises(ServiceUnavailableError, match="in time"),
        ):
            client.keys.list()

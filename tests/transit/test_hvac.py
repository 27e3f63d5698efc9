"""hvac, unmodified: each method of its Transit class, its token and AppRole methods, its sys methods.

The same tests pass against OpenBao (``PQKEEP_OPENBAO=PROGRAM pytest -m campaign tests/transit``).
Tests with the fixture ``pqkeep`` show what pqkeep refuses on purpose, or does differently.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from typing import Any

import hvac
import pytest
from hvac.api.secrets_engines.transit import Transit
from hvac.constants.transit import ALLOWED_KEY_TYPES
from hvac.exceptions import Forbidden, InvalidPath, InvalidRequest, ParamValidationError
from tests.transit.methods import METHODS

ENVELOPE = {
    "request_id",
    "lease_id",
    "renewable",
    "lease_duration",
    "data",
    "wrap_info",
    "warnings",
    "auth",
}
KEY_FIELDS = {
    "name": str,
    "type": str,
    "derived": bool,
    "exportable": bool,
    "allow_plaintext_backup": bool,
    "deletion_allowed": bool,
    "imported_key": bool,
    "soft_deleted": bool,
    "auto_rotate_period": int,
    "latest_version": int,
    "min_available_version": int,
    "min_decryption_version": int,
    "min_encryption_version": int,
    "supports_encryption": bool,
    "supports_decryption": bool,
    "supports_derivation": bool,
    "supports_signing": bool,
    "keys": dict,
}
"""The fields of a key, which clients read by these types."""
CIPHERTEXT = re.compile(r"vault:v([0-9]+):([A-Za-z0-9+/]+={0,2})")
TEXT, OTHER, CONTEXT, OTHER_CONTEXT = (
    b64encode(text).decode()
    for text in (b"4111 1111 1111 1", b"another text", b"tenant 7", b"tenant 8")
)
BAD_CIPHERTEXT = "cipher: message authentication failed"
TOO_OLD = "ciphertext or signature version is disallowed by policy (too old)"


def version(ciphertext: str) -> int:
    """Return the version that a ciphertext, signature or MAC names, after checking its form."""
    found = CIPHERTEXT.fullmatch(ciphertext)
    assert found, ciphertext
    assert b64decode(found[2], validate=True)
    return int(found[1])


def refusal(error: pytest.ExceptionInfo[Any]) -> str:
    """Return the one sentence of a refusal."""
    (sentence,) = error.value.errors
    assert isinstance(sentence, str)
    return sentence


def create(client: hvac.Client, name: str, **fields: Any) -> str:
    """Make a key of a type that hvac does not list; return its name."""
    client.write_data(f"transit/keys/{name}", data=fields)
    return name


@pytest.fixture
def transit(client: hvac.Client) -> Transit:
    """Hvac's Transit class."""
    return client.secrets.transit


@pytest.fixture
def key(transit: Transit, name: str) -> str:
    """A key that encrypts."""
    transit.create_key(name)
    return name


@pytest.fixture
def derived(transit: Transit, name: str) -> str:
    """A key whose operations need a context."""
    transit.create_key(name, derived=True)
    return name


@pytest.fixture
def signing_key(server: Any, client: hvac.Client, name: str) -> str:
    """A key that signs: OpenBao has only classical algorithms, and pqkeep has none."""
    if server.is_pqkeep:
        return create(client, f"{name}-signs", type="ml-dsa", parameter_set="65")
    return create(client, f"{name}-signs", type="ed25519")


def test_each_method_has_a_test() -> None:
    """The table has each public method of the class, and each that works has a test here."""
    methods = {name for name in vars(Transit) if not name.startswith("_")}
    assert methods == METHODS.keys()
    tests = " ".join(name for name in globals() if name.startswith("test_"))
    assert [name for name in METHODS if not METHODS[name].refusal and name not in tests] == []


# Keys


def test_create_key(transit: Transit, name: str) -> None:
    """Creating a key returns the key. Creating it a second time changes nothing."""
    first = transit.create_key(name)
    assert first["data"] == transit.create_key(name)["data"] == transit.read_key(name)["data"]
    assert first["data"]["latest_version"] == 1


@pytest.mark.parametrize("key_type", ["aes256-gcm96", "chacha20-poly1305"])
def test_create_key_of_a_type(transit: Transit, name: str, key_type: str) -> None:
    """A key has the type that was asked for, also after a rotation."""
    transit.create_key(name, key_type=key_type)
    transit.rotate_key(name)
    assert transit.read_key(name)["data"]["type"] == key_type


def test_read_key(transit: Transit, key: str) -> None:
    """A key has each field of the right type, and no public key."""
    response = transit.read_key(key)
    assert response.keys() == ENVELOPE
    assert {field: type(response["data"][field]) for field in KEY_FIELDS} == KEY_FIELDS
    data = response["data"]
    assert (data["name"], data["type"]) == (key, "aes256-gcm96")
    numbers = {field: value for field, value in data.items() if type(value) is int}
    assert numbers == {
        "auto_rotate_period": 0,
        "latest_version": 1,
        "min_available_version": 0,
        "min_decryption_version": 1,
        "min_encryption_version": 0,
    }
    supported = {field for field in data if field.startswith("supports_") and data[field]}
    assert supported == {"supports_encryption", "supports_decryption", "supports_derivation"}
    assert {number: type(made) for number, made in data["keys"].items()} == {"1": int}


def test_read_key_that_does_not_exist(transit: Transit, name: str) -> None:
    """An unknown key is 404 without a sentence: clients take it for absent."""
    with pytest.raises(InvalidPath) as error:
        transit.read_key(name)
    assert error.value.errors == []


def test_read_key_with_a_public_key(transit: Transit, signing_key: str) -> None:
    """A key that signs shows each version's public key, name and time."""
    data = transit.read_key(signing_key)["data"]
    assert data["supports_signing"]
    assert not data["supports_encryption"]
    assert {"name", "public_key", "creation_time"} <= data["keys"]["1"].keys()


def test_list_keys(server: Any) -> None:
    """The names are listed by LIST and by GET with list=true, in order."""
    token = server.new_token()
    names = ["Upper", "a.b", "b_c", "d-e"]
    for strict_http in (False, True):
        transit = server.client(token=token, strict_http=strict_http).secrets.transit
        for name in names:
            transit.create_key(name)
        assert transit.list_keys()["data"] == {"keys": names}


def test_list_keys_where_there_are_none(server: Any) -> None:
    """Without a key the list is 404 without a sentence."""
    transit = server.client(token=server.new_token()).secrets.transit
    with pytest.raises(InvalidPath) as error:
        transit.list_keys()
    assert error.value.errors == []


def test_update_key_configuration(transit: Transit, key: str) -> None:
    """Floors are numbers that a read shows; an old version is refused, and works again."""
    old = transit.encrypt_data(key, TEXT)["data"]["ciphertext"]
    transit.rotate_key(key)
    transit.update_key_configuration(key, min_decryption_version=2)
    transit.update_key_configuration(key, min_encryption_version=2)
    data = transit.read_key(key)["data"]
    assert (data["min_decryption_version"], data["min_encryption_version"]) == (2, 2)
    assert data["keys"].keys() == {"2"}
    with pytest.raises(InvalidRequest) as error:
        transit.decrypt_data(key, old)
    assert refusal(error) == TOO_OLD
    with pytest.raises(InvalidRequest):
        transit.encrypt_data(key, TEXT, key_version=1)
    transit.update_key_configuration(key, min_decryption_version=1, min_encryption_version=0)
    assert transit.decrypt_data(key, old)["data"]["plaintext"] == TEXT
    assert transit.read_key(key)["data"]["keys"].keys() == {"1", "2"}


def test_update_key_configuration_beyond_the_latest_version(transit: Transit, key: str) -> None:
    """A floor above the latest version is refused."""
    for floor in ("min_decryption_version", "min_encryption_version"):
        with pytest.raises(InvalidRequest):
            transit.update_key_configuration(key, **{floor: 2})
    with pytest.raises(ParamValidationError):
        transit.update_key_configuration(key, min_encryption_version=1, min_decryption_version=2)


def test_delete_key(transit: Transit, key: str) -> None:
    """A key can be deleted after its configuration allows it. It is then unknown and not listed."""
    with pytest.raises(InvalidRequest) as error:
        transit.delete_key(key)
    assert "deletion is not allowed for this key" in refusal(error)
    transit.update_key_configuration(key, deletion_allowed=True)
    assert transit.read_key(key)["data"]["deletion_allowed"] is True
    assert transit.delete_key(key).status_code == 204
    with pytest.raises(InvalidPath):
        transit.read_key(key)
    transit.create_key(f"{key}-other")
    assert key not in transit.list_keys()["data"]["keys"]


def test_delete_key_without_the_scope(pqkeep: Any, name: str) -> None:
    """An API key without a scope for deletion cannot allow the deletion, and cannot delete."""
    token = pqkeep.new_token([{"operations": ["*"]}])
    transit = pqkeep.client(token=token).secrets.transit
    transit.create_key(name)
    transit.update_key_configuration(name, deletion_allowed=False)
    with pytest.raises(Forbidden) as error:
        transit.update_key_configuration(name, deletion_allowed=True)
    assert "delete-keyring" in refusal(error)
    with pytest.raises(Forbidden) as error:
        transit.delete_key(name)
    assert "delete-keyring" in refusal(error)
    assert transit.read_key(name)["data"]["deletion_allowed"] is False


def test_rotate_key(transit: Transit, key: str) -> None:
    """A rotation adds a version, which encrypts from then on; the old one still decrypts."""
    old = transit.encrypt_data(key, TEXT)["data"]["ciphertext"]
    transit.rotate_key(key)
    data = transit.read_key(key)["data"]
    assert (data["latest_version"], data["keys"].keys()) == (2, {"1", "2"})
    new = transit.encrypt_data(key, TEXT)["data"]
    assert (version(old), version(new["ciphertext"]), new["key_version"]) == (1, 2, 2)
    assert transit.decrypt_data(key, old)["data"]["plaintext"] == TEXT
    named = transit.encrypt_data(key, TEXT, key_version=2)["data"]["ciphertext"]
    assert version(named) == 2


def test_encrypt_data_with_an_older_version(server: Any, transit: Transit, key: str) -> None:
    """OpenBao encrypts with each version above a floor; pqkeep with the latest only."""
    transit.rotate_key(key)
    if server.is_pqkeep:
        with pytest.raises(InvalidRequest):
            transit.encrypt_data(key, TEXT, key_version=1)
    else:
        old = transit.encrypt_data(key, TEXT, key_version=1)["data"]["ciphertext"]
        assert version(old) == 1


# Encryption


def test_encrypt_data_and_decrypt_data(transit: Transit, key: str) -> None:
    """A ciphertext has Transit's form and opens; another version or byte in it does not."""
    response = transit.encrypt_data(key, TEXT)
    assert response.keys() == ENVELOPE
    ciphertext = response["data"]["ciphertext"]
    assert version(ciphertext) == response["data"]["key_version"] == 1
    assert len(ciphertext) <= 90
    assert transit.decrypt_data(key, ciphertext)["data"] == {"plaintext": TEXT}
    transit.rotate_key(key)
    changed = ciphertext[:-6] + ("B" if ciphertext[-6] == "A" else "A") + ciphertext[-5:]
    for forged in (changed, ciphertext.replace(":v1:", ":v2:")):
        with pytest.raises(InvalidRequest) as error:
            transit.decrypt_data(key, forged)
        assert refusal(error) == BAD_CIPHERTEXT


def test_encrypt_data_of_nothing(transit: Transit, key: str) -> None:
    """An empty plaintext encrypts and decrypts."""
    ciphertext = transit.encrypt_data(key, "")["data"]["ciphertext"]
    assert transit.decrypt_data(key, ciphertext)["data"]["plaintext"] == ""


def test_encrypt_data_with_associated_data(transit: Transit, key: str) -> None:
    """Associated data is needed again to decrypt."""
    ciphertext = transit.encrypt_data(key, TEXT, associated_data=CONTEXT)["data"]["ciphertext"]
    opened = transit.decrypt_data(key, ciphertext, associated_data=CONTEXT)
    assert opened["data"]["plaintext"] == TEXT
    for other in ({}, {"associated_data": OTHER_CONTEXT}):
        with pytest.raises(InvalidRequest) as error:
            transit.decrypt_data(key, ciphertext, **other)
        assert refusal(error) == BAD_CIPHERTEXT


def test_encrypt_data_with_a_derived_key(transit: Transit, derived: str) -> None:
    """A derived key needs a context. A ciphertext opens only with its own context."""
    assert transit.read_key(derived)["data"]["derived"] is True
    with pytest.raises(InvalidRequest) as error:
        transit.encrypt_data(derived, TEXT)
    assert "context" in refusal(error)
    ciphertext = transit.encrypt_data(derived, TEXT, context=CONTEXT)["data"]["ciphertext"]
    opened = transit.decrypt_data(derived, ciphertext, context=CONTEXT)
    assert opened["data"]["plaintext"] == TEXT
    with pytest.raises(InvalidRequest) as error:
        transit.decrypt_data(derived, ciphertext, context=OTHER_CONTEXT)
    assert refusal(error) == BAD_CIPHERTEXT


def test_encrypt_data_in_a_batch(transit: Transit, derived: str) -> None:
    """Items have contexts and references of their own; results are in the order of the items."""
    items = [
        {"plaintext": TEXT, "context": CONTEXT, "reference": "first"},
        {"plaintext": OTHER, "context": OTHER_CONTEXT},
    ]
    results = transit.encrypt_data(derived, batch_input=items)["data"]["batch_results"]
    assert [result.get("reference", "") for result in results] == ["first", ""]
    assert [version(result["ciphertext"]) for result in results] == [1, 1]
    asked = [
        {"ciphertext": result["ciphertext"], "context": item["context"], "reference": str(number)}
        for number, (item, result) in enumerate(zip(items, results, strict=True))
    ]
    opened = transit.decrypt_data(derived, batch_input=asked)["data"]["batch_results"]
    assert [(result["plaintext"], result["reference"]) for result in opened] == [
        (TEXT, "0"),
        (OTHER, "1"),
    ]


def test_decrypt_data_in_a_batch_that_fails_in_part(
    client: hvac.Client, transit: Transit, key: str
) -> None:
    """A batch with a bad item is 400 with every result, or has the status that was asked for."""
    ciphertext = transit.encrypt_data(key, TEXT)["data"]["ciphertext"]
    bad = f"vault:v1:{b64encode(bytes(60)).decode()}"
    batch = [{"ciphertext": ciphertext}, {"ciphertext": bad, "reference": "bad"}]
    with pytest.raises(InvalidRequest) as error:
        transit.decrypt_data(key, batch_input=batch)
    results = error.value.json["data"]["batch_results"]
    body = {"batch_input": batch, "partial_failure_response_code": 202}
    asked = client.write_data(f"transit/decrypt/{key}", data=body)
    assert asked.status_code == 202
    assert asked.json()["data"]["batch_results"] == results
    assert (results[0]["plaintext"], results[0].get("error")) == (TEXT, None)
    assert (results[1]["error"], results[1]["reference"]) == (BAD_CIPHERTEXT, "bad")
    assert not results[1].get("plaintext")


def test_decrypt_data_of_an_unknown_key(transit: Transit, key: str, name: str) -> None:
    """A ciphertext of one key does not open under an unknown or another key."""
    ciphertext = transit.encrypt_data(key, TEXT)["data"]["ciphertext"]
    with pytest.raises(InvalidRequest) as error:
        transit.decrypt_data(f"{name}-unknown", ciphertext)
    assert refusal(error) == "encryption key not found"
    transit.create_key(f"{name}-other")
    with pytest.raises(InvalidRequest) as error:
        transit.decrypt_data(f"{name}-other", ciphertext)
    assert refusal(error) == BAD_CIPHERTEXT


@pytest.mark.parametrize("ciphertext", ["", "vault", "vault:v1", "vault:v1:", "vault:v1:!!!"])
def test_decrypt_data_of_another_form(transit: Transit, key: str, ciphertext: str) -> None:
    """A text without Transit's form is refused."""
    with pytest.raises(InvalidRequest):
        transit.decrypt_data(key, ciphertext)


def test_encrypt_data_creates_a_key(transit: Transit, name: str) -> None:
    """Encrypting under an unknown name creates the key, of the type that is named."""
    ciphertext = transit.encrypt_data(name, TEXT, type="chacha20-poly1305")["data"]["ciphertext"]
    assert transit.decrypt_data(name, ciphertext)["data"]["plaintext"] == TEXT
    assert transit.read_key(name)["data"]["type"] == "chacha20-poly1305"


def test_rewrap_data(client: hvac.Client, transit: Transit, key: str) -> None:
    """A ciphertext, alone and in a batch, moves to the latest version without its plaintext."""
    old = transit.encrypt_data(key, TEXT)["data"]["ciphertext"]
    transit.rotate_key(key)
    moved = transit.rewrap_data(key, old)["data"]
    assert moved.keys() == {"ciphertext", "key_version"}
    body = {"batch_input": [{"ciphertext": old, "reference": "r"}]}
    (result,) = client.write_data(f"transit/rewrap/{key}", data=body)["data"]["batch_results"]
    assert result["reference"] == "r"
    for new in (moved["ciphertext"], result["ciphertext"]):
        assert version(new) == 2
        assert transit.decrypt_data(key, new)["data"]["plaintext"] == TEXT


def test_rewrap_data_with_a_context(transit: Transit, derived: str) -> None:
    """Rewrapping under a derived key needs the context of the ciphertext."""
    old = transit.encrypt_data(derived, TEXT, context=CONTEXT)["data"]["ciphertext"]
    transit.rotate_key(derived)
    new = transit.rewrap_data(derived, old, context=CONTEXT)["data"]["ciphertext"]
    assert version(new) == 2
    assert transit.decrypt_data(derived, new, context=CONTEXT)["data"]["plaintext"] == TEXT
    with pytest.raises(InvalidRequest):
        transit.rewrap_data(derived, old, context=OTHER_CONTEXT)


@pytest.mark.parametrize("bits", [None, 128, 256, 512])
def test_generate_data_key(transit: Transit, key: str, bits: int | None) -> None:
    """A data key has the requested bits, 256 by default, and decrypts to the shown key."""
    made = transit.generate_data_key(key, "plaintext", bits=bits)["data"]
    assert made.keys() == {"ciphertext", "key_version", "plaintext"}
    assert len(b64decode(made["plaintext"], validate=True)) * 8 == (bits or 256)
    opened = transit.decrypt_data(key, made["ciphertext"])["data"]["plaintext"]
    assert opened == made["plaintext"]
    wrapped = transit.generate_data_key(key, "wrapped", bits=bits)["data"]
    assert wrapped.keys() == {"ciphertext", "key_version"}
    hidden = transit.decrypt_data(key, wrapped["ciphertext"])["data"]["plaintext"]
    assert len(b64decode(hidden, validate=True)) * 8 == (bits or 256)


def test_generate_data_key_with_a_context(transit: Transit, derived: str) -> None:
    """A data key under a derived key opens with its context."""
    made = transit.generate_data_key(derived, "plaintext", context=CONTEXT)["data"]
    opened = transit.decrypt_data(derived, made["ciphertext"], context=CONTEXT)["data"]
    assert opened["plaintext"] == made["plaintext"]
    with pytest.raises(InvalidRequest):
        transit.decrypt_data(derived, made["ciphertext"], context=OTHER_CONTEXT)


# Refusals


REFUSED_CALLS = {
    "export_key": ("encryption-key",),
    "backup_key": (),
    "trim_key": (1,),
}
"""The arguments after the key, for each refused method except the one without a key."""


@pytest.mark.parametrize("method", REFUSED_CALLS)
def test_a_method_is_refused(pqkeep: Any, transit: Transit, key: str, method: str) -> None:
    """Operations that would export keys, or destroy them, are refused with a reason."""
    with pytest.raises(InvalidRequest) as error:
        getattr(transit, method)(key, *REFUSED_CALLS[method])
    assert refusal(error) == METHODS[method].refusal


def test_restore_key(pqkeep: Any, transit: Transit, key: str) -> None:
    """A backup of another server is refused, with and without a name."""
    for name in (None, key):
        with pytest.raises(InvalidRequest) as error:
            transit.restore_key(TEXT, name)
        assert refusal(error) == METHODS["restore_key"].refusal


@pytest.mark.parametrize(
    "key_type", sorted({*ALLOWED_KEY_TYPES} - {"aes256-gcm96", "chacha20-poly1305"})
)
def test_create_key_of_a_classical_type(
    pqkeep: Any, transit: Transit, name: str, key_type: str
) -> None:
    """A classical type is refused with the types that replace it, and no key is made instead."""
    with pytest.raises(InvalidRequest) as error:
        transit.create_key(name, key_type=key_type)
    assert key_type in refusal(error)
    assert "ml-dsa" in refusal(error)
    assert "hybrid" in refusal(error)
    with pytest.raises(InvalidPath):
        transit.read_key(name)


@pytest.mark.parametrize(
    "asked",
    [
        {"exportable": True},
        {"allow_plaintext_backup": True},
        {"convergent_encryption": True, "derived": True},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_create_key_with_what_is_refused(
    pqkeep: Any, transit: Transit, name: str, asked: dict[str, bool]
) -> None:
    """An option that weakens a key is refused by name, and no key is made; false is accepted."""
    with pytest.raises(InvalidRequest) as error:
        transit.create_key(name, **asked)
    assert next(iter(asked)) in refusal(error)
    with pytest.raises(InvalidPath):
        transit.read_key(name)
    transit.create_key(name, **dict.fromkeys(asked, False))


def test_update_key_configuration_with_what_is_refused(
    pqkeep: Any, transit: Transit, key: str
) -> None:
    """A key does not become exportable later."""
    for field in ("exportable", "allow_plaintext_backup"):
        with pytest.raises(InvalidRequest) as error:
            transit.update_key_configuration(key, **{field: True})
        assert field in refusal(error)
        transit.update_key_configuration(key, **{field: False})


def test_encrypt_data_with_a_nonce(pqkeep: Any, client: hvac.Client, key: str) -> None:
    """A nonce of the caller's is refused, also in a batch; null and an empty one are none."""
    transit, nonce = client.secrets.transit, b64encode(bytes(12)).decode()
    with pytest.raises(InvalidRequest) as error:
        transit.encrypt_data(key, TEXT, nonce=nonce)
    assert "nonce" in refusal(error)
    with pytest.raises(InvalidRequest):
        transit.encrypt_data(key, batch_input=[{"plaintext": TEXT, "nonce": nonce}])
    for absent in (None, ""):
        body = {"plaintext": TEXT, "nonce": absent}
        assert client.write_data(f"transit/encrypt/{key}", data=body)["data"]["ciphertext"]


def test_a_response_that_should_be_wrapped(pqkeep: Any, client: hvac.Client, key: str) -> None:
    """A wrapped response is refused; the operation has no effect."""
    with pytest.raises(InvalidRequest) as error:
        client.write_data(f"transit/keys/{key}/rotate", data={}, wrap_ttl="60s")
    assert "X-Vault-Wrap-TTL" in refusal(error)
    assert client.secrets.transit.read_key(key)["data"]["latest_version"] == 1


def test_another_namespace(pqkeep: Any) -> None:
    """A namespace other than the token's tenant is refused."""
    with pytest.raises(InvalidRequest) as error:
        pqkeep.client(namespace="another").secrets.transit.list_keys()
    assert "X-Vault-Namespace" in refusal(error)
    tenant = pqkeep.client().auth.token.lookup_self()["data"]["meta"]["tenant_id"]
    pqkeep.client(namespace=tenant).secrets.transit.create_key("of-this-tenant")


# Random bytes, hashes, MACs, signatures


def test_generate_random_bytes(transit: Transit) -> None:
    """Random bytes have the asked number and form; 32 in base64 unless asked otherwise."""
    first, second = (transit.generate_random_bytes()["data"]["random_bytes"] for _ in "ab")
    assert first != second
    assert len(b64decode(first, validate=True)) == 32
    large = transit.generate_random_bytes(128 * 1024, "hex")["data"]["random_bytes"]
    assert len(bytes.fromhex(large)) == 128 * 1024
    for number in (0, 128 * 1024 + 1):
        with pytest.raises(InvalidRequest):
            transit.generate_random_bytes(number)


@pytest.mark.parametrize("algorithm", [None, "sha2-224", "sha2-256", "sha2-384", "sha2-512"])
def test_hash_data(transit: Transit, algorithm: str | None) -> None:
    """A hash is the algorithm's, SHA-256 by default, in hexadecimal or base64."""
    expected = hashlib.new((algorithm or "sha2-256").replace("2-", ""), b64decode(TEXT)).digest()
    assert transit.hash_data(TEXT, algorithm)["data"] == {"sum": expected.hex()}
    encoded = b64encode(expected).decode()
    assert transit.hash_data(TEXT, algorithm, "base64")["data"] == {"sum": encoded}


def test_generate_hmac(client: hvac.Client, transit: Transit, name: str) -> None:
    """A MAC verifies for its input only, also after a rotation."""
    key = create(client, name, type="hmac", key_size=32)
    made = transit.generate_hmac(key, TEXT)["data"]["hmac"]
    assert version(made) == 1
    transit.rotate_key(key)
    assert version(transit.generate_hmac(key, TEXT)["data"]["hmac"]) == 2
    assert transit.verify_signed_data(key, TEXT, hmac=made)["data"] == {"valid": True}
    assert transit.verify_signed_data(key, OTHER, hmac=made)["data"] == {"valid": False}


def test_sign_data_and_verify_signed_data(transit: Transit, signing_key: str) -> None:
    """A signature verifies for its input only, also after a rotation."""
    made = transit.sign_data(signing_key, TEXT)["data"]
    assert version(made["signature"]) == made["key_version"] == 1
    transit.rotate_key(signing_key)
    signature = made["signature"]
    for text, is_valid in ((TEXT, True), (OTHER, False)):
        verified = transit.verify_signed_data(signing_key, text, signature=signature)
        assert verified["data"] == {"valid": is_valid}


def test_sign_data_in_a_batch(client: hvac.Client, transit: Transit, signing_key: str) -> None:
    """Each item of a batch gets a signature, and each is verified."""
    items = [{"input": TEXT, "reference": "r"}, {"input": OTHER}]
    made = transit.sign_data(signing_key, batch_input=items)["data"]["batch_results"]
    assert [result.get("reference", "") for result in made] == ["r", ""]
    signatures = [result["signature"] for result in made]
    batch = [
        {"input": text, "signature": signature}
        for text, signature in zip((TEXT, TEXT), signatures, strict=True)
    ]
    body = {"batch_input": batch}
    verified = client.write_data(f"transit/verify/{signing_key}", data=body)["data"]
    assert [result["valid"] for result in verified["batch_results"]] == [True, False]


def test_sign_data_by_a_key_that_encrypts(transit: Transit, key: str, signing_key: str) -> None:
    """A key supports only the operations of its type."""
    with pytest.raises(InvalidRequest):
        transit.sign_data(key, TEXT)
    with pytest.raises(InvalidRequest):
        transit.encrypt_data(signing_key, TEXT)


# Tokens


def test_the_token_that_hvac_sends(server: Any) -> None:
    """A known token is authenticated; an unknown or missing one is refused with 403."""
    assert server.client().is_authenticated()
    for token in ("pqkeep-unknown", ""):
        client = server.client(token=token)
        assert not client.is_authenticated()
        with pytest.raises(Forbidden) as error:
            client.secrets.transit.list_keys()
        assert refusal(error) == "permission denied"


def test_lookup_self(server: Any, client: hvac.Client) -> None:
    """A token's description has the token, numbers for times, and a list of policies."""
    data = client.auth.token.lookup_self()["data"]
    assert data["id"] == server.token
    for field in ("ttl", "creation_ttl", "creation_time", "num_uses", "explicit_max_ttl"):
        assert type(data[field]) is int, field
    assert isinstance(data["policies"], list)
    assert isinstance(data["renewable"], bool)


def test_renew_self(client: hvac.Client) -> None:
    """A renewal succeeds and names the token."""
    auth = client.auth.token.renew_self()["auth"]
    assert auth["client_token"] == client.token
    assert type(auth["lease_duration"]) is int


def test_revoke_self(pqkeep: Any) -> None:
    """Programs revoke their token when they end. The API key still works when they start again."""
    token = pqkeep.new_token()
    client = pqkeep.client(token=token)
    client.auth.token.revoke_self()
    assert pqkeep.client(token=token).is_authenticated()


def test_approle_login(server: Any) -> None:
    """Signing in by AppRole gives hvac a token that works; a wrong secret is refused."""
    client = server.client(token="")
    made = client.auth.approle.login(server.role_id, server.secret_id)
    assert made["auth"]["client_token"] == client.token
    assert client.is_authenticated()
    with pytest.raises((Forbidden, InvalidRequest)):
        client.auth.approle.login(server.role_id, "pqkeep-unknown")


# The server


def test_health_and_seal_status(server: Any) -> None:
    """Without a token, a server reports its version, and that it is initialised and not sealed."""
    client = server.client(token="")
    assert client.sys.read_health_status().status_code == 200
    health = client.sys.read_health_status(method="GET")
    assert (health["initialized"], health["sealed"], health["standby"]) == (True, False, False)
    status = client.sys.read_seal_status()
    assert not client.sys.is_sealed()
    assert client.sys.is_initialized()
    assert re.match(r"[0-9]+\.[0-9]+\.[0-9]+", status["version"])
    assert status["version"] == health["version"]
    assert client.sys.read_leader_status().keys() >= {"ha_enabled", "is_self", "leader_address"}


def test_list_mounted_secrets_engines(server: Any) -> None:
    """A token sees the one mount; without one the list is refused."""
    mounts = server.client().sys.list_mounted_secrets_engines()["data"]
    assert mounts["transit/"]["type"] == "transit"
    with pytest.raises(Forbidden):
        server.client(token="").sys.list_mounted_secrets_engines()

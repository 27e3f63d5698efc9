"""``pqkeep keyrings``, and keys of keyrings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

    from pqkeep import Client


def test_keyrings(command: Command, tenant: Client) -> None:
    """A keyring is created, changed, shown and listed.

    Its keys are separate from other keyrings' keys.
    """
    asked = ("--label", "team=payments", "--purpose", "encrypt", "--rotation-days", "90")
    assert command("keyrings", "create", "payments.cards", *asked).status == 0
    made = tenant.keyrings.get("payments.cards")
    assert (made.labels, made.purposes, made.rotation_days) == (
        {"team": "payments"},
        ("encrypt",),
        90,
    )
    changes = ("--description", "cards", "--minimum-encryption-version", "1")
    assert command("keyrings", "update", "payments.cards", *changes).status == 0
    assert tenant.keyrings.get("payments.cards").minimum_encryption_version == 1
    shown = json.loads(command("--output", "json", "keyrings", "show", "payments.cards").out)
    assert (shown["description"], shown["labels"]) == ("cards", {"team": "payments"})
    listed = json.loads(command("--output", "json", "keyrings", "list").out)
    assert [keyring["name"] for keyring in listed["keyrings"]] == ["default", "payments.cards"]
    found = json.loads(command("--output", "json", "keyrings", "list", "--prefix", "pay").out)
    assert [keyring["name"] for keyring in found["keyrings"]] == ["payments.cards"]
    assert (
        json.loads(command("--output", "json", "keyrings", "list", "--deleted").out)["total"] == 0
    )
    assert command("keyrings", "restore", "payments.cards").status == 0
    of = ("--keyring", "payments.cards")
    for _ in range(2):
        assert command("keys", "generate", "Kyber768", "--if-absent", *of).status == 0
    assert command("keys", "rotate", "Kyber768", *of).status == 0
    assert command("keys", "disable", "Kyber768", "--key-version", "1", *of).status == 0
    keys = tenant.keys.list(keyring="payments.cards")
    assert [(key.key_version, key.status) for key in keys] == [(1, "disabled"), (2, "active")]
    assert json.loads(command("--output", "json", "keys", "list").out)["total"] == 0
    assert command("keyrings", "create", "x", "--label", "team").status != 0
    more = (
        *("--first-version", "9", "--transit-type", "aes256-gcm96"),
        "--retired-public-keys-allowed",
    )
    assert command("keyrings", "create", "moved", *more).status == 0
    moved = tenant.keyrings.get("moved")
    assert (moved.first_version, moved.transit_type) == (9, "aes256-gcm96")
    assert moved.retired_public_keys_allowed
    every = ("keys", "list", "--all-keyrings")
    found = json.loads(command("--output", "json", *every).out)["keys"]
    assert [key["keyring"] for key in found] == ["payments.cards"] * 2
    assert command(*every).out.split()[0] == b"KEYRING"
    assert command(*every, *of).status == 2
    assert tenant.keys.list_page(all_keyrings=True, limit=1).items[0].keyring == "payments.cards"


def test_files_of_a_keyring(command: Command, tenant: Client) -> None:
    """Files of a keyring's key name the keyring, so no option is needed to read them."""
    tenant.keyrings.create("cards")
    of = ("--keyring", "cards")
    plain = command.directory / "card.txt"
    plain.write_bytes(b"0123456789abcdef")  # the size of a key too
    for algorithm in ("Kyber768", "Dilithium3"):
        assert command("keys", "generate", algorithm, *of).status == 0
    made = command("keys", "public-key", "Kyber768", *of, "--to", "key.json")
    assert (made.status, made.err) == (0, "")
    for options in (of, (*of, "--server-side"), (*of, "--envelope"), ("--public-key", "key.json")):
        ended = command("encrypt", "card.txt", "--force", *options)
        assert (ended.status, ended.out) == (0, b""), ended.err
        assert command("decrypt", "card.txt.pqk", "--to", "-").out == plain.read_bytes()
    wrapped = command("wrap", "card.txt", *of).out
    assert json.loads(wrapped)["keyring"] == "cards"
    assert command("unwrap", stdin=wrapped).out == plain.read_bytes()
    sealed = command("encapsulate", "--secret", "secret", *of).out
    assert command("decapsulate", stdin=sealed).out == (command.directory / "secret").read_bytes()
    command("keys", "public-key", "Dilithium3", *of, "--to", "signer.json")
    for use in ((), ("--context", "orders")):
        assert command("sign", "card.txt", "--force", *of, *use).status == 0
        for by in (of, ("--public-key", "signer.json")):
            assert command("verify", "card.txt", *use, *by).status == 0
        assert command("verify", "card.txt", *use, "--keyring", "default").status == 7
    assert command("sign", "card.txt", "--jws", *of).status == 0
    (key,) = json.loads(command("keys", "jwks", *of).out)["keys"]
    assert key["alg"] == "ML-DSA-65"
    shown = json.loads(command("--output", "json", "keys", "show", "Kyber768", *of).out)
    assert (shown["key_version"], shown["uses"] > 0) == (1, True)
    lines = command("--output", "json", "audit", "records", *of, "--limit", "0").out.splitlines()
    assert {json.loads(line)["keyring"] for line in lines} == {"cards"}
    # nothing was made in the default keyring, and the hint says how to change that
    ended = command("encrypt", "card.txt", "--force")
    assert (ended.status, "pqkeep keys generate Kyber768;" in ended.err) == (4, True)
    ended = command("encrypt", "card.txt", "--force", "--keyring", "crads")
    assert (ended.status, "pqkeep keyrings list" in ended.err) == (4, True)


def test_what_the_keys_are_not_for(command: Command, tenant: Client) -> None:
    """A keyring's purposes restrict its keys, and the hint says where to see them."""
    assert command("keyrings", "create", "outbox", "--purpose", "encrypt").status == 0
    tenant.keys.generate("Kyber768", keyring="outbox")
    made = command("encrypt", "-", "--envelope", "--keyring", "outbox", stdin=b"4111-1111")
    ended = command("decrypt", "-", stdin=made.out)
    assert (ended.status, "pqkeep keyrings show" in ended.err) == (5, True)


def test_moving_to_another_keyring(command: Command, tenant: Client) -> None:
    """re-encrypt moves files to a keyring's key; a key can be imported there."""
    tenant.keyrings.create("cards")
    for keyring in (None, "cards"):
        tenant.keys.generate("Kyber768", keyring=keyring)
    plain = command.directory / "card.txt"
    plain.write_bytes(b"4111-1111")
    assert command("encrypt", "card.txt").status == 0
    assert command("re-encrypt", "card.txt.pqk", "--keyring", "cards").status == 0
    shown = json.loads(command("--output", "json", "recipients", "card.txt.pqk").out)
    assert [recipient["keyring"] for recipient in shown["recipients"]] == ["cards"]
    assert command("decrypt", "card.txt.pqk", "--to", "-").out == b"4111-1111"
    private = MLDSA65PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    ended = command("keys", "import", "Dilithium3", "-", "--keyring", "cards", stdin=private)
    assert ended.status == 0
    assert tenant.keys.active("Dilithium3", keyring="cards").imported
    command("keys", "retire", "Dilithium3", "-k", "1", "--keyring", "cards")
    kept = command("keys", "archive", "Dilithium3", "-k", "1", "--keyring", "cards")
    assert (kept.status, b"retired" in kept.out) == (0, True)


def test_a_file_with_a_keyring_that_is_none(command: Command, tenant: Client) -> None:
    """A file with an invalid keyring name is refused."""
    tenant.keys.generate("Kyber768")
    wrapped = json.loads(command("wrap", stdin=bytes(16)).out)
    assert "keyring" not in wrapped
    for keyring, status in (("default", 0), (7, 1), (None, 1), ("../x", 1)):
        said = json.dumps(wrapped | {"keyring": keyring}).encode()
        assert command("unwrap", stdin=said).status == status

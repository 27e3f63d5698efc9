"""age-plugin-pqkeep, as age would call it, with a real service."""

from __future__ import annotations

import hmac
import json
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PublicKey, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sdk.tests.conftest import Answer
from sdk.tests.fault_proxy import FaultProxy
from tests.fixtures.installation import Installation

from pqkeep import Client, bech32
from pqkeep.age import (
    IN_A_REQUEST,
    MOST_STANZAS,
    STANZA,
    Identity,
    _Age,
    _decrypt,
    _Opener,
    _ProtocolError,
    _refuse_to_encrypt,
    main,
)
from pqkeep_protocol import public_keys
from pqkeep_protocol.algorithms import Algorithm

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

KNOWN = json.loads((Path(__file__).parents[3] / "tests/vectors/age.json").read_text())
FILE_KEY = b"a key of a file."
SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
INFO = b"age-encryption.org/mlkem768x25519"
KEM_CIPHERTEXT = 1120
ANOTHER = ("X25519", b64encode(bytes(32)).rstrip(b"=").decode()), bytes(32)
"""A stanza of another kind."""

Stanza = tuple[Sequence[str], bytes]
"""The stanza's arguments (the first is the type), and its body."""


def wrapped(public_key: bytes, file_key: bytes = FILE_KEY) -> bytes:
    """Return the KEM ciphertext and body of a stanza, made by another implementation of HPKE."""
    recipient = MLKEM768X25519PublicKey(
        MLKEM768PublicKey.from_public_bytes(public_key[:1184]),
        X25519PublicKey.from_public_bytes(public_key[1184:]),
    )
    return SUITE.encrypt(file_key, recipient, INFO)


def stanza(made: bytes) -> Stanza:
    """Return the stanza of a KEM ciphertext and a body."""
    return (STANZA, unpadded(made[:KEM_CIPHERTEXT])), made[KEM_CIPHERTEXT:]


def unpadded(data: bytes) -> str:
    """Return base64 as age writes it."""
    return b64encode(data).rstrip(b"=").decode()


def written(arguments: Sequence[str], body: bytes = b"") -> bytes:
    """Return a stanza in its text form."""
    text = unpadded(body)
    lines = [text[start : start + 64] for start in range(0, len(text) + 1, 64)]
    return "\n".join(("-> " + " ".join(arguments), *lines, "")).encode()


def asked(identities: Sequence[str], *files: Sequence[Stanza]) -> bytes:
    """Return what age sends. It accepts each command of the plugin."""
    return b"".join(
        (
            *(written(("add-identity", identity)) for identity in identities),
            written(("grease-12", "ab"), b"to be ignored"),
            *(
                written(("recipient-stanza", str(number), *arguments), body)
                for number, stanzas in enumerate(files)
                for arguments, body in stanzas
            ),
            written(("done",)),
            written(("ok",)) * 9,
        )
    )


def decrypted(identity: str | Identity, *files: Sequence[Stanza]) -> list[tuple[str, bytes]]:
    """Return the commands of the plugin."""
    text = identity if isinstance(identity, str) else identity.encoded()
    return said(asked((text,), *files))


def said(data: bytes) -> list[tuple[str, bytes]]:
    """Return the plugin's commands for this input, without the final ``done``."""
    output = BytesIO()
    _decrypt(_Age(BytesIO(data), output))
    reader = _Age(BytesIO(output.getvalue()), BytesIO())
    return [(" ".join(command.arguments), command.body) for command in reader.phase()]


@pytest.fixture(scope="module")
def api_key(new_api_key: Callable[[], str]) -> str:
    """An API key of a tenant."""
    return new_api_key()


@pytest.fixture(scope="module")
def tenant(base_url: str, api_key: str) -> Iterator[Client]:
    """The tenant, with an X-Wing key."""
    with Client(base_url, api_key) as client:
        client.keys.generate("X-Wing")
        yield client


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, base_url: str, api_key: str) -> None:
    """Let the plugin's settings name the tenant."""
    monkeypatch.setenv("PQKEEP_URL", base_url)
    monkeypatch.setenv("PQKEEP_API_KEY", api_key)


@pytest.fixture(scope="module")
def identity(tenant: Client) -> Identity:
    """The identity of the tenant's first key."""
    return Identity(url=tenant.url, keyring="default", algorithm="X-Wing", key_version=1)


@pytest.fixture(scope="module")
def public_key(tenant: Client) -> bytes:
    """The tenant's first key."""
    return tenant.keys.get("X-Wing", key_version=1).public_key


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("A12UEL5L", ""),
        (
            "an83characterlonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1tt5tgs",
            "",
        ),
        (
            "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw",
            "00443214c74254b635cf84653a56d7c675be77df",
        ),
        (
            "split1checkupstagehandshakeupstreamerranterredcaperred2y9e3w",
            "c5f38b70305f519bf66d85fb6cf03058f3dde463ecd7918f2dc743918f2d",
        ),
        ("?1ezyfcl", ""),
    ],
)
def test_valid_bech32(text: str, data: str) -> None:
    """BIP 173's valid texts are read and written back."""
    prefix, found = bech32.decode(text)
    assert (prefix, found.hex()) == (text.rpartition("1")[0].lower(), data)
    assert bech32.encode(prefix, found) == text.lower()


@pytest.mark.parametrize(
    "text",
    [
        "\x201nwldj5",
        "\x7f1axkwrx",
        "\x801eym55h",
        "pzry9x0s0muk",
        "1pzry9x0s0muk",
        "x1b4n0q5v",
        "li1dgmt3",
        "de1lg7wt\xff",
        "A1G7SGD8",
        "10a06t8",
        "1qzzfhee",
        "A12uEL5L",
        "",
        "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxx",
    ],
)
def test_invalid_bech32(text: str) -> None:
    """BIP 173's invalid texts are refused, except for its limit of length."""
    with pytest.raises(ValueError, match=r"^(not|with|without) "):
        bech32.decode(text)


def test_a_recipient_and_a_file_of_stock_age(
    with_key: Callable[[str], Command], new_api_key: Callable[[], str]
) -> None:
    """An imported key of age has the recipient that age-keygen printed, and opens age's file."""
    owner = with_key(new_api_key())
    (owner.directory / "key.txt").write_text(f"# created: now\n{KNOWN['identity']}\n")
    assert owner("keys", "import", "X-Wing", "key.txt").status == 0
    shown = owner("keys", "public-key", "X-Wing", "--format", "age")
    assert (shown.status, shown.out.decode()) == (0, KNOWN["recipient"] + "\n")
    (owner.directory / "recipient.txt").write_text(KNOWN["recipient"])
    options = ("--public-key", "recipient.txt", "--key-version", "1")
    assert owner("encrypt", "key.txt", *options).status == 0
    assert owner("decrypt", "key.txt.pqk", "--to", "-").out.startswith(b"# created")
    _, recipient, identity = owner("age", "identity").out.decode().splitlines()
    assert recipient == f"# recipient: {KNOWN['recipient']}"
    intro, first, body, end, _ = b64decode(KNOWN["file"]).split(b"\n", 4)
    sent = asked([identity], [(first.decode().split(" ")[1:], b64decode(body + b"="))])
    program = "from pqkeep_command import age_plugin; age_plugin()"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--age-plugin=identity-v1"],
        input=sent,
        capture_output=True,
        env=dict(owner.environment),
        check=True,
    )
    (answer,) = _Age(BytesIO(ended.stdout), BytesIO()).phase()
    assert answer.arguments == ["file-key", "0"]
    key = HKDF(SHA256(), 32, b"", b"header").derive(answer.body)
    mac = hmac.digest(key, b"\n".join((intro, first, body, b"---")), "sha256")
    assert f"--- {unpadded(mac)}" == end.decode()


def test_recipients_in_both_distributions() -> None:
    """The service and the client write the same recipient."""
    public_key = bech32.decode(KNOWN["recipient"])[1]
    assert public_keys.to_age(Algorithm.X_WING, public_key) == KNOWN["recipient"]


def test_stanzas_of_others_are_passed_over(identity: Identity, public_key: bytes) -> None:
    """A key's own stanza is found among other stanzas. Other stanzas alone return nothing."""
    own, of_another = (
        stanza(wrapped(public_key)),
        stanza(wrapped(bech32.decode(KNOWN["recipient"])[1])),
    )
    opened = [("file-key 0", FILE_KEY)]
    assert decrypted(identity, [own]) == opened
    assert decrypted(identity, [ANOTHER, of_another, own, of_another]) == opened
    assert decrypted(identity, [of_another, ANOTHER]) == []
    assert decrypted(identity, [ANOTHER]) == []
    assert decrypted(identity) == []
    assert decrypted(identity, [of_another], [own]) == [("file-key 1", FILE_KEY)]


def test_every_bit_of_a_stanza(identity: Identity, public_key: bytes, tenant: Client) -> None:
    """No file key comes from a stanza with one changed bit."""
    made = wrapped(public_key)
    secret = tenant.kem.decapsulate(made[:KEM_CIPHERTEXT], key_version=1, algorithm="X-Wing")
    body, opener = made[KEM_CIPHERTEXT:], _Opener()
    assert opener.open(secret, body) == FILE_KEY
    for bit in range(8 * len(body)):
        changed = int.from_bytes(body, "big") ^ 1 << bit
        assert opener.open(secret, changed.to_bytes(len(body), "big")) is None
    changed_bytes = range(0, KEM_CIPHERTEXT, 37)
    damaged = [
        made[:place] + bytes((made[place] ^ 1,)) + made[place + 1 :] for place in changed_bytes
    ]
    assert decrypted(identity, [stanza(one) for one in damaged]) == []


@pytest.mark.parametrize(
    ("arguments", "size", "expected"),
    [
        ((STANZA,), 32, "one argument"),
        ((STANZA, "A" * 1494, "A"), 32, "one argument"),
        ((STANZA, unpadded(bytes(1119))), 32, "1120 bytes"),
        ((STANZA, unpadded(bytes(1121))), 32, "1120 bytes"),
        ((STANZA, unpadded(bytes(1120)) + "="), 32, "1120 bytes"),
        ((STANZA, unpadded(bytes(1120))[:-1] + "B"), 32, "1120 bytes"),
        ((STANZA, "-" + unpadded(bytes(1120))[1:]), 32, "1120 bytes"),
        ((STANZA, unpadded(bytes(1120))), 31, "32 bytes"),
        ((STANZA, unpadded(bytes(1120))), 0, "32 bytes"),
        ((STANZA, unpadded(bytes(1120))), 40, "32 bytes"),
    ],
)
def test_a_damaged_stanza(
    arguments: Sequence[str],
    size: int,
    expected: str,
    identity: Identity,
    public_key: bytes,
) -> None:
    """A damaged stanza ends the file's decryption before a request; the next file is decrypted."""
    own = stanza(wrapped(public_key))
    damaged, whole = decrypted(identity, [own, ANOTHER, (arguments, bytes(size))], [own])
    assert (damaged[0], expected in damaged[1].decode()) == ("error stanza 0 2", True)
    assert whole == ("file-key 1", FILE_KEY)


def test_a_point_of_low_order(identity: Identity, public_key: bytes) -> None:
    """A KEM ciphertext that the service refuses is an error of its stanza."""
    made = wrapped(public_key)
    low = made[: KEM_CIPHERTEXT - 32] + bytes(32) + made[KEM_CIPHERTEXT:]
    (error,) = decrypted(identity, [ANOTHER, stanza(low)])
    assert error[0] == "error stanza 0 1"
    assert "ERR_KEM_002" in error[1].decode()


@pytest.mark.threat("hostile-age-file")
def test_a_file_with_a_thousand_stanzas(
    identity: Identity, public_key: bytes, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 128 stanzas are tried, in requests of 32; a file with more is refused unasked."""
    monkeypatch.setenv("PQKEEP_URL", proxy.url)
    here = replace(identity, url=proxy.url)
    of_another = stanza(wrapped(bech32.decode(KNOWN["recipient"])[1]))
    own = stanza(wrapped(public_key))
    assert decrypted(here, [of_another] * (MOST_STANZAS - 1) + [own]) == [("file-key 0", FILE_KEY)]
    assert len(proxy.seen) == MOST_STANZAS // IN_A_REQUEST
    errors = decrypted(here, [own, *[of_another] * 1023])
    assert [place for place, _ in errors] == [f"error stanza 0 {MOST_STANZAS}"]
    assert "128" in errors[0][1].decode()
    assert len(proxy.seen) == MOST_STANZAS // IN_A_REQUEST


@pytest.mark.threat("hostile-age-file")
def test_an_identity_of_another_host_gets_no_credential(
    identity: Identity, public_key: bytes, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API key is sent to the configured address only, whatever the identity names."""
    own = stanza(wrapped(public_key))
    for url in (proxy.url, "https://pqkeep.example", f"{identity.url}/other", "http://user@x"):
        errors = decrypted(replace(identity, url=url), [own])
        assert [place for place, _ in errors] == ["error identity 0"], url
    assert proxy.seen == []
    monkeypatch.delenv("PQKEEP_URL")
    ((place, why),) = decrypted(identity, [own])  # and to no address without a configured one
    assert place == "error identity 0"
    assert "pqkeep login" in why.decode()


DAMAGED: Sequence[bytes] = (
    b"",
    b"[]",
    b"{}",
    b'{"url":"https://a","keyring":"default","algorithm":"X-Wing"}',
    b'{"url":"https://a","keyring":"default","algorithm":"X-Wing","key_version":true}',
    b'{"url":"https://a","keyring":"default","algorithm":"X-Wing","key_version":0}',
    b'{"url":"https://a","keyring":"default","algorithm":"Kyber768","key_version":1}',
    b'{"url":"ftp://a","keyring":"default","algorithm":"X-Wing","key_version":1}',
    b'{"url":"https://a","keyring":"default","algorithm":"X-Wing","key_version":1,"x":1}',
    b"\xff\xfe",
    b"[" * 5000,
)


def test_a_damaged_identity(public_key: bytes) -> None:
    """An invalid identity is reported as damaged, and nothing is decrypted."""
    for data in DAMAGED:
        text = bech32.encode("age-plugin-pqkeep-", data).upper()
        ((place, why),) = decrypted(text, [stanza(wrapped(public_key))])
        assert place == "error identity 0"
        assert "pqkeep age identity" in why.decode()


def test_identities_that_are_no_identities(identity: Identity, public_key: bytes) -> None:
    """One damaged or foreign identity ends the decryption, even beside correct identities."""
    own = stanza(wrapped(public_key))
    other = bech32.encode("age-plugin-yubikey-", b"1234").upper()
    for text in (KNOWN["identity"], other, identity.encoded()[:-1], "\x1b[2J"):
        given = said(asked([identity.encoded(), text], [own]))
        assert [place for place, _ in given] == ["error identity 1"]


HOSTILE = (
    b"<html>\x1b[2J</html>",
    json.dumps(
        {"data": {"results": [{"data": {"shared_secret": "AAAA"}}]}, "request_id": "1"}
    ).encode(),
    json.dumps({"data": {"results": []}, "request_id": "1"}).encode(),
    json.dumps(
        {
            "data": {
                "results": [
                    {
                        "error": {
                            "error_code": "ERR_\x1b[2J",
                            "message": "\x1b]0;title\x07" + "x" * 5000,
                        }
                    }
                ]
            },
            "request_id": "1",
        }
    ).encode(),
)


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_service(
    body: bytes,
    response: Answer,
    identity: Identity,
    public_key: bytes,
    api_key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A strange response is a short error in printable characters, without the credential."""
    url = response(body)
    monkeypatch.setenv("PQKEEP_URL", url)
    ((place, why),) = decrypted(replace(identity, url=url), [stanza(wrapped(public_key))])
    assert place == "error identity 0"
    assert why.decode().isprintable()
    assert len(why) <= 1000
    assert api_key not in why.decode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "cut"),
        (written(("add-identity", "x")), "cut"),
        (b"-> add-identity x", "cut"),
        (b"->add-identity x\n\n", "does not begin"),
        (b"-> \n\n", "does not begin"),
        (b"-> x  y\n\n", "does not begin"),
        (b"-> x\n=\n", "damaged"),
        (b"-> x\nAB\n", "damaged"),
        (b"-> x\n" + b"A" * 65 + b"\n", "damaged"),
        (written(("recipient-stanza", "0")) + written(("done",)), "arguments"),
        (written(("recipient-stanza", "-1", "a")) + written(("done",)), "number"),
        (written(("add-identity", "x", "y")) + written(("done",)), "arguments"),
        (b"-> x\n" + (b"A" * 64 + b"\n") * 70_000, "too long"),
    ],
)
def test_other_input_than_the_protocol(data: bytes, expected: str) -> None:
    """Input that age does not send ends the program with a reason."""
    with pytest.raises(_ProtocolError, match=expected):
        said(data)


def test_encryption_is_left_to_age() -> None:
    """Who encrypts to an identity hears how to encrypt to the recipient."""
    output = BytesIO()
    _refuse_to_encrypt(_Age(BytesIO(asked(["AGE-PLUGIN-PQKEEP-1"])), output))
    first = _Age(BytesIO(output.getvalue()), BytesIO()).phase()[0]
    assert first.arguments == ["error", "internal"]
    assert b"--format age" in first.body


def test_without_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by a person, or for another state machine, the program says what it is."""
    for argument in ([], ["--age-plugin=identity-v2"], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["age-plugin-pqkeep", *argument])
        with pytest.raises(SystemExit, match="pqkeep age identity"):
            main()


def test_rotation_and_keyrings(
    identity: Identity, public_key: bytes, tenant: Client, installation: Installation
) -> None:
    """A rotation does not stop the decryption of old files. Archiving their key version does."""
    own = stanza(wrapped(public_key))
    tenant.keys.rotate("X-Wing")
    tenant.keyrings.create("payments")
    tenant.keys.generate("X-Wing", keyring="payments")
    assert tenant.keys.active("X-Wing").public_key != public_key
    assert decrypted(identity, [own]) == [("file-key 0", FILE_KEY)]
    assert decrypted(replace(identity, key_version=2), [own]) == []
    assert decrypted(replace(identity, keyring="payments"), [own]) == []
    (tenant_named,) = tenant.tenants.list()
    installation.archive(tenant_named.id, Algorithm.X_WING, 1)
    refused = [
        (identity, "X-Wing version 1 in keyring default"),
        (replace(identity, key_version=9), "X-Wing version 9 in keyring default"),
        (replace(identity, keyring="unknown"), "X-Wing version 1 in keyring unknown"),
    ]
    for named, expected in refused:
        ((place, why),) = decrypted(named, [own])
        assert place == "error identity 0"
        assert why.decode().startswith(expected)
        assert "ERR_NOT_FOUND_001" in why.decode()
    several = [one.encoded() for one in (identity, replace(identity, key_version=2))]
    own = stanza(wrapped(tenant.keys.active("X-Wing").public_key))
    assert said(asked(several, [own])) == [("file-key 0", FILE_KEY)]

"""pqkeep cms: messages to and from other programs, and damaged and hostile messages."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

from pqkeep import Client, cms, verification
from pqkeep.errors import DecryptionError, UnreadableInputError

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

KNOWN = json.loads((Path(__file__).parents[3] / "tests/vectors/cms.json").read_text())
CONTENT = KNOWN["content"].encode()
PRIVATE = MLKEM768PrivateKey.from_seed_bytes(b64decode(KNOWN["ml_kem_768_seed"]))
PUBLIC = PRIVATE.public_key().public_bytes_raw()
SIGNER = b64decode(KNOWN["ml_dsa_65_public_key"])


def opened(data: bytes) -> bytes:
    """Decrypt a message to the known key."""
    message = cms.read_encrypted(data)
    (wrapped,) = (one for one in message.recipients if one.identifier == cms.identifier_of(PUBLIC))
    return cms.decrypt(message, wrapped, PRIVATE.decapsulate(wrapped.kem_ciphertext))


def is_signed(data: bytes, content: bytes = CONTENT) -> bool:
    """Return True if the known signer signed the content, in the message or beside it."""
    message = cms.read_signed(data)
    covered = cms.signed_bytes(message, message.content or content)
    return covered is not None and verification.verify(
        covered, message.signature, public_key=SIGNER, algorithm=message.algorithm
    )


def test_an_encrypted_message_of_bouncy_castle() -> None:
    """Bouncy Castle's message, in BER, opens with the key that it names."""
    data = b64decode(KNOWN["bouncy_castle_encrypted"])
    assert opened(data) == CONTENT
    own = cms.encrypt(CONTENT, [cms.Recipient(PUBLIC, "ML-KEM-768")] * 2)
    assert own[1] != 0x80  # DER
    message = cms.read_encrypted(own)
    assert len(message.recipients) == 2


@pytest.mark.parametrize(
    "name",
    [
        "bouncy_castle_signed",
        "openssl_signed",
        "openssl_streamed",
        "openssl_detached",
        "openssl_by_key_identifier",
        "bouncy_castle_without_attributes",
    ],
)
def test_signed_messages_of_others(name: str) -> None:
    """OpenSSL's and Bouncy Castle's messages verify; with other content they do not."""
    data = b64decode(KNOWN[name])
    assert is_signed(data)
    changed = data.replace(CONTENT, b"pay Eve 10 EUR")
    assert not is_signed(changed, b"pay Eve 10 EUR")


@pytest.mark.threat("hostile-cms")
def test_damaged_messages() -> None:
    """No changed byte gives another content, or a good signature, and no cut message is read."""
    sealed, signed = (b64decode(KNOWN[f"bouncy_castle_{kind}"]) for kind in ("encrypted", "signed"))
    for data in (sealed, signed):
        for size in (0, 1, 2, 3, 50, len(data) // 2, len(data) - 1):
            with pytest.raises(UnreadableInputError):
                cms.read_encrypted(data[:size])
            with pytest.raises(UnreadableInputError):
                cms.read_signed(data[:size])
    for at in {*range(0, len(sealed), 23), *range(len(sealed) - 60, len(sealed))}:
        changed = sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]
        with suppress(UnreadableInputError, DecryptionError, ValueError):
            assert opened(changed) == CONTENT  # the outermost tags are not authenticated
    attributes = cms.read_signed(signed).attributes
    for at in (*range(len(attributes)),):
        changed = attributes[:at] + bytes((attributes[at] ^ 1,)) + attributes[at + 1 :]
        start = signed.index(attributes[2:])
        whole = signed[:start] + changed[2:] + signed[start + len(attributes) - 2 :]
        if at >= 2:
            with suppress(UnreadableInputError):
                assert not is_signed(whole)


@pytest.mark.threat("hostile-cms")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x30\x80" * 100, "too many parts"),
        (b"\x30\x82\xff\xfe" + b"\x30\x00" * 32_767, "too many parts"),
        (b"\x30\x84\xff\xff\xff\xff", "cut"),
        (b"\x1f\x80\x00", "unknown tag"),
        (b"\x04\x80\x00\x00", "unknown tag"),
        (b"\x30\x85\x00\x00\x00\x00\x01\x00", "unknown tag"),
        (b"\x30\x80\x24\x80\x02\x01\x00\x00\x00\x00\x00", "damaged string"),
        (bytes(33 * 1024 * 1024), "more than"),
        (b"-----BEGIN CMS-----", "cut"),
    ],
    ids=range(9),
)
def test_hostile_messages(data: bytes, expected: str) -> None:
    """Deep, endless, oversized and strange messages are refused with a reason, at once."""
    for read in (cms.read_encrypted, cms.read_signed):
        with pytest.raises(UnreadableInputError, match=expected):
            read(data)


def test_unauthenticated_encryption_is_refused() -> None:
    """EnvelopedData is named, because its ciphers do not detect changes."""
    sealed = cms.encrypt(CONTENT, [cms.Recipient(PUBLIC, "Kyber768")])
    other = sealed.replace(
        bytes.fromhex("060b2a864886f70d0109100117"), bytes.fromhex("060b2a864886f70d0109100109")
    )
    with pytest.raises(UnreadableInputError, match="another type"):
        cms.read_encrypted(other)
    kind = bytes.fromhex("06092a864886f70d010703")
    with pytest.raises(UnreadableInputError, match="AES-256-GCM"):
        cms.read_encrypted(b"\x30" + bytes((len(kind) + 2,)) + kind + b"\xa0\x00")


def test_encrypt_and_decrypt(command: Command, tenant: Client) -> None:
    """A message for an active key opens after a rotation; with another key it does not."""
    file = command.directory / "report.pdf"
    file.write_bytes(CONTENT)
    assert "pqkeep keys generate" in command("cms", "encrypt", file.name).err
    tenant.keys.generate("Kyber768")
    tenant.keys.generate("ML-KEM-1024")
    assert command("cms", "encrypt", file.name).status == 0
    tenant.keys.rotate("Kyber768")
    opened = command("cms", "decrypt", "report.pdf.p7m", "--to", "-")
    assert (opened.status, opened.out) == (0, CONTENT), opened.err
    other = command("cms", "decrypt", "report.pdf.p7m", "-k", "2", "--to", "-")
    assert (other.status, other.out) == (7, b"")
    key = command("keys", "public-key", "ML-KEM-1024", "--format", "pem").out
    (command.directory / "key.pem").write_bytes(key)
    options = ("--public-key", "key.pem", "--to", "second.p7m")
    assert command("cms", "encrypt", file.name, *options).status == 0
    assert command("cms", "decrypt", "second.p7m").status == 0
    assert (command.directory / "second").read_bytes() == CONTENT
    (command.directory / "bc.p7m").write_bytes(b64decode(KNOWN["bouncy_castle_encrypted"]))
    stranger = command("cms", "decrypt", "bc.p7m")
    assert (stranger.status, "none of these keys" in stranger.err) == (4, True)
    tenant.keys.generate("X-Wing")
    assert "ML-KEM-1024" in command("cms", "encrypt", file.name, "-a", "X-Wing").err


def test_sign_and_verify(command: Command, tenant: Client) -> None:
    """ML-DSA and SLH-DSA sign by the service; another content or key is not good."""
    file = command.directory / "report.pdf"
    file.write_bytes(CONTENT)
    for algorithm in ("Dilithium3", "SLH-DSA-SHA2-128f"):
        tenant.keys.generate(algorithm)
        pem = command("keys", "public-key", algorithm, "--format", "pem").out
        (command.directory / "key.pem").write_bytes(pem)
        assert command("cms", "sign", file.name, "-a", algorithm, "--force").status == 0
        verify = ("cms", "verify", "--public-key", "key.pem")
        good = command(*verify, "report.pdf.p7m", "--to", "-")
        assert (good.status, good.out) == (0, CONTENT), good.err
        ended = command("cms", "sign", file.name, "-a", algorithm, "--detached", "--force")
        assert ended.status == 0
        assert command(*verify, "report.pdf.p7s", "--content", file.name).status == 0
        assert command(*verify, "report.pdf.p7s").status == 2
        changed = command(*verify, "report.pdf.p7s", "--content", "key.pem")
        assert (changed.status, "not good" in changed.err) == (7, True)
    (command.directory / "other.p7m").write_bytes(b64decode(KNOWN["openssl_signed"]))
    (command.directory / "signer.crt").write_bytes(b64decode(KNOWN["certificate"]))
    assert command("cms", "verify", "other.p7m", "--public-key", "signer.crt").status == 0
    mine = command("cms", "sign", file.name, "--certificate", "signer.crt", "--force")
    assert "another key" in mine.err

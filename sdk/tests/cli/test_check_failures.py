"""Only a failed check has exit status 7. For truncated or unreadable files it is 1."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command


ALGORITHMS = ("Kyber768", "Dilithium3", "Composite-ML-DSA")
MADE: dict[str, tuple[str, ...]] = {
    "local": ("encrypt", "plain", "--to", "local"),
    "text": ("encrypt", "plain", "--armor", "--to", "text"),
    "sealed": ("encrypt", "plain", "--server-side", "--to", "sealed"),
    "envelope": ("encrypt", "plain", "--envelope", "--to", "envelope"),
    "wrapped": ("wrap", "key", "--to", "wrapped"),
    "signature": ("sign", "plain", "--to", "signature"),
    "bound": ("sign", "plain", "--context", "x", "--to", "bound"),
    "jws": ("sign", "plain", "--jws", "--to", "jws"),
    "composite": ("sign", "plain", "-a", "Composite-ML-DSA", "--to", "composite"),
    "public": ("keys", "public-key", "Composite-ML-DSA", "--to", "public"),
    "pem": ("keys", "public-key", "Composite-ML-DSA", "--format", "pem", "--to", "pem"),
    "raw": ("keys", "public-key", "Composite-ML-DSA", "--format", "raw", "--to", "raw"),
}
READ: dict[str, tuple[str, ...]] = {
    "local": ("decrypt", "{}", "--to", "-"),
    "text": ("decrypt", "{}", "--to", "-"),
    "sealed": ("decrypt", "{}", "--to", "-"),
    "envelope": ("decrypt", "{}", "--to", "-"),
    "wrapped": ("unwrap", "{}"),
    "signature": ("verify", "plain", "--signature", "{}"),
    "bound": ("verify", "plain", "--context", "x", "--signature", "{}"),
    "jws": ("verify", "plain", "--signature", "{}"),
    "composite": ("verify", "plain", "--signature", "{}"),
    **dict.fromkeys(
        ("public", "pem", "raw"),
        ("verify", "plain", "--signature", "composite", "--public-key", "{}"),
    ),
}
Damage = Callable[[bytes], bytes]
HEADER = 16384
"""Bytes of a local file's header with one recipient."""


def cut(size: int) -> Damage:
    """Keep this number of bytes; a negative number removes bytes from the end."""
    return lambda data: data[:size]


def flipped(at: int) -> Damage:
    """Change a bit of one byte."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    return change


def member(name: str, damage: Damage) -> Damage:
    """Damage the base64 in one member of a JSON object."""

    def change(data: bytes) -> bytes:
        values = json.loads(data)
        values[name] = base64.b64encode(damage(base64.b64decode(values[name]))).decode()
        return json.dumps(values).encode()

    return change


def changed(name: str, value: object) -> Damage:
    """Change one member of a JSON object."""
    return lambda data: json.dumps({**json.loads(data), name: value}).encode()


def blob(damage: Damage) -> Damage:
    """Damage the bytes of an envelope."""

    def change(data: bytes) -> bytes:
        text = data.strip().removeprefix(b"pqk1.")
        inside = damage(base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)))
        return b"pqk1." + base64.urlsafe_b64encode(inside).rstrip(b"=") + b"\n"

    return change


def inside(damage: Damage) -> Damage:
    """Damage the text between the first and the last line."""

    def change(data: bytes) -> bytes:
        first, *lines, last = data.splitlines()
        encoded = base64.b64encode(damage(base64.b64decode(b"".join(lines))))
        return b"\n".join([first, encoded, last, b""])

    return change


def pem_inside(damage: Damage) -> Damage:
    """Damage the DER in a PEM block."""
    return inside(damage)


CUT: dict[str, tuple[str, Damage]] = {
    "the mark only": ("local", cut(7)),
    "within the size": ("local", cut(10)),
    "within the header": ("local", cut(5000)),
    "the header only": ("local", cut(HEADER)),
    "within a tag": ("local", cut(HEADER + 15)),
    "text without its last line": ("text", lambda data: data[: data.rindex(b"-----END")]),
    "text with half of its last line": ("text", cut(-9)),
    "text, half of it": ("text", lambda data: data[: len(data) // 2]),
    "text, a line of it": ("text", cut(100)),
    "text, its first line only": ("text", cut(37)),
    "text whose content was cut in the header": ("text", inside(cut(5000))),
    "text whose content has no tag": ("text", inside(cut(HEADER + 3))),
    "text with other content": ("text", inside(lambda data: b"x" * 1000)),
    "text in a later format": ("text", inside(lambda data: data[:7] + b"\x09" + data[8:])),
    "text with other characters": ("text", lambda data: data.replace(b"A", b"!", 1)),
    "text with dashes": ("text", lambda data: data[:200] + b"---" + data[200:]),
    "JSON": ("sealed", cut(-40)),
    "a ciphertext without a tag": ("sealed", member("ciphertext", cut(1088 + 27))),
    "a ciphertext of a KEM only": ("sealed", member("ciphertext", cut(1088))),
    "a ciphertext of an unknown algorithm": ("sealed", changed("algorithm", "Kyber9000")),
    "a ciphertext of an algorithm that signs": ("sealed", changed("algorithm", "Dilithium3")),
    "a ciphertext of no version": ("sealed", changed("key_version", 0)),
    "a ciphertext of a huge version": ("sealed", changed("key_version", 2**70)),
    "an envelope without a tag": ("envelope", blob(cut(6 + 7 + 1088 + 27))),
    "an envelope with a KEM ciphertext only": ("envelope", blob(cut(6 + 7 + 1088))),
    "an envelope with half of a KEM ciphertext": ("envelope", blob(cut(600))),
    "an envelope, its header": ("envelope", blob(cut(6 + 7))),
    "an envelope of an unknown algorithm": (
        "envelope",
        blob(lambda data: b"\x09" + data[1:]),
    ),
    "a wrapped key without a key": ("wrapped", member("wrapped_key", cut(1088 + 28))),
    "a wrapped key without a tag": ("wrapped", member("wrapped_key", cut(1088 + 20))),
    "a wrapped key of an unknown algorithm": ("wrapped", changed("algorithm", "Kyber9000")),
    "a signature": ("signature", member("signature", cut(-1))),
    "a signature of an unknown algorithm": ("signature", changed("algorithm", "Dilithium9")),
    "a signature of an algorithm that encrypts": ("signature", changed("algorithm", "Kyber768")),
    "a signature of an unknown hash": ("signature", changed("hash_algorithm", "MD5")),
    "a signature of no version": ("signature", changed("key_version", -1)),
    "a signature of a huge version": ("signature", changed("key_version", 2**70)),
    "a signature for a context": ("bound", member("signature", cut(100))),
    "a JWS": ("jws", lambda data: data[:-100]),
    "a JWS without its signature": ("jws", lambda data: data.rpartition(b".")[0] + b"."),
    "a composite signature": ("composite", member("signature", cut(3309 + 7))),
    "a composite key, cut": ("public", member("public_key", cut(-1))),
    "a composite key without a point": ("public", member("public_key", cut(1952))),
    "a composite key off its curve": ("public", member("public_key", flipped(-1))),
    "a composite key with a compressed point": (
        "public",
        member("public_key", lambda key: key[:1952] + b"\x02" + key[1953:1985]),
    ),
    "PEM of a composite key off its curve": ("pem", pem_inside(flipped(-1))),
    "PEM of a composite key, cut": ("pem", cut(-40)),
    "a raw composite key off its curve": ("raw", flipped(-5)),
    "a raw composite key, cut": ("raw", cut(-1)),
}
FAILED: dict[str, tuple[str, Damage]] = {
    "both slots of the header": (
        "local",
        lambda data: flipped(100)(flipped(HEADER // 2 + 100)(data)),
    ),
    "a segment": ("local", flipped(HEADER + 1)),
    "the end": ("local", cut(-1)),
    "something behind the end": ("local", lambda data: data + b"\0"),
    "text": ("text", inside(flipped(HEADER + 1))),
    "a ciphertext": ("sealed", member("ciphertext", flipped(-1))),
    "the KEM's part": ("sealed", member("ciphertext", flipped(0))),
    "a ciphertext's last byte": ("sealed", member("ciphertext", cut(-1))),
    "an envelope": ("envelope", blob(flipped(-1))),
    "a wrapped key": ("wrapped", member("wrapped_key", flipped(-1))),
    "a signature": ("signature", member("signature", flipped(1))),
    "a signature with a context": ("bound", member("signature", flipped(1))),
    "a composite signature": ("composite", member("signature", flipped(1))),
    "another half of a composite key": ("public", member("public_key", flipped(1))),
}


@pytest.fixture
def made(command: Command, tenant: Client) -> Command:
    """A directory with an intact file of each kind."""
    for algorithm in ALGORITHMS:
        tenant.keys.generate(algorithm)
    (command.directory / "plain").write_bytes(b"plain" * 100)
    (command.directory / "key").write_bytes(bytes(16))
    for words in MADE.values():
        ended = command(*words)
        assert ended.status == 0, ended
    return command


def read(command: Command, kind: str, damage: Damage) -> tuple[int, str]:
    """Return the result of the command that reads a damaged file of a kind."""
    damaged = command.directory / "damaged"
    damaged.write_bytes(damage((command.directory / kind).read_bytes()))
    ended = command(*(damaged.name if word == "{}" else word for word in READ[kind]))
    assert ended.out == b"", ended
    return ended.status, ended.err


def test_what_was_cut_or_cannot_be_read(made: Command) -> None:
    """For truncated and unreadable files the exit status is 1.

    The error names the file, and no check.
    """
    wrong = {}
    for name, (kind, damage) in CUT.items():
        status, said = read(made, kind, damage)
        is_named = "damaged is" in said or "unknown algorithm" in name  # which a service may know
        if status != 1 or not is_named or "report it" in said:
            wrong[name] = (status, said)
    assert not wrong, "\n".join(map(repr, wrong.items()))


def test_what_fails_its_check(made: Command) -> None:
    """For changed but complete content the exit status is 7."""
    wrong = {}
    for name, (kind, damage) in FAILED.items():
        status, said = read(made, kind, damage)
        if status != 7 or "report it" in said:
            wrong[name] = (status, said)
    assert not wrong, "\n".join(map(repr, wrong.items()))


def test_the_file_is_named(made: Command) -> None:
    """An error about a file's content names the file, even if there is only one."""
    directory = made.directory
    for name in ("local", "sealed", "envelope", "wrapped"):
        data = bytearray((directory / name).read_bytes())
        data[-20 if name == "local" else data.rfind(b'"', 0, -3) - 4] ^= 1
        (directory / "changed").write_bytes(data)
        ended = made(*("changed" if word == "{}" else word for word in READ[name]))
        assert ended.status in {1, 2, 7}, (name, ended)
        assert ended.err.startswith("pqkeep: changed"), (name, ended)
    (directory / "short").write_bytes(b"x")
    assert made("wrap", "short").err.startswith("pqkeep: short: ")
    (directory / "key.raw").write_bytes(b"\xff" * 1184)
    words = ("--public-key", "key.raw", "--algorithm", "Kyber768", "--key-version", "1")
    ended = made("encrypt", "plain", *words, "--to", "out")
    assert (ended.status, ended.err.startswith("pqkeep: key.raw: ")) == (2, True), ended
    ended = made("encrypt", "plain", "--recipient", "key.raw", "--to", "out")
    assert "key.raw" in ended.err, ended
    (directory / "api-key").write_text("a b")
    (directory / "api-key").chmod(0o600)
    assert "api-key must be printable" in made("keys", "list", "--api-key-file", "api-key").err


def test_what_to_do_next(made: Command) -> None:
    """The suggested next step is a command that fits the error, and never the same command."""
    missing = made("keys", "list", "--keyring", "absent").err.splitlines()[1]
    assert missing.strip() == "list what exists: pqkeep keyrings list"
    for words in (("--url", "http://127.0.0.1:1"), ()):
        ended = made.as_(PQKEEP_API_KEY="pqk_unknown", PQKEEP_API_KEY_FILE="")("status", *words)
        assert ended.status in {3, 8}
        assert "pqkeep status" not in ended.err
    assert "https://" in made("status", "--url", "http://example.org").err

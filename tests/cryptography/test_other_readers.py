"""Public keys and signatures, read by Bouncy Castle and Go, which share no code with pqkeep.

Bouncy Castle comes from Maven's repository, in the version of readers/pom.xml. Without a tool its
tests are skipped.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol import public_keys
from pqkeep_protocol.algorithms import Algorithm

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

READERS = Path(__file__).parent / "readers"
SECONDS = 800.0
MESSAGE = b"read elsewhere"
KEM_NAMES = {Algorithm.ML_KEM_768: "ML-KEM-768", Algorithm.ML_KEM_1024: "ML-KEM-1024"}
SIGNATURE_NAMES = {
    Algorithm.ML_DSA_65: "ML-DSA-65",
    Algorithm.ML_DSA_87: "ML-DSA-87",
    Algorithm.SLH_DSA_SHA2_128S: "SLH-DSA-SHA2-128S",
    Algorithm.SLH_DSA_SHA2_128F: "SLH-DSA-SHA2-128F",
    Algorithm.SLH_DSA_SHA2_192S: "SLH-DSA-SHA2-192S",
    Algorithm.SLH_DSA_SHA2_256S: "SLH-DSA-SHA2-256S",
}
"""The readers' names of algorithms. The readers know no X-Wing and no composite ML-DSA."""
IDENTIFIERS = {
    Algorithm.ML_KEM_768: "2.16.840.1.101.3.4.4.2",
    Algorithm.ML_KEM_1024: "2.16.840.1.101.3.4.4.3",
}


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def _responses(words: list[str | Path], lines: list[str], folder: Path) -> list[list[str]]:
    """Return the words of each line of a reader's output."""
    ended = subprocess.run(
        words,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=folder,
        env={**os.environ, "GOCACHE": str(folder / "go"), "GOFLAGS": "-mod=mod"},
    )
    assert ended.returncode == 0, ended.stderr
    responses = [line.split() for line in ended.stdout.splitlines()]
    assert len(responses) == len(lines)
    return responses


@pytest.fixture(scope="module")
def bouncy_castle(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The command line of the Java reader."""
    java, maven = _tool("java"), _tool("mvn")
    folder = tmp_path_factory.mktemp("libraries")
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    words: list[str | Path] = [maven, "-q", "-B", "-f", READERS / "pom.xml", copy]
    fetched = subprocess.run(
        [*words, f"-DoutputDirectory={folder}"], capture_output=True, timeout=SECONDS, check=False
    )
    if fetched.returncode:
        pytest.skip("Maven's repository cannot be reached")
    (library,) = folder.glob("*.jar")
    return [java, "-cp", library, READERS / "Reader.java"]


def test_bouncy_castle_reads_public_keys_and_signatures(
    bouncy_castle: list[str | Path], tmp_path: Path
) -> None:
    """Bouncy Castle knows each algorithm, writes the same DER, and verifies only the right message."""
    schemes = signature_schemes(Pqcrypto())
    lines: list[str] = []
    expected: list[list[str]] = []
    for algorithm, name in SIGNATURE_NAMES.items():
        private = schemes[algorithm].generate()
        encoded = public_keys.to_der(algorithm, private.public_bytes()).hex()
        signature = private.sign(MESSAGE).hex()
        for message, is_valid in ((MESSAGE, "true"), (MESSAGE + b"!", "false")):
            family = "SLH-DSA" if name.startswith("SLH") else "ML-DSA"
            lines.append(f"{family} {encoded} {message.hex()} {signature}")
            expected.append([name, encoded, is_valid])
    assert _responses(bouncy_castle, lines, tmp_path) == expected


def test_bouncy_castle_encapsulates_to_public_keys(
    bouncy_castle: list[str | Path], tmp_path: Path
) -> None:
    """Its encapsulation to a key's DER is recovered with the private key."""
    pairs: dict[Algorithm, Any] = {each: KEMS[each].generate() for each in KEM_NAMES}
    encoded = {
        each: public_keys.to_der(each, private.public_bytes()).hex()
        for each, private in pairs.items()
    }
    responses = _responses(bouncy_castle, [f"ML-KEM {each}" for each in encoded.values()], tmp_path)
    for (algorithm, private), (name, again, ciphertext, secret) in zip(
        pairs.items(), responses, strict=True
    ):
        assert (name, again) == (KEM_NAMES[algorithm], encoded[algorithm])
        assert private.decapsulate(bytes.fromhex(ciphertext)) == bytes.fromhex(secret)


def test_go_encapsulates_to_public_keys(tmp_path: Path) -> None:
    """Go reads the PEM, and its encapsulation is recovered with the private key."""
    go = _tool("go")
    pairs: dict[Algorithm, Any] = {each: KEMS[each].generate() for each in KEM_NAMES}
    lines = [
        base64.b64encode(public_keys.to_pem(each, private.public_bytes()).encode()).decode()
        for each, private in pairs.items()
    ]
    responses = _responses([go, "run", READERS / "reader.go"], lines, tmp_path)
    for (algorithm, private), (identifier, ciphertext, secret) in zip(
        pairs.items(), responses, strict=True
    ):
        assert identifier == IDENTIFIERS[algorithm]
        assert private.decapsulate(bytes.fromhex(ciphertext)) == bytes.fromhex(secret)

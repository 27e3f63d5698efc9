"""Unchanged age and SOPS with keys of pqkeep.

``make interop`` builds the tools and runs these tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import pytest
from tests.docs.test_every_snippet import commands
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

from pqkeep_protocol.algorithms import Algorithm

INTEROP = Path(__file__).parents[2] / ".interop"
AGE = INTEROP / "bin/age"
VECTORS = sorted((INTEROP / "age").glob("hybrid*"))
PLAIN = os.urandom(100_001)
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not AGE.exists(), reason="make interop builds it"),
]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH with age, SOPS, pqkeep and the plugin."""
    folder = tmp_path_factory.mktemp("bin")
    plugin = folder / "age-plugin-pqkeep"
    program = "from pqkeep_command import age_plugin; age_plugin()"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    plugin.chmod(0o755)
    return f"{folder}:{AGE.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Caller:
    """A tenant with an X-Wing key."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    return tenant


@pytest.fixture
def run(installation: Installation, tenant: Caller, path: str, tmp_path: Path) -> Run:
    """Run a line of a shell as the tenant."""

    def shell(line: str, *, of: Caller = tenant, **more: str) -> subprocess.CompletedProcess[bytes]:
        environment = installation.environment(of.api_key) | {"PATH": path, **more}
        return subprocess.run(
            ["/bin/sh", "-euc", line],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), **environment},
            capture_output=True,
            check=False,
        )

    (tmp_path / "plain").write_bytes(PLAIN)
    return shell


def done(ended: subprocess.CompletedProcess[bytes]) -> bytes:
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


def refused(ended: subprocess.CompletedProcess[bytes]) -> str:
    assert (ended.returncode != 0, ended.stdout) == (True, b"")
    return ended.stderr.decode()


def test_the_page_in_order(installation: Installation, run: Run, tmp_path: Path) -> None:
    """The commands of docs/age.md encrypt, decrypt and rotate, with age and with SOPS."""
    owner = installation.new_tenant()
    (tmp_path / "report.pdf").write_bytes(PLAIN)
    (tmp_path / "secret.yaml").write_text("card: 4111 1111 1111 1111\n")
    shown = b""
    for text in commands("age.md"):
        shown += done(run(text, of=owner))
    assert (tmp_path / "copy.pdf").read_bytes() == PLAIN
    assert b"4111 1111 1111 1111" in shown
    assert "4111" not in (tmp_path / "secret.enc.yaml").read_text()


def test_a_rotation(installation: Installation, run: Run, tmp_path: Path) -> None:
    """An old file opens after a rotation; the new recipient differs; an archived version is named."""
    owner = installation.new_tenant()
    owner.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    write = "pqkeep keys public-key X-Wing --format age > {0}.txt; pqkeep age identity > {0}.id"
    done(run(write.format("old") + "; age -R old.txt -o old.age plain", of=owner))
    owner.post("/kms/keys/rotate", {"algorithm": "X-Wing"}, status=201)
    done(run(write.format("new") + "; age -R new.txt -o new.age plain", of=owner))
    assert (tmp_path / "old.txt").read_bytes() != (tmp_path / "new.txt").read_bytes()
    assert done(run("age -d -i old.id old.age", of=owner)) == PLAIN
    assert done(run("age -d -i old.id -i new.id new.age", of=owner)) == PLAIN
    assert "no identity matched" in refused(run("age -d -i new.id old.age", of=owner))
    owner.post("/kms/keyrings", {"name": "payments"}, status=201)
    owner.post("/kms/keys/generate", {"algorithm": "X-Wing", "keyring": "payments"}, status=201)
    done(run("pqkeep age identity --keyring payments > payments.id", of=owner))
    assert "no identity matched" in refused(run("age -d -i payments.id old.age", of=owner))
    stranger = installation.new_tenant()
    assert "ERR_NOT_FOUND_001" in refused(run("age -d -i old.id old.age", of=stranger))
    installation.archive(owner.tenant_id, Algorithm.X_WING, 1)
    assert "X-Wing version 1 in keyring default" in refused(
        run("age -d -i old.id old.age", of=owner)
    )


def test_recipients_do_not_mix(run: Run) -> None:
    """Age refuses a file to a key of pqkeep and to a classic key."""
    done(run("pqkeep keys public-key X-Wing --format age > r.txt; age-keygen -o classic.txt"))
    done(run("age-keygen -y classic.txt >> r.txt"))
    assert "post-quantum and classic" in refused(run("age -R r.txt plain"))
    assert "--format age" in refused(run("pqkeep age identity > id; age -e -i id plain"))


def test_damaged_files(run: Run, tmp_path: Path) -> None:
    """A file with a change in any line of its header, or in its data, is refused."""
    done(run("pqkeep keys public-key X-Wing --format age > r.txt; pqkeep age identity > id.txt"))
    done(run("age -R r.txt -o whole.age plain"))
    whole = (tmp_path / "whole.age").read_bytes()
    intro, stanza, body, end, data = whole.split(b"\n", 4)
    cases: Mapping[str, tuple[bytes, ...]] = {
        "intro": (intro[:-1] + b"2", stanza, body, end, data),
        "type": (intro, stanza.replace(b"mlkem768", b"mlkem769"), body, end, data),
        "ciphertext": (intro, stanza[:60] + _other(stanza[60:61]) + stanza[61:], body, end, data),
        "shorter ciphertext": (intro, stanza[:-4], body, end, data),
        "another argument": (intro, stanza + b" AAAA", body, end, data),
        "no argument": (intro, b"-> mlkem768x25519", body, end, data),
        "body": (intro, stanza, _other(body[:1]) + body[1:], end, data),
        "shorter body": (intro, stanza, body[:-4], end, data),
        "MAC": (intro, stanza, body, end[:4] + _other(end[4:5]) + end[5:], data),
        "another stanza": (intro, b"-> x\n\n" + stanza, body, end, data),
        "twice": (intro, stanza, body, stanza, body, end, data),
        "data": (intro, stanza, body, end, data[:-1] + bytes((data[-1] ^ 1,))),
        "cut": (intro, stanza, body, end, data[:-1]),
    }
    for name, lines in cases.items():
        (tmp_path / "damaged.age").write_bytes(b"\n".join(lines))
        ended = run("age -d -i id.txt -o - damaged.age")
        assert ended.returncode != 0, name
        assert PLAIN not in ended.stdout


def _other(character: bytes) -> bytes:
    return b"A" if character != b"A" else b"B"


@pytest.mark.parametrize("vector", VECTORS, ids=[vector.name for vector in VECTORS])
def test_vectors_of_age(vector: Path, installation: Installation, run: Run, tmp_path: Path) -> None:
    """Each vector's key in pqkeep opens the file, or refuses it, exactly like age's own key."""
    head, _, content = vector.read_bytes().partition(b"\n\n")
    fields = [line.split(": ", 1) for line in head.decode().splitlines()]
    facts = dict(fields)
    if facts.get("compressed") == "zlib":
        content = zlib.decompress(content)
    (tmp_path / "file.age").write_bytes(content)
    owner = installation.new_tenant()
    identities = [value for name, value in fields if name == "identity"]
    own = next(text for text in identities if text.startswith("AGE-SECRET-KEY-PQ-"))
    (tmp_path / "key.txt").write_text(own)
    done(run("pqkeep keys import X-Wing key.txt; pqkeep age identity > id.txt", of=owner))
    others = [text for text in identities if text != own]
    (tmp_path / "others.txt").write_text("\n".join(others))
    options = " -i others.txt" if others else ""
    ended = run(f"age -d{options} -i id.txt file.age", of=owner)
    if facts["expect"] == "success":
        assert sha256(done(ended)).hexdigest() == facts["payload"]
    else:
        why = refused(ended)
        assert ("no identity matched" in why) is (facts["expect"] == "no match"), why


def test_sops(run: Run, tmp_path: Path) -> None:
    """SOPS encrypts to a key of pqkeep, decrypts by the plugin, and moves a file to a new key."""
    (tmp_path / "plain.yaml").write_text("card: 4111 1111 1111 1111\n")
    done(run("pqkeep keys public-key X-Wing --format age > r.txt; pqkeep age identity > id.txt"))
    done(run('sops encrypt --age "$(cat r.txt)" plain.yaml > secret.yaml'))
    secret = (tmp_path / "secret.yaml").read_text()
    assert "4111" not in secret
    decrypted = done(run("sops decrypt secret.yaml", SOPS_AGE_KEY_FILE="id.txt"))
    assert decrypted == (tmp_path / "plain.yaml").read_bytes()
    done(run("sops rotate -i secret.yaml", SOPS_AGE_KEY_FILE="id.txt"))
    assert done(run("sops decrypt secret.yaml", SOPS_AGE_KEY_FILE="id.txt")) == decrypted
    (tmp_path / "wrong.txt").write_text(
        re.sub("^[^#].*", "", (tmp_path / "id.txt").read_text(), flags=re.MULTILINE)
    )
    refused(run("sops decrypt secret.yaml", SOPS_AGE_KEY_FILE="wrong.txt"))

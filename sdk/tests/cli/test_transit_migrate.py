"""``pqkeep transit migrate``: each old ciphertext is moved once, despite interruptions."""

from __future__ import annotations

import base64
import csv
import io
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sdk.tests.cli.transit_server import LATEST, TOKEN, encrypted, running

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command, Ended
    from tests.fixtures.certificate import Certificate

    from pqkeep import Client

Answer = Callable[..., str]
NEW, ERROR = "pqkeep_ciphertext", "pqkeep_error"
SECRET = "4111-1111-of-a-customer"  # noqa: S105 - it may not be shown


@pytest.fixture(scope="module")
def old_service() -> Iterator[str]:
    """Return the address of a server of this module."""
    with running() as url:
        yield url


class Mover:
    """The command with the token of the old service."""

    def __init__(self, command: Command, url: str) -> None:
        """Take the command and the address of the old service."""
        secrets = command.secrets | {TOKEN, SECRET}
        self.command = replace(command.as_(VAULT_TOKEN=TOKEN), secrets=secrets)
        self.directory = command.directory
        self.url = url

    def arguments(self, *more: str, key: str = "cards", to: str = "moved") -> tuple[str, ...]:
        """Return the arguments of a run."""
        return ("transit", "migrate", "--from", self.url, "--key", key, "--to", to, *more)

    def __call__(self, *more: str, key: str = "cards", to: str = "moved") -> Ended:
        """Run it to its end."""
        return self.command(*self.arguments(*more, key=key, to=to))

    def write(self, name: str, text: str) -> Path:
        """Write an input."""
        file = self.directory / name
        file.write_text(text)
        return file

    def rows(self, name: str = "moved") -> list[dict[str, str]]:
        """Return the rows of an output in CSV."""
        return list(csv.DictReader(io.StringIO((self.directory / name).read_text())))


@pytest.fixture
def mover(command: Command, old_service: str) -> Mover:
    """The command, and a running old service."""
    return Mover(command, old_service)


def opened(tenant: Client, text: str, keyring: str = "cards", **bound: bytes) -> bytes:
    """Return the plaintext of a new ciphertext as a client of Transit stores it."""
    prefix, version, sealed = text.split(":")
    assert prefix == "vault"
    assert int(version[1:]) == LATEST + 1
    named = {"algorithm": "XAES-256-GCM", "keyring": keyring, "key_version": int(version[1:])}
    return tenant.kem.decrypt(base64.b64decode(sealed), **named, **bound)  # type: ignore[arg-type]


def test_lines_are_moved_in_order(mover: Mover, tenant: Client) -> None:
    """Every line gets its new ciphertext, one version above, which opens to the same plaintext."""
    plain = [f"{SECRET} {number}".encode() for number in range(300)]
    old = [encrypted("cards", text, version=1 + place % 3) for place, text in enumerate(plain)]
    mover.write("old", "\n".join(old) + "\n")
    ended = mover("old")
    assert (ended.status, ended.err) == (0, "")
    rows = mover.rows()
    assert [row["ciphertext"] for row in rows] == old
    assert [opened(tenant, row[NEW]) for row in rows] == plain
    assert (mover.directory / "moved").stat().st_mode & 0o777 == 0o600
    assert mover("old").status == 0
    assert mover.rows() == rows


@pytest.mark.parametrize("at", [0.0, 0.5, 0.99])
def test_a_killed_run_is_gone_on_with(mover: Mover, tenant: Client, at: float) -> None:
    """SIGKILL at any moment and a cut last line lose nothing, and nothing is written twice."""
    old = [encrypted("cards", f"{SECRET} {number}".encode()) for number in range(1500)]
    mover.write("old", "\n".join(old))
    output = mover.directory / "moved"
    for _ in range(2):
        process = mover.command.start(*mover.arguments("old"))
        before = output.stat().st_size if output.exists() else 0
        while process.poll() is None and (
            not output.exists() or output.stat().st_size <= before + 30_000 * at
        ):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        data = output.read_bytes()
        output.write_bytes(data[: int(len(data) * (0.5 + at / 2))])
    assert mover("old").status == 0
    rows = mover.rows()
    assert [row["ciphertext"] for row in rows] == old
    assert [opened(tenant, row[NEW]) for row in rows[::100]] == [
        f"{SECRET} {number}".encode() for number in range(0, 1500, 100)
    ]
    assert not any(row[ERROR] for row in rows)


@pytest.mark.parametrize("lost", range(0, 260, 13))
def test_a_cut_output_is_completed(mover: Mover, lost: int) -> None:
    """Wherever the output was cut, even in its header, a later run completes it."""
    old = [encrypted("cards", b"text") for _ in range(2)]
    mover.write("old", "\n".join(old))
    assert mover("old").status == 0
    output = mover.directory / "moved"
    whole = output.read_bytes()
    output.write_bytes(whole[: max(len(whole) - lost, 0)])
    assert mover("old").status == 0
    rows = mover.rows()
    assert [row["ciphertext"] for row in rows] == old
    assert all(row[NEW].startswith("vault:v4:") for row in rows)


def test_a_bad_ciphertext_does_not_stop_the_others(mover: Mover, tenant: Client) -> None:
    """Each failed line is named with its reason. The status is 7, also in later runs."""
    good = encrypted("cards", b"text")
    damaged = good[:-8] + "AAAAAAAA"
    bad = (damaged, "vault:v0:AAAA", "nonsense", "pqk1.a.b", '"a,b', "vault:v1", "ü")
    mover.write("old", "\n".join([good, *bad, "", good]))
    for _ in range(2):
        ended = mover("old")
        assert ended.status == 7
        assert f"{len(bad)} ciphertexts were not moved" in ended.err
    first = mover("old", to="again").err
    assert "line 2: cipher: message authentication failed" in first
    assert "line 3: ciphertext or signature version is disallowed by policy (too old)" in first
    rows = mover.rows()
    assert [row["ciphertext"] for row in rows] == [good, *bad, good]
    assert [bool(row[NEW]) for row in rows] == [True, *[False] * len(bad), True]
    assert [bool(row[ERROR]) for row in rows] == [False, *[True] * len(bad), False]
    assert opened(tenant, rows[-1][NEW]) == b"text"


def test_what_is_moved_already_stays(mover: Mover) -> None:
    """A second list that has new ciphertexts leaves them unchanged."""
    old = encrypted("cards", b"text")
    mover.write("old", old)
    assert mover("old").status == 0
    new = mover.rows()[0][NEW]
    mover.write("mixed", f"{new}\n{old}\n")
    ended = mover("--output", "json", "mixed", to="later")
    assert json.loads(ended.out) == {"moved": 1, "moved_before": 0, "unchanged": 1, "failed": 0}
    assert [row[NEW] == new for row in mover.rows("later")] == [True, False]


def test_a_version_that_no_key_has_is_an_error(mover: Mover) -> None:
    """A ciphertext with a version above both keys' versions is not counted as moved."""
    old = encrypted("cards", b"text")
    mover.write("old", f"{old.replace('vault:v1:', 'vault:v99:')}\n{old}\n")
    ended = mover("old")
    assert "no key has version 99, old or new" in ended.err
    assert [bool(row[NEW]) for row in mover.rows()] == [False, True]


def test_csv_keeps_its_other_columns(mover: Mover, tenant: Client) -> None:
    """Every column stays the same and in order, also with quotation marks or line breaks."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["id", "note", "c"])
    old = [encrypted("cards", str(number).encode()) for number in range(3)]
    notes = ["a, b", 'say "x"\r\nline', "ü"]
    for number, (note, text) in enumerate(zip(notes, old, strict=True)):
        writer.writerow([number, note, text])
    (mover.directory / "t.csv").write_bytes(b"\xef\xbb\xbf" + table.getvalue().encode())
    assert mover("t.csv", "--column", "c").status == 0
    text = (mover.directory / "moved").read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["note"] for row in rows] == notes
    assert [opened(tenant, row[NEW]) for row in rows] == [b"0", b"1", b"2"]
    assert list(rows[0]) == ["id", "note", "c", NEW, ERROR]
    assert mover("t.csv", "--column", "c").status == 0


def test_json_lines_keep_their_members(mover: Mover, tenant: Client) -> None:
    """Each object has two more members, and the rest is unchanged."""
    old = encrypted("cards", b"text")
    mover.write("t.jsonl", f'{{"id": 1.50, "c": "{old}"}}\n{{"id": 2}}\n')
    assert mover("t.jsonl", "--column", "c").status == 7
    first, second = (mover.directory / "moved").read_text().splitlines()
    assert first.startswith('{"id": 1.50, "c": "vault:v1:')
    assert opened(tenant, json.loads(first)[NEW]) == b"text"
    assert json.loads(second) == {"id": 2, NEW: None, ERROR: "there is no ciphertext"}
    assert mover("t.jsonl", "--column", "c").status == 7


def test_standard_input_and_other_forms(mover: Mover, tenant: Client) -> None:
    """Lines from a pipe are moved, and the new text can be base64 or an envelope."""
    old = encrypted("cards", b"text")
    for form in ("base64", "envelope"):
        arguments = mover.arguments("--write", form, to=form)
        assert mover.command(*arguments, stdin=old.encode()).status == 0
    (plain,), (sealed,) = mover.rows("base64"), mover.rows("envelope")
    named = {"algorithm": "XAES-256-GCM", "keyring": "cards"}
    data = base64.b64decode(plain[NEW])
    assert tenant.kem.decrypt(data, key_version=LATEST + 1, **named) == b"text"  # type: ignore[arg-type]
    assert tenant.kem.decrypt_envelope(sealed[NEW]) == b"text"


def test_contexts_and_associated_data_bind_as_before(mover: Mover, tenant: Client) -> None:
    """The new ciphertext of a derived key opens with its row's context and associated data only."""
    rows = ["customer,row,ciphertext"]
    for customer in ("1", "2"):
        bound = {"context": customer.encode(), "bound": b"r" + customer.encode()}
        old = encrypted("customers", customer.encode(), **bound)  # type: ignore[arg-type]
        rows.append(f"{customer},r{customer},{old}")
    mover.write("t.csv", "\n".join([*rows, f",r,{old}"]))
    columns = ("--context-column", "customer", "--associated-data-column", "row")
    assert mover("t.csv", *columns, key="customers").status == 7
    first, second, third = mover.rows()
    assert third[ERROR] == "the context is empty"
    for row in (first, second):
        bound = {"context": row["customer"].encode(), "associated_data": row["row"].encode()}
        assert opened(tenant, row[NEW], "customers", **bound) == row["customer"].encode()
    assert mover("t.csv", key="customers", to="other").status == 2
    assert mover("t.csv", *columns, key="cards", to="other").status == 2


REFUSED: dict[str, tuple[str, str]] = {
    "another input": ("new", "ciphertext,pqkeep_ciphertext,pqkeep_error\nvault:v1:a,vault:v4:b,\n"),
    "not an output": ("new", "a file of mine\n"),
    "more records": (
        "{old}",
        "ciphertext,pqkeep_ciphertext,pqkeep_error\n{old},vault:v4:b,\nx,y,\n",
    ),
    "no fields": ("{old}", "ciphertext,pqkeep_ciphertext,pqkeep_error\n{old},,\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_file_is_not_changed(mover: Mover, name: str) -> None:
    """A file that is not the output for this input is refused, and stays unchanged."""
    old = encrypted("cards", b"text")
    text, before = (part.replace("{old}", old) for part in REFUSED[name])
    mover.write("old", text)
    output = mover.write("moved", before)
    assert mover("old").status == 2
    assert output.read_text() == before


@pytest.mark.parametrize(
    ("name", "text", "more"),
    [
        ("t.csv", "a,b\n1,2\n", ()),
        ("t.csv", "ciphertext,x\n1\n", ()),
        ("t.csv", 'ciphertext\n"never closed\n', ()),
        ("t.csv", f"ciphertext,{NEW}\n1,2\n", ()),
        ("t.csv", "ciphertext,ciphertext\n1,2\n", ()),
        ("t.csv", "ciphertext\n1\n", ("--delimiter", "x")),
        ("t.csv", "", ()),
        ("t.jsonl", "[1]\n", ()),
        ("t.jsonl", '{"ciphertext"\n', ()),
        ("t.jsonl", f'{{"ciphertext": "a", "{NEW}": "b"}}\n', ()),
        ("lines", "a\n", ("--context-column", "x")),
    ],
)
def test_what_is_not_of_the_form_is_refused(
    mover: Mover, name: str, text: str, more: tuple[str, ...]
) -> None:
    """A file of another form ends the command with its line, and nothing is moved."""
    mover.write(name, text)
    assert mover(name, *more).status == 2


def test_an_output_has_one_writer(mover: Mover) -> None:
    """A second simultaneous run is refused, and so is a run that would overwrite its input."""
    old = encrypted("cards", b"text")
    mover.write("old", f"{old}\n" * 3000)
    process = mover.command.start(*mover.arguments("old"))
    while not (mover.directory / "moved").exists():
        assert process.poll() is None
        time.sleep(0.001)
    second = mover("old")
    assert second.status == 2 or process.poll() is not None
    process.communicate()
    assert len(mover.rows()) == 3000
    mover.write("same", "")
    assert mover("same", to="same").status == 2


def test_versions_that_could_be_mixed_up_are_refused(mover: Mover, tenant: Client) -> None:
    """Versions here must be above the old key's, unless the text has no version."""
    tenant.keyrings.create("cards")
    tenant.keys.generate("XAES-256-GCM", keyring="cards")
    mover.write("old", encrypted("cards", b"text"))
    refused = mover("old")
    assert (refused.status, "version 3" in refused.err) == (2, True)
    assert mover("old", "--write", "base64").status == 0
    assert mover("old", "--keyring", "cards2", to="other").status == 0
    assert tenant.keyrings.get("cards2").first_version == LATEST + 1


def test_clients_of_transit_read_the_algorithm(mover: Mover, tenant: Client) -> None:
    """A new keyring has the algorithm's key type. A keyring with another type is refused."""
    mover.write("old", encrypted("cards", b"text"))
    assert mover("old").status == 0
    assert tenant.keyrings.get("cards").transit_type == "aes256-gcm96"
    refused = mover("old", "--algorithm", "Kyber768", to="kem")
    assert (refused.status, "type aes256-gcm96" in refused.err) == (2, True)
    assert mover("old", "--algorithm", "Kyber768", "--keyring", "kem", to="kem").status == 0
    assert tenant.keyrings.get("kem").transit_type == "ml-kem-768"
    tenant.keyrings.create("untyped", first_version=LATEST + 1)
    refused = mover("old", "--keyring", "untyped", to="untyped")
    assert (refused.status, "no Transit type" in refused.err) == (2, True)
    assert mover("old", "--keyring", "untyped", "--write", "base64", to="base64").status == 0
    refused = mover("old", "--algorithm", "ML-DSA-65", "--keyring", "signs", to="signs")
    assert (refused.status, "ML-DSA-65 cannot encrypt" in refused.err) == (2, True)


HOSTILE: dict[str, tuple[bytes, int, tuple[tuple[str, str], ...]]] = {
    "a redirect": (b"", 307, (("Location", "http://127.0.0.1:1/v1/transit/decrypt/cards"),)),
    "denied, with the token": (json.dumps({"errors": [TOKEN]}).encode(), 403, ()),
    "an error with a plaintext": (json.dumps({"errors": [SECRET]}).encode(), 400, ()),
    "too many results": (b'{"data": {"batch_results": [{}, {}]}}', 200, ()),
    "too few results": (b'{"data": {"batch_results": []}}', 200, ()),
    "no JSON": (SECRET.encode(), 200, ()),
    "deep JSON": (b"[" * 200_000, 200, ()),
    "other results": (b'{"data": {"batch_results": [7]}}', 200, ()),
    "another order": (b'{"data": {"batch_results": [{"reference": "1"}]}}', 200, ()),
    "a reference that is no text": (b'{"data": {"batch_results": [{"reference": []}]}}', 200, ()),
    "no base64": (b'{"data": {"batch_results": [{"plaintext": "!"}]}}', 200, ()),
    "another encoding": (b"", 200, (("Content-Encoding", "gzip"),)),
    "too much": (b'{"data": "' + b"x" * 17_000_000 + b'"}', 200, ()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_old_service(mover: Mover, response: Answer, tenant: Client, name: str) -> None:
    """The run ends with a reason and shows nothing of the response; nothing is written."""
    body, status, headers = HOSTILE[name]
    mover.url = response(body, status, headers)
    mover.write("old", encrypted("cards", b"text"))
    ended = mover("old", "--latest-version", "3")
    assert ended.status in {1, 8}
    assert "unexpected error" not in ended.err
    assert len(mover.rows()) == 0


def test_an_error_of_an_item_is_not_quoted(mover: Mover, response: Answer) -> None:
    """A reason that is not one of Transit's own sentences is replaced, in the output too."""
    body = json.dumps({"data": {"batch_results": [{"error": f"it was {SECRET}"}]}})
    mover.url = response(body.encode())
    mover.write("old", encrypted("cards", b"text"))
    assert mover("old", "--latest-version", "3").status == 7
    assert mover.rows()[0][ERROR] == "the old service does not decrypt it"


@pytest.mark.parametrize(
    ("more", "environment"),
    [
        (("--token-file", "missing"), {}),
        ((), {"VAULT_TOKEN": "two words"}),
        ((), {"VAULT_TOKEN": ""}),
        (("--mount", "../sys"), {}),
        (("--mount", "a?b"), {}),
        (("--namespace", "a\nb"), {}),
        (("--ca-file", "missing"), {}),
    ],
)
def test_unusable_settings_are_refused(
    mover: Mover, more: tuple[str, ...], environment: dict[str, str]
) -> None:
    """Without a usable token, path or authority nothing is sent."""
    mover.write("old", encrypted("cards", b"text"))
    mover.command = mover.command.as_(**environment)
    if "--ca-file" in more:
        mover.url = mover.url.replace("http:", "https:")
    assert mover("old", *more).status in {1, 2}


def test_the_certificate_of_the_old_service_is_checked(
    mover: Mover, certificate: Certificate
) -> None:
    """An unknown authority is refused before the token is sent; a named one is trusted."""
    mover.write("old", encrypted("cards", b"text"))
    with running(certificate.path, certificate.key) as mover.url:
        refused = mover("old")
        assert refused.status == 1
        assert "--ca-file" in refused.err
        assert mover("old", "--ca-file", str(certificate.path)).status == 0
        trusted = {"VAULT_CACERT": str(certificate.path)}
        mover.command = mover.command.as_(**trusted)
        assert mover("old", to="other").status == 0


@pytest.mark.parametrize("pieces", [(), (b"HTTP/1.1 200 OK\r\n",), (b"HTTP/1.1 200 OK\r\n\r\n{",)])
def test_a_slow_old_service_ends_the_run(mover: Mover, pieces: tuple[bytes, ...]) -> None:
    """A response that never ends is given up, byte by byte too, and the status is 8."""
    mover.write("old", encrypted("cards", b"text"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mover.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=_drip, args=(listener, pieces), daemon=True).start()
        ended = mover("old", "--latest-version", "3", "--timeout", "1")
    assert (ended.status, "in time" in ended.err) == (8, True)


def _drip(listener: socket.socket, pieces: tuple[bytes, ...]) -> None:
    """Send each connection some bytes, and then a space from time to time."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.sendall(b"".join(pieces))
            threading.Thread(target=_drip_on, args=(connection,), daemon=True).start()


def _drip_on(connection: socket.socket) -> None:
    with suppress(OSError), connection:
        while True:
            connection.sendall(b"X")
            time.sleep(0.2)


def test_a_plaintext_that_is_too_large_fails_alone(mover: Mover, tenant: Client) -> None:
    """If pqkeep refuses one plaintext of a request, the others are moved, including an empty one."""
    plain = [b"before", bytes(1024 * 1024 + 1), b"", b"after"]
    mover.write("old", "\n".join(encrypted("cards", text) for text in plain))
    ended = mover("old")
    assert (ended.status, "line 2: pqkeep refuses it: ERR_KEM_001" in ended.err) == (7, True)
    csv.field_size_limit(4 * 1024 * 1024)
    rows = mover.rows()
    assert [opened(tenant, rows[place][NEW]) for place in (0, 2, 3)] == [b"before", b"", b"after"]


def test_plain_http_is_for_this_machine_only(mover: Mover) -> None:
    """A token is not sent over a network in the clear."""
    mover.url = "http://192.0.2.1:8200"
    mover.write("old", encrypted("cards", b"text"))
    ended = mover("old")
    assert (ended.status, "https" in ended.err) == (2, True)


def test_a_token_from_a_file(mover: Mover) -> None:
    """A private file has the token; one that others can read is refused."""
    mover.write("old", encrypted("cards", b"text"))
    file = mover.write("token", TOKEN)
    mover.command = mover.command.as_(VAULT_TOKEN="")
    file.chmod(0o644)
    assert mover("old", "--token-file", "token").status == 2
    file.chmod(0o600)
    assert mover("old", "--token-file", "token").status == 0

"""What is written about local encryption is true: the examples run, and nothing is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pqkeep import local
from pqkeep.local import _async_local, _header, _primitives, _segments

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = (DOCS / "local-encryption.md").read_text()
FORMAT = (DOCS / "local-format.md").read_text()


def test_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, base_url: str, api_key: str
) -> None:
    """The examples run one after the other, with address and key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PQKEEP_URL", base_url)
    monkeypatch.setenv("PQKEEP_API_KEY", api_key)
    Path("report.pdf").write_bytes(b"a report")
    program = "".join(re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE))
    exec(compile(program, "documentation", "exec"), {})  # noqa: S102 - it is our own
    assert Path("copy.pdf").read_bytes() == b"a report"


def test_every_method() -> None:
    """The guide names every method of client.local, and both clients have the same ones."""
    methods, awaited = (
        {name for name in dir(kind) if not name.startswith("_")}
        for kind in (local.Local, local.AsyncLocal)
    )
    table = GUIDE[GUIDE.index("| `client.local` |") :].split("\n\n", 1)[0]
    assert methods == awaited == set(re.findall(r"`(\w+)\(", table))


def test_numbers() -> None:
    """The sizes in the format's description are those of the program."""
    assert f"pieces of {_segments.SEGMENT_SIZE:,} bytes" in FORMAT
    assert _segments.SEGMENT_SIZE == 1 << 18
    assert _segments.MOST_SEGMENTS == 1 << 32
    assert f"`{_header.MAGIC.hex()}`" in FORMAT
    for name, number in _header.NUMBERS.items():
        kem = _primitives.KEMS[name]
        size = 13 + kem.ciphertext_size + 32
        row = rf"^\| `0{number}` \| `{name}`.* \| {kem.ciphertext_size} \| {size} \| (SHA-\d+) \|$"
        (hash_name,) = re.findall(row, FORMAT, re.MULTILINE)
        assert hash_name.replace("-", "").lower() == kem.hash.name
    assert _async_local.STOP_SECONDS == 5
    assert "for five seconds at most" in GUIDE

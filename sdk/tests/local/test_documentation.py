"""The documentation of local encryption is complete and correct.

tests/docs/test_documents_in_order.py runs its examples.
"""

from __future__ import annotations

import re
from pathlib import Path

from pqkeep import local
from pqkeep.local import _async_local, _encryption, _header, _primitives, _recipients

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = (DOCS / "local-encryption.md").read_text()
FORMAT = (DOCS / "local-format.md").read_text()


def test_every_method() -> None:
    """The guide names every method of client.local. Both kinds of client have the same methods."""
    methods, awaited = (
        {name for name in dir(kind) if not name.startswith("_")}
        for kind in (local.Local, local.AsyncLocal)
    )
    table = GUIDE[GUIDE.index("| `client.local` |") :].split("\n\n", 1)[0]
    assert methods == awaited == set(re.findall(r"`(\w+)\(", table))


def test_numbers() -> None:
    """The sizes in the format's description equal the program's values."""
    text = " ".join(FORMAT.split())
    assert f"pieces of {_encryption.SEGMENT_SIZE:,} bytes" in text
    assert _encryption.SEGMENT_SIZE == 1 << 18
    assert _encryption.MOST_SEGMENTS == 1 << 32
    assert f"`{_header.MAGIC.hex()}`" in FORMAT
    assert f"This is format {_header.FORMAT}," in text
    assert f"S, the size of a slot: 118 to {_header.LARGEST_SLOT:,}" in FORMAT
    assert f"1 to {_header.MOST_RECIPIENTS} |" in FORMAT
    layout = _header.layout_for((), capacity=_header.DEFAULT_CAPACITY)
    assert f"two slots of {layout.slot_size:,} bytes" in text
    assert f"header has {layout.size // 1024} KiB for files" in GUIDE
    assert f"S is a multiple of {_header.BLOCK:,}" in text
    assert _recipients.PROTOCOL.decode() in FORMAT
    lengths = set()
    for name, number in _recipients.NUMBERS.items():
        kem = _primitives.KEMS[name]
        row = rf"^\| `0{number}` \| `{name}`.* \| {kem.ciphertext_size} \| (SHA-\d+) \|$"
        (hash_name,) = re.findall(row, FORMAT, re.MULTILINE)
        assert hash_name.replace("-", "").lower() == kem.hash.name
        lengths.add(118 + 1 + 4 + 1 + len("default") + 32 + kem.ciphertext_size + 48)
    assert f"{min(lengths):,} to {max(lengths):,} bytes with one recipient" in GUIDE
    assert _async_local.STOP_SECONDS == 5
    assert "for at most five seconds" in GUIDE

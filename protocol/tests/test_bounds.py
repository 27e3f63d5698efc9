"""The decoder refuses numbers and texts that no table of the key service could hold."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args
from uuid import UUID

import pytest
from msgspec import Struct, structs

from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm
from pqkeep_protocol.audit import Event, RecordEvents
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    TO_KEY_SERVICE,
    Answer,
    Call,
    FrameDecoder,
    encode,
)
from pqkeep_protocol.keyrings import MAX_FIRST_VERSION
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    INSTALLATION,
    MAX_KEY_VERSION,
    KeyInfo,
    KeyStatus,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.messages import (
    MAX_KEYS_LISTED,
    AnyRequest,
    AnyResult,
    Attribution,
    Encrypted,
    GetKey,
    Key,
    KeyPosition,
    ListKeys,
    Rotated,
    Signed,
    Target,
)

Feed = Callable[[FrameDecoder[Any], bytes | bytearray], list[Any]]
TENANT = TenantId(UUID(int=1))
SOMEBODY = Attribution("r", "p", "a", "y")
EVENT = Event(
    id=UUID(int=2),
    at_us=0,
    tenant=TENANT,
    principal="p",
    operation="o",
    algorithm="a",
    key_version=None,
    outcome="o",
    request_id="r",
    source_address="a",
    policy="y",
)
VALUES: dict[str, Any] = {
    "tenant": TENANT,
    "algorithm": Algorithm.ML_KEM_768,
    "hash_algorithm": HashAlgorithm.SHA_256,
    "symmetric_key": bytearray(32),
    "days": 7,
    "detached": False,
    "size": 32,
    "mu": bytes(64),
    "keyring": DEFAULT_KEYRING,
    "target": Target(Algorithm.X_WING),
    "is_wrapped_key": False,
}
NAMING_A_VERSION: list[type[Any]] = [
    kind for kind in get_args(AnyRequest) if "version" in kind.__struct_fields__
]
INSIDE = [1, 2, MAX_KEY_VERSION]
OUTSIDE = [0, -1, MAX_KEY_VERSION + 1, 2**63, 2**64 - 1, -(2**63)]
LENGTHS = {"request_id": 128, "principal": 128, "source_address": 64, "policy": 128}


def request(kind: type[Any], version: int) -> Any:
    """Return a request of a type with a version."""
    fields = {
        field.name: False if field.type is bool else VALUES.get(field.name, b"")
        for field in structs.fields(kind)
        if field.required
    }
    return kind(**{**fields, "version": KeyVersion(version)})


def passes(feed: Feed, frame: Call | Answer) -> bool:
    """Return whether a frame is decoded as an equal frame."""
    decoder: FrameDecoder[Any] = FrameDecoder(
        TO_KEY_SERVICE if isinstance(frame, Call) else TO_GATEWAY
    )
    got = feed(decoder, encode(frame))
    assert [one.id for one in got] == [frame.id]
    return got == [frame]


@pytest.mark.parametrize("kind", NAMING_A_VERSION)
def test_a_request_names_a_version_that_can_be(kind: type[Any], feed: Feed) -> None:
    """Each request with a version accepts exactly the versions from 1 to MAX_KEY_VERSION."""
    for version in INSIDE:
        assert passes(feed, Call(1, 1, SOMEBODY, request(kind, version)))
    for version in OUTSIDE:
        assert not passes(feed, Call(1, 1, SOMEBODY, request(kind, version)))


def test_every_version_is_bounded() -> None:
    """No message and no key description has a version without bounds."""
    named: dict[str, type[Struct]] = {
        f"{kind.__name__}.{field.name}": kind
        for kind in (*get_args(AnyRequest), *get_args(AnyResult), KeyInfo)
        for field in structs.fields(kind)
        if "version" in field.name
    }
    assert len(named) > len(NAMING_A_VERSION)
    for name, kind in named.items():
        (field,) = [one for one in structs.fields(kind) if one.name == name.split(".")[1]]
        limit = MAX_FIRST_VERSION if field.name == "first_version" else MAX_KEY_VERSION
        assert f"le={limit}" in str(field.type), name


def info(version: int) -> KeyInfo:
    """Return a key description with a version."""
    created = datetime(2026, 1, 1, tzinfo=UTC)
    return KeyInfo(Algorithm.ML_KEM_768, KeyVersion(version), KeyStatus.ACTIVE, b"", created)


RESULTS: dict[str, Callable[[int], AnyResult]] = {
    "encrypted": lambda version: Encrypted(ciphertext=b"", version=KeyVersion(version)),
    "signed": lambda version: Signed(signature=b"", version=KeyVersion(version)),
    "key": lambda version: Key(key=info(version)),
    "rotated": lambda version: Rotated(key=info(1), old_version=KeyVersion(version)),
}


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_names_a_version_that_can_be(make: Callable[[int], AnyResult], feed: Feed) -> None:
    """The gateway too takes only versions from 1 to MAX_KEY_VERSION."""
    assert all(passes(feed, Answer(1, make(version))) for version in INSIDE)
    assert not any(passes(feed, Answer(1, make(version))) for version in OUTSIDE)


@pytest.mark.parametrize(("field", "length"), LENGTHS.items())
@pytest.mark.parametrize("letter", ["a", "\u00e9", "\U0001f511"])
def test_who_asked_is_said_in_so_many_letters(
    field: str, length: int, letter: str, feed: Feed
) -> None:
    """Each text of an attribution can have its maximum length. One character more is refused."""
    get = GetKey(tenant=TENANT, algorithm=Algorithm.ML_KEM_768, version=KeyVersion(1))
    for size in (0, 1, length):
        by = structs.replace(SOMEBODY, **{field: letter * size})
        assert passes(feed, Call(1, 1, by, get))
    for size in (length + 1, 100_000):
        by = structs.replace(SOMEBODY, **{field: letter * size})
        assert not passes(feed, Call(1, 1, by, get))


def test_every_text_of_an_attribution_is_bounded() -> None:
    """The test above covers every text that goes into the audit log."""
    assert set(LENGTHS) == set(Attribution.__struct_fields__)


@pytest.mark.parametrize("character", ["\0", "\n", "\x1b", "\x7f", "\x85", "\x9f"])
def test_no_text_that_is_recorded_has_a_control_character(character: str, feed: Feed) -> None:
    """A control character in an attribution or event is refused. Other characters pass."""
    get = GetKey(tenant=TENANT, algorithm=Algorithm.ML_KEM_768, version=KeyVersion(1))
    texts = [field.name for field in structs.fields(Event) if "max_length" in str(field.type)]
    assert set(LENGTHS) < set(texts)
    for text, expected in {
        "\u00a0 ~\ue000\U0010ffff": True,
        character: False,
        f"a{character}": False,
        f"{character}a": False,
    }.items():
        for field in LENGTHS:
            by = structs.replace(SOMEBODY, **{field: text})
            assert passes(feed, Call(1, 1, by, get)) == expected
        for field in texts:
            event = structs.replace(EVENT, **{field: text})
            request = RecordEvents(tenant=INSTALLATION, events=(event,))
            assert passes(feed, Call(1, 1, SOMEBODY, request)) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, False), (1, True), (MAX_KEYS_LISTED, True), (MAX_KEYS_LISTED + 1, False)],
)
def test_a_page_of_keys_has_a_bounded_size(limit: int, feed: Feed, *, expected: bool) -> None:
    """A request for a page of keys can ask for 1 to 500 keys."""
    page = ListKeys(tenant=TENANT, algorithm=None, status=None, limit=limit)
    assert passes(feed, Call(1, 1, SOMEBODY, page)) == expected


@pytest.mark.parametrize(
    ("version", "expected"), [(0, False), (1, True), (MAX_KEY_VERSION + 1, False)]
)
def test_a_list_goes_on_behind_a_key(version: int, feed: Feed, *, expected: bool) -> None:
    """A page can start only after a valid key version."""
    after = KeyPosition(Algorithm.ML_KEM_768, KeyVersion(version))
    page = ListKeys(tenant=TENANT, algorithm=None, status=None, after=after)
    assert passes(feed, Call(1, 1, SOMEBODY, page)) == expected

"""Strategies for all frames, from the messages' field types, so that new messages are covered."""

from collections.abc import Callable
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Struct, structs

from pqkeep_protocol.administration import AnyAdministrationRequest, AnyAdministrationResult
from pqkeep_protocol.algorithms import MU_SIZE, Algorithm
from pqkeep_protocol.audit import (
    MAX_INVENTORY_LISTED,
    AnyAuditRequest,
    AnyAuditResult,
    CountRecords,
    Digest,
    FindEvidence,
    InventorySort,
    ListInventory,
    ListUses,
)
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    TO_KEY_SERVICE,
    Answer,
    Call,
    FrameDecoder,
    Ping,
    Pong,
    Refusal,
    ToGateway,
    ToKeyService,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import DERIVED_PURPOSES
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MAX_KEY_VERSION,
    PRINTABLE,
    KeyInfo,
    KeyStatus,
    KeyVersion,
    SomeVersion,
    TenantId,
)
from pqkeep_protocol.messages import (
    AnyKeylessRequest,
    AnyKeylessResult,
    AnyRequest,
    AnyResult,
    Attribution,
    CancelDestruction,
    CiphertextFormat,
    CreateKeyring,
    DataKeySize,
    DeleteRule,
    Encrypt,
    GenerateDataKey,
    KeyRequest,
    ListKeyrings,
    ListRules,
    Mu,
    OverrideRule,
    PutRule,
    ScheduleDestruction,
)
from pqkeep_protocol.metrics import GetMetrics, Metrics
from pqkeep_protocol.rules import MAX_API_KEY, Instant, Rule, RuleException, RuleUse

AnyFrame = ToKeyService | ToGateway
MARKER = b"do not print me"
"""Part of every field of bytes and of text."""

_REST = MU_SIZE - len(MARKER)
_versions = st.integers(1, MAX_KEY_VERSION)
_times = st.datetimes(timezones=st.just(UTC))
_bytes = st.binary(max_size=64).map(lambda data: MARKER + data)
_letters = st.characters(codec="utf-8", exclude_categories=["Cc"])
_text = st.text(_letters, max_size=16).map(lambda text: MARKER.decode() + text)
_algorithms = st.sampled_from(Algorithm)
_statuses = st.sampled_from(KeyStatus)
_keys = st.builds(
    KeyInfo,
    algorithm=_algorithms,
    version=_versions,
    status=_statuses,
    public_key=_bytes,
    created_at=_times,
)
_digests = st.binary(min_size=32, max_size=32)
_seconds = _times.map(lambda at: at.replace(microsecond=0))
_exceptions = st.builds(RuleException, api_key=st.integers(1, MAX_API_KEY), until=_seconds)


RULE = "legacy"
_rules = st.builds(
    Rule,
    name=st.just(RULE),
    algorithms=st.lists(_algorithms, min_size=1, max_size=4, unique=True).map(tuple),
    keyrings=st.just(("default", "cards.*")),
    uses=st.lists(st.sampled_from(RuleUse), min_size=1, unique=True).map(tuple),
    warn_from=st.none() | _seconds,
    exceptions=_exceptions.map(lambda exception: (exception,)),
)
FIELDS: dict[object, SearchStrategy[Any]] = {
    UUID: st.uuids(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Digest: _digests,
    TenantId: st.uuids(),
    Algorithm: _algorithms,
    Algorithm | None: st.none() | _algorithms,
    KeyVersion: _versions,
    SomeVersion | None: st.none() | _versions,
    KeyStatus | None: st.none() | _statuses,
    int: st.integers(0, 2**31),
    float: st.floats(allow_nan=False),
    NoneType: st.none(),
    bool: st.booleans(),
    str: _text,
    str | None: st.none() | _text,
    bytes: _bytes,
    bytearray: _bytes.map(bytearray),
    DataKeySize: st.sampled_from([16, 32, 64]),
    Mu: st.binary(min_size=_REST, max_size=_REST).map(lambda data: MARKER + data),
    datetime | None: st.none() | _times,
    KeyInfo: _keys,
    Rule: _rules,
    RuleException: _exceptions,
    Instant: _seconds,
    Instant | None: st.none() | _seconds,
    tuple[KeyInfo, ...]: st.lists(_keys, max_size=4).map(tuple),
}


def _field(kind: Any) -> SearchStrategy[Any]:  # noqa: C901, PLR0911 - one flat table
    if kind in FIELDS:
        return FIELDS[kind]
    if get_origin(kind) is Annotated:  # bounds of texts and lists are kept by the strategies
        plain, meta = get_args(kind)
        if plain is str and meta.pattern not in {None, PRINTABLE}:
            return st.from_regex(meta.pattern)
        if get_origin(plain) is tuple and meta.min_length:
            return st.lists(_field(get_args(plain)[0]), min_size=1, max_size=4).map(tuple)
        if plain is bytes and meta.min_length:
            return st.binary(min_size=meta.min_length, max_size=meta.max_length)
        if plain is bytes and meta.max_length:
            return _bytes.map(lambda data: data[: meta.max_length])
        most = meta.le or (meta.lt or 2**31 + 1) - 1
        return st.integers(meta.ge or 0, most) if plain is int else _field(plain)
    if get_origin(kind) in (Union, UnionType):
        return st.one_of(*map(_field, get_args(kind)))
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return st.dictionaries(_field(key), _field(value), max_size=4)
    if get_origin(kind) is tuple:
        of, *more = get_args(kind)
        if more != [...]:
            return st.tuples(*map(_field, (of, *more)))
        return st.lists(_field(of), max_size=4).map(tuple)
    if issubclass(kind, Struct):
        return _of(kind)
    return st.sampled_from(list(kind))  # an enumeration


_SEARCHING = (
    *("words", "algorithms", "created_before_us", "created_since_us", "used_since_us"),
    *("unused_since_us", "is_rotated", "sort", "is_descending", "offset"),
)
"""The fields of a search of keyrings, which has no position by name."""


_OF_ALL_KEYRINGS = {"keyring": st.just(DEFAULT_KEYRING)}
_OF_RULES = _OF_ALL_KEYRINGS | {"name": st.just(RULE)}
_FIELDS: dict[type[Struct], dict[str, SearchStrategy[Any]]] = {
    ScheduleDestruction: _OF_ALL_KEYRINGS,
    CancelDestruction: _OF_ALL_KEYRINGS,
    ListRules: _OF_ALL_KEYRINGS,
    PutRule: _OF_RULES | {"rules": st.tuples(_rules)},
    DeleteRule: _OF_ALL_KEYRINGS,
    OverrideRule: _OF_RULES | {"rules": st.tuples(_rules)},
    GenerateDataKey: {"format": st.sampled_from(CiphertextFormat)},
    CreateKeyring: {"purposes": st.just(DERIVED_PURPOSES)},
}
"""Fields that are not drawn by their types."""


def _of(kind: type[Struct]) -> SearchStrategy[Any]:
    fields = {field.name: _field(field.type) for field in structs.fields(kind)}
    fields |= _FIELDS.get(kind, {})
    if kind is ListUses:
        nothing = {"keyring": st.none(), "version": st.none()}
        some = {"keyring": st.just(DEFAULT_KEYRING), "version": _versions}
        return st.builds(kind, **fields | nothing) | st.builds(kind, **fields | some)
    if kind is ListInventory:
        fields["limit"] = st.integers(1, MAX_INVENTORY_LISTED)
        by_name = {"sort": st.just(InventorySort.NAME), "is_descending": st.just(value=False)}
        anywhere = {"after": st.none()}
        return st.builds(kind, **fields | by_name) | st.builds(kind, **fields | anywhere)
    if kind is ListKeyrings:
        unsearched = ListKeyrings(tenant=TenantId(UUID(int=0)))
        plain = {name: st.just(getattr(unsearched, name)) for name in _SEARCHING}
        anywhere = {"after": st.none()}
        return st.builds(kind, **fields | plain) | st.builds(kind, **fields | anywhere)
    if kind in (CountRecords, FindEvidence):
        if kind is FindEvidence:
            fields |= {"after": st.integers(0, 2**31), "size": st.integers(2**31 + 1, 2**63 - 1)}
        del fields["tenant"]
        return st.builds(
            lambda query, **rest: kind(tenant=query.tenant, query=query, **rest), **fields
        )
    if not issubclass(kind, KeyRequest) or "public_key" not in fields:
        return st.builds(kind, **fields)
    own: dict[str, SearchStrategy[Any]] = {"public_key": st.none()}
    supplied: dict[str, SearchStrategy[Any]] = {"version": st.none(), "public_key": _bytes}
    if kind is Encrypt:
        supplied |= {"format": st.just(CiphertextFormat.CIPHERTEXT), "context": st.just(b"")}
    else:
        own["version"] = _versions
    return st.builds(kind, **fields | own) | st.builds(kind, **fields | supplied)


_ids = st.integers(0, 2**64 - 1)
_attributions = st.builds(
    Attribution, request_id=_text, principal=_text, source_address=_text, policy=_text
)
_TO_KEY_SERVICE: list[SearchStrategy[AnyFrame]] = [
    *(
        st.builds(
            Call,
            id=_ids,
            timeout_ms=st.integers(0, 2**31),
            attribution=_attributions,
            request=_of(kind),
        )
        for kind in get_args(
            AnyRequest | AnyKeylessRequest | AnyAuditRequest | AnyAdministrationRequest | GetMetrics
        )
    ),
    st.builds(Ping, id=_ids),
]
_TO_GATEWAY: list[SearchStrategy[AnyFrame]] = [
    *(
        st.builds(Answer, id=_ids, result=_of(kind))
        for kind in get_args(
            AnyResult | AnyKeylessResult | AnyAuditResult | AnyAdministrationResult | Metrics
        )
    ),
    st.builds(Refusal, id=_ids, kind=st.sampled_from(ErrorKind)),
    st.builds(Pong, id=_ids),
]


@pytest.fixture(scope="session", params=["to the key service", "to the gateway"])
def direction(request: pytest.FixtureRequest) -> str:
    """Run a test for both directions."""
    return str(request.param)


@pytest.fixture(scope="session")
def kinds_of_frame(direction: str) -> list[SearchStrategy[AnyFrame]]:
    """Return a strategy for each kind of request, result and frame of a direction."""
    return _TO_KEY_SERVICE if direction == "to the key service" else _TO_GATEWAY


@pytest.fixture(scope="session")
def frames(kinds_of_frame: list[SearchStrategy[AnyFrame]]) -> SearchStrategy[AnyFrame]:
    """Return a strategy for any frame of a direction."""
    return st.one_of(kinds_of_frame)


@pytest.fixture(scope="session")
def new_decoder(direction: str) -> Callable[[], FrameDecoder[Any]]:
    """Return a factory of decoders for a direction."""
    decoder = TO_KEY_SERVICE if direction == "to the key service" else TO_GATEWAY
    return lambda: FrameDecoder(decoder)


@pytest.fixture(scope="session")
def feed() -> Callable[[FrameDecoder[Any], bytes | bytearray], list[Any]]:
    """Return a function that feeds a decoder bytes and returns the complete frames."""

    def put(decoder: FrameDecoder[Any], data: bytes | bytearray) -> list[Any]:
        frames: list[Any] = []
        while data:
            space = decoder.space()
            size = min(len(space), len(data))
            space[:size] = data[:size]
            frames += decoder.filled(size)
            data = data[size:]
        return frames

    return put


@pytest.fixture(scope="session")
def marker() -> str:
    """Return text that is part of every field of bytes or text."""
    return MARKER.decode()

"""Scopes, expiry and addresses of API keys. An API key cannot grant more than it has itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pqkeep_gateway.access.api_key_limits import (
    UNLIMITED,
    ApiKeyLimits,
    BeyondOwnLimitsError,
)
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal
from pqkeep_gateway.access.scopes import (
    GROUPS,
    NAMED_ONLY,
    ON_KEYS,
    OPERATIONS,
    Group,
    Scope,
    ScopeDeniedError,
    Scopes,
    algorithms_in_scope,
    check_call,
    check_scope,
    scopes_in,
    scopes_text,
)
from pqkeep_gateway.api.api_key_fields import ALLOWED_ADDRESSES, EXPIRES_AT, NAME, SCOPES
from pqkeep_gateway.http.field import FieldError
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keys import TenantId

KYBER, X_WING = Algorithm.ML_KEM_768, Algorithm.X_WING
CARDS, LOGS = "payments.cards", "payments.logs"


def scopes(*stated: Scope) -> Scopes:
    return Scopes(stated)


def with_limits(limits: ApiKeyLimits) -> ApiKeyPrincipal:
    return ApiKeyPrincipal(
        TenantId(uuid4()), Entitlements(Tier.FREE), 3, suspended=False, name="worker", limits=limits
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_scope_of_one_operation_allows_that_one(name: str) -> None:
    """Every operation that scopes can name is allowed by its own scope alone."""
    only = scopes(Scope(operations=(name,)))
    allowed = {operation.value for operation in OPERATIONS.values() if only.may_call(operation)}
    assert allowed == {name}
    assert {
        operation.value for operation in OPERATIONS.values() if only.allow(operation, CARDS, KYBER)
    } == allowed


@pytest.mark.parametrize("group", Group)
def test_a_group_is_its_operations(group: Group) -> None:
    """A group in a scope allows exactly the group's operations."""
    named = scopes(Scope(operations=(group.value,)))
    assert {operation for operation in OPERATIONS.values() if named.may_call(operation)} == GROUPS[
        group
    ]


def test_no_group_is_called_like_an_operation() -> None:
    """No group has the name of an operation."""
    assert not {group.value for group in Group} & OPERATIONS.keys()


def test_unknown_names_and_no_scopes_allow_nothing() -> None:
    """Unknown names allow nothing. An empty list allows nothing either."""
    for nothing in (scopes(), scopes(Scope(operations=("everything", "archive-key")))):
        assert not any(nothing.may_call(operation) for operation in (*Operation, *AuditEvent))
        assert not any(
            nothing.allow(operation, CARDS, KYBER) for operation in (*Operation, *AuditEvent)
        )


def test_star_and_a_missing_list_are_all() -> None:
    """Scopes can name all operations. A few operations are allowed only if a scope names them."""
    for stated in (Scope(), Scope(operations=("*",)), Scope(operations=("*",), keyrings=("*",))):
        allowed = {
            operation
            for operation in (*Operation, *AuditEvent)
            if scopes(stated).may_call(operation)
        }
        assert allowed == set(OPERATIONS.values()) - NAMED_ONLY
    assert {Operation.DELETE_KEYRING} == NAMED_ONLY
    assert Operation.ARCHIVE_KEY not in OPERATIONS.values()


def test_keyrings_are_named_or_begin_so() -> None:
    """A keyring pattern is a complete name, or a prefix and a star."""
    named = scopes(Scope(keyrings=(CARDS, "log*")))
    allowed = {
        name: named.allow(Operation.ENCRYPT, name, KYBER)
        for name in (CARDS, "payments.cards2", "payments.card", "log", "logs.a", "lo", "default")
    }
    assert [name for name, is_allowed in allowed.items() if is_allowed] == [CARDS, "log", "logs.a"]
    assert not named.allow(Operation.LIST_KEYS, None, KYBER)


def test_algorithms_are_named() -> None:
    """A scope with algorithms allows only these, and no operation on all algorithms."""
    named = scopes(Scope(algorithms=(KYBER,)))
    assert named.allow(Operation.ENCRYPT, CARDS, KYBER)
    assert not named.allow(Operation.ENCRYPT, CARDS, X_WING)
    assert not named.allow(Operation.LIST_KEYS, CARDS, None)


@pytest.mark.parametrize("limited", [Scope(keyrings=(CARDS,)), Scope(algorithms=tuple(Algorithm))])
def test_a_limited_scope_is_not_about_the_tenant(limited: Scope) -> None:
    """A scope with keyrings or algorithms does not allow operations on the whole tenant."""
    allowed = {
        operation for operation in OPERATIONS.values() if scopes(limited).may_call(operation)
    }
    assert allowed == (set(OPERATIONS.values()) & ON_KEYS) - NAMED_ONLY


def test_scopes_do_not_mix() -> None:
    """One scope's operation is not allowed on another scope's keyring or algorithm."""
    both = scopes(
        Scope(operations=("encrypt",), keyrings=(CARDS,), algorithms=(KYBER,)),
        Scope(operations=("decrypt",), keyrings=(LOGS,), algorithms=(X_WING,)),
    )
    allowed = {
        (operation, keyring, algorithm)
        for operation in Operation
        for keyring in (CARDS, LOGS)
        for algorithm in (KYBER, X_WING)
        if both.allow(operation, keyring, algorithm)
    }
    assert allowed == {
        (Operation.ENCRYPT, CARDS, KYBER),
        (Operation.DECRYPT, LOGS, X_WING),
    }


def test_the_checks_raise() -> None:
    """Both checks refuse operations outside the scopes; a principal without scopes passes."""
    limited = with_limits(ApiKeyLimits(scopes(Scope(operations=("encrypt",), keyrings=(CARDS,)))))
    check_call(limited.scopes, Operation.ENCRYPT)
    check_scope(limited.scopes, Operation.ENCRYPT, CARDS, KYBER)
    with pytest.raises(ScopeDeniedError):
        check_call(limited.scopes, Operation.DECRYPT)
    with pytest.raises(ScopeDeniedError) as refused:
        check_scope(limited.scopes, Operation.ENCRYPT, LOGS, KYBER)
    assert refused.value.algorithm is KYBER
    for principal in (with_limits(UNLIMITED), OperatorPrincipal()):
        check_call(principal.scopes, Operation.DECRYPT)
        check_scope(principal.scopes, Operation.DECRYPT, None, None)


def test_algorithms_outside_of_scope_are_left_out() -> None:
    """Only a keyring's algorithms within scope are returned; with none the call is refused."""
    stated = Scope(operations=("encrypt",), keyrings=(CARDS,), algorithms=(KYBER,))
    limited = with_limits(ApiKeyLimits(scopes(stated)))
    both = (X_WING, KYBER)
    assert algorithms_in_scope(limited.scopes, Operation.ENCRYPT, CARDS, both) == (KYBER,)
    assert (
        algorithms_in_scope(with_limits(UNLIMITED).scopes, Operation.ENCRYPT, CARDS, both) == both
    )
    for operation, keyring, asked in (
        (Operation.ENCRYPT, LOGS, both),
        (Operation.DECRYPT, CARDS, both),
        (Operation.ENCRYPT, CARDS, (X_WING,)),
    ):
        with pytest.raises(ScopeDeniedError):
            algorithms_in_scope(limited.scopes, operation, keyring, asked)


def test_a_principal_names_its_api_key() -> None:
    """The audit log's principal contains the API key's version, and its name if there is one."""
    assert str(with_limits(UNLIMITED)) == "api-key:3/worker"


# --- No more than it has --------------------------------------------------------------------------

_NAMES = ("default", CARDS, LOGS, "payments.a", "logs")
_PATTERNS = ("*", "p*", "payments.*", "payments.c*", *_NAMES)


def _some(values: tuple[str, ...]) -> SearchStrategy[tuple[str, ...] | None]:
    return st.none() | st.lists(st.sampled_from(values), min_size=1, max_size=3).map(tuple)


_OPERATIONS = _some(
    ("*", *Group, "encrypt", "delete-keyring", "decrypt", "list-keys", "create-api-key")
)
_ALGORITHMS = st.none() | st.lists(
    st.sampled_from([KYBER, X_WING, Algorithm.ML_DSA_65]), min_size=1, max_size=2
).map(tuple)
_SCOPES = st.lists(
    st.builds(Scope, operations=_OPERATIONS, keyrings=_some(_PATTERNS), algorithms=_ALGORITHMS),
    min_size=1,
    max_size=3,
).map(Scopes)


def _allowed(by: Scopes) -> set[tuple[GatewayOperation, str | None, Algorithm | None]]:
    questions = (
        (operation, keyring, algorithm)
        for operation in OPERATIONS.values()
        for keyring in (*_NAMES, "p", "payments.c", None)
        for algorithm in (KYBER, X_WING, Algorithm.ML_DSA_87, None)
    )
    return {question for question in questions if by.allow(*question)}


@given(_SCOPES, _SCOPES)
def test_scopes_that_are_covered_allow_nothing_more(mine: Scopes, others: Scopes) -> None:
    """Covering scopes allow every call and key that the covered ones allow."""
    if mine.cover(others):
        assert _allowed(others) <= _allowed(mine)
        assert all(
            mine.may_call(operation)
            for operation in OPERATIONS.values()
            if others.may_call(operation)
        )


@given(_SCOPES, _SCOPES)
def test_scopes_cover_themselves_and_every_part(mine: Scopes, others: Scopes) -> None:
    """Scopes cover themselves and every subset."""
    assert mine.cover(mine)
    assert Scopes((*others.stated, *mine.stated)).cover(mine)


_OF_CARDS = Scope(operations=("use",), keyrings=("payments.c*", "default"), algorithms=(KYBER,))


@pytest.mark.parametrize(
    ("other", "is_covered"),
    [
        (_OF_CARDS, True),
        (Scope(operations=("encrypt",), keyrings=(CARDS,), algorithms=(KYBER,)), True),
        (Scope(operations=("use",), keyrings=("payments.ca*",), algorithms=(KYBER,)), True),
        (Scope(operations=("use",), keyrings=("default",), algorithms=(KYBER,)), True),
        (Scope(operations=("use",), keyrings=(CARDS, LOGS), algorithms=(KYBER,)), False),
        (Scope(operations=("use",), keyrings=("default2",), algorithms=(KYBER,)), False),
        (Scope(operations=("use",), keyrings=("default*",), algorithms=(KYBER,)), False),
        (Scope(operations=("use",), keyrings=("payments.*",), algorithms=(KYBER,)), False),
        (Scope(operations=("use",), keyrings=("*",), algorithms=(KYBER,)), False),
        (Scope(operations=("use",), algorithms=(KYBER,)), False),
        (Scope(operations=("use",), keyrings=(CARDS,), algorithms=(KYBER, X_WING)), False),
        (Scope(operations=("use",), keyrings=(CARDS,)), False),
        (Scope(operations=("use", "rotate-key"), keyrings=(CARDS,), algorithms=(KYBER,)), False),
        (Scope(keyrings=(CARDS,), algorithms=(KYBER,)), False),
    ],
)
def test_one_scope_covers_what_is_within_it(other: Scope, is_covered: bool) -> None:  # noqa: FBT001 - a case
    """A scope covers another one unless that has one more operation, keyring or algorithm."""
    assert scopes(_OF_CARDS).cover(scopes(other)) is is_covered
    assert scopes(_OF_CARDS).cover(scopes(_OF_CARDS, other)) is is_covered


def test_scopes_cover_together() -> None:
    """Several scopes can cover another one together."""
    mine = scopes(
        Scope(operations=("encrypt",), keyrings=(CARDS, LOGS)),
        Scope(operations=("decrypt",), keyrings=("payments.*",)),
    )
    both = Scope(operations=("encrypt", "decrypt"), keyrings=(LOGS, CARDS))
    assert mine.cover(scopes(both))
    assert not mine.cover(scopes(Scope(operations=("encrypt",), keyrings=("payments.x",))))


@given(_SCOPES)
def test_stored_scopes_mean_the_same(stated: Scopes) -> None:
    """Scopes that were stored and read again are unchanged."""
    read = scopes_in(scopes_text(stated.stated))
    assert read.stated == stated.stated
    assert _allowed(read) == _allowed(stated)


_MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
_TIMES = st.none() | st.integers(0, 3).map(lambda days: _MOMENT + timedelta(days=days))
_ADDRESSES = (
    "10.0.0.1",
    "10.255.0.1",
    "11.0.0.1",
    "2001:db8::1",
    "2001:db8:1::1",
    "::ffff:10.0.0.9",
)
_NETWORKS = st.none() | st.lists(
    st.sampled_from(
        (
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.0.0.0/9",
            "10.128.0.0/9",
            "10.0.0.1",
            "::ffff:10.0.0.0/104",
            "::/0",
            "2001:db8::/32",
            "2001:db8::/48",
        )
    ),
    min_size=1,
    max_size=3,
).map(Networks)
_LIMITS = st.builds(ApiKeyLimits, st.none() | _SCOPES, _TIMES, _NETWORKS)


def _is_accepted(limits: ApiKeyLimits, at: datetime, address: str) -> bool:
    return (limits.expires_at is None or at < limits.expires_at) and (
        limits.addresses is None or address in limits.addresses
    )


@given(_LIMITS, _LIMITS)
def test_no_api_key_gives_more_than_it_has(own: ApiKeyLimits, asked: ApiKeyLimits) -> None:
    """A created or rotated API key is accepted only where its creator's limits allow it."""
    for given_limits in (asked, own.with_changes(asked)):
        try:
            own.check_covers(given_limits)
        except BeyondOwnLimitsError:
            continue
        for days in range(-1, 5):
            at = _MOMENT + timedelta(days=days)
            for address in _ADDRESSES:
                assert _is_accepted(own, at, address) or not _is_accepted(given_limits, at, address)
        if own.scopes is not None:
            assert given_limits.scopes is not None
            assert _allowed(given_limits.scopes) <= _allowed(own.scopes)


@given(_LIMITS, _LIMITS)
def test_a_limit_that_is_not_named_is_kept(own: ApiKeyLimits, asked: ApiKeyLimits) -> None:
    """A rotation changes the given limits, and cannot remove one."""
    changed = own.with_changes(asked)
    assert changed.scopes is (asked.scopes or own.scopes)
    assert changed.expires_at == (asked.expires_at or own.expires_at)
    assert changed.addresses is (asked.addresses or own.addresses)


@pytest.mark.parametrize(
    ("own", "asked", "field"),
    [
        (ApiKeyLimits(scopes(Scope(operations=("use",)))), UNLIMITED, "scopes"),
        (
            ApiKeyLimits(scopes(Scope(operations=("use",)))),
            ApiKeyLimits(scopes(Scope(operations=("manage-keys",)))),
            "scopes",
        ),
        (ApiKeyLimits(expires_at=_MOMENT), UNLIMITED, "expires_at"),
        (
            ApiKeyLimits(expires_at=_MOMENT),
            ApiKeyLimits(expires_at=_MOMENT + timedelta(microseconds=1)),
            "expires_at",
        ),
        (ApiKeyLimits(addresses=Networks(["10.0.0.0/8"])), UNLIMITED, "allowed_addresses"),
        (
            ApiKeyLimits(addresses=Networks(["10.0.0.0/8"])),
            ApiKeyLimits(addresses=Networks(["10.0.0.0/7"])),
            "allowed_addresses",
        ),
    ],
)
def test_each_limit_is_compared(own: ApiKeyLimits, asked: ApiKeyLimits, field: str) -> None:
    """An API key cannot create one beyond its own limits, and the refusal names the limit."""
    with pytest.raises(BeyondOwnLimitsError) as refused:
        own.check_covers(asked)
    assert refused.value.field == field
    UNLIMITED.check_covers(asked)
    own.check_covers(own)


def test_an_api_key_may_end_earlier_than_its_maker() -> None:
    """An equal or earlier expiry is within the limits."""
    own = ApiKeyLimits(expires_at=_MOMENT)
    own.check_covers(ApiKeyLimits(expires_at=_MOMENT - timedelta(microseconds=1)))
    own.check_covers(ApiKeyLimits(expires_at=_MOMENT + timedelta(0)))


# --- Networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("10.0.0.0/8", "10.1.2.3", "11.0.0.1"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.0.0.1"),
        ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.1"),
        ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.6"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ("2001:db8::/32", "2001:db8::1", "2001:db9::1"),
        ("::/0", "2001:db8::1", "10.0.0.1"),
        ("0.0.0.0/0", "10.0.0.1", ""),
        ("fe80::/10", "fe80::1%eth0", "no address"),
    ],
)
def test_an_address_is_in_a_network(network: str, inside: str, outside: str) -> None:
    """Mapped IPv4 addresses count as IPv4; an invalid address is in no network."""
    networks = Networks([network])
    assert inside in networks
    assert outside not in networks


@pytest.mark.parametrize(
    "text", ["fe80::1%eth0", "2001:db8::1%a 192.0.2.7 ::", "2001:db8::%a 192.0.2.0/32", "::1%\n"]
)
def test_a_network_has_no_zone(text: str) -> None:
    """A zone is refused, because spaces in it would split the stored text."""
    with pytest.raises(ValueError, match="zone"):
        Networks([text])
    with pytest.raises(FieldError):
        ALLOWED_ADDRESSES.read({"allowed_addresses": [text]})


@given(st.lists(st.text("0123456789abcdef:./% ", max_size=24) | st.ip_addresses().map(str)))
def test_stored_networks_are_those_that_were_given(texts: list[str]) -> None:
    """Accepted networks are equal to those read from their stored text."""
    try:
        networks = Networks(texts)
    except ValueError:
        return
    assert Networks(str(networks).split()).networks == networks.networks


def test_two_halves_cover_the_whole() -> None:
    """A network is covered by several networks that together contain it."""
    halves = Networks(["10.128.0.0/9", "10.0.0.0/9"])
    assert halves.covers(Networks(["10.0.0.0/8"]))
    assert not halves.covers(Networks(["10.0.0.0/8", "2001:db8::/32"]))


# --- Fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "Payments.worker-2_x", "9" * 64])
def test_names_that_are_taken(name: str) -> None:
    """A name may have letters, digits, dots, underscores and hyphens."""
    assert NAME.read({"name": name}) == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\n", "é", "a" * 65, 7, ["a"]])
def test_names_that_are_refused(name: object) -> None:
    """A name like another principal's, or with unprintable characters, is refused."""
    with pytest.raises(FieldError):
        NAME.read({"name": name})


def test_scopes_that_are_taken() -> None:
    """Each list may be missing or null."""
    stated = [
        {"operations": ["use", "rotate-key"], "keyrings": ["payments.*", "a"], "algorithms": None},
        {"algorithms": ["Kyber768", "X-Wing"]},
        {},
    ]
    read = SCOPES.read({"scopes": stated})
    assert read is not None
    assert read.stated == (
        Scope(operations=("use", "rotate-key"), keyrings=("payments.*", "a")),
        Scope(algorithms=(KYBER, X_WING)),
        Scope(),
    )


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        "use",
        ["use"],
        [{}] * 9,
        [{"operation": ["use"]}],
        [{"operations": "use"}],
        [{"operations": []}],
        [{"operations": ["archive-key"]}],
        [{"operations": [7]}],
        [{"operations": [["use"]]}],
        [{"operations": ["use"] * 33}],
        [{"keyrings": []}],
        [{"keyrings": ["-payments"]}],
        [{"keyrings": ["a*b"]}],
        [{"keyrings": ["a**"]}],
        [{"keyrings": ["a\n"]}],
        [{"keyrings": ["a" * 128 + "*"]}],
        [{"keyrings": ["a"] * 17}],
        [{"algorithms": ["RSA"]}],
        [{"algorithms": ["*"]}],
        [{"algorithms": [{}]}],
        [{"algorithms": ["Kyber768"] * (len(Algorithm) + 1)}],
    ],
)
def test_scopes_that_are_refused(value: object) -> None:
    """Empty and too long lists, and impossible values, are refused."""
    with pytest.raises(FieldError) as refused:
        SCOPES.read({"scopes": value})
    assert refused.value.field == "scopes"


@pytest.mark.parametrize(
    "value",
    [
        [],
        "10.0.0.0/8",
        ["10.0.0.1/8"],
        ["10.0.0.0/33"],
        ["::/129"],
        ["host.example"],
        [167772160],
        ["10.0.0.0/8"] * 33,
        ["1" * 65],
        [None],
    ],
)
def test_addresses_that_are_refused(value: object) -> None:
    """Texts that are not CIDR networks, or have bits beyond the prefix, are refused."""
    with pytest.raises(FieldError) as refused:
        ALLOWED_ADDRESSES.read({"allowed_addresses": value})
    assert refused.value.field == "allowed_addresses"


def test_expiry_is_a_time() -> None:
    """A time with its offset from UTC, to the microsecond, before the year 10000."""
    read = EXPIRES_AT.read({"expires_at": "2026-03-01T01:00:00.123456+01:00"})
    assert read == datetime(2026, 3, 1, 0, 0, 0, 123_456, tzinfo=UTC)
    for value in ("2026-03-01", "soon", 1, "9999-12-31T23:59:59-12:00"):
        with pytest.raises(FieldError):
            EXPIRES_AT.read({"expires_at": value})

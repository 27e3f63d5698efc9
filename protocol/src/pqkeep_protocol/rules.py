"""Rules: the algorithms that a tenant ends for new data and new keys, and the dates for that."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.keys import RecordedName

MAX_RULES = 50
"""The most rules of a tenant."""
MAX_RULE_KEYRINGS = 50
MAX_RULE_EXCEPTIONS = 100
RULE_KEYRING = r"\A(\*|[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}(\*|[A-Za-z0-9_.-])?)\Z"
"""The pattern of a keyring's name, or of a prefix of names with ``*`` at its end."""
ALL_KEYRINGS = "*"
MAX_API_KEY = 2**31 - 1

RuleName = RecordedName
Instant = Annotated[datetime, Meta(tz=True)]
"""A whole second, in UTC."""


class RuleUse(StrEnum):
    """The uses that a rule can end. Each makes new data or new keys."""

    ENCRYPT = "encrypt"
    ENCAPSULATE = "encapsulate"
    WRAP = "wrap"
    GENERATE_DATA_KEY = "generate-data-key"
    SIGN = "sign"
    """Every form of signing, with every hash function."""
    COMPUTE_MAC = "compute-mac"
    GENERATE_KEY = "generate-key"
    """Generate, import and rotate."""
    SIGN_SHA_256 = "sign-hash-sha-256"
    """Sign a digest of SHA-256: a part of SIGN, as the next two."""
    SIGN_SHA_384 = "sign-hash-sha-384"
    SIGN_SHA_512 = "sign-hash-sha-512"


SIGN_HASH_USES: Mapping[HashAlgorithm, RuleUse] = {
    HashAlgorithm.SHA_256: RuleUse.SIGN_SHA_256,
    HashAlgorithm.SHA_384: RuleUse.SIGN_SHA_384,
    HashAlgorithm.SHA_512: RuleUse.SIGN_SHA_512,
}
"""The use of SIGN_HASH with each hash function."""
PARTS_OF_SIGN = frozenset(SIGN_HASH_USES.values())
WHOLE_USES = tuple(use for use in RuleUse if use not in PARTS_OF_SIGN)
"""All uses, without the parts of SIGN."""


def ended_uses(uses: Iterable[RuleUse]) -> frozenset[RuleUse]:
    """Return uses with their parts: SIGN has every SIGN_HASH_USES."""
    found = frozenset(uses)
    return found | PARTS_OF_SIGN if RuleUse.SIGN in found else found


USE_OF: Mapping[Operation, RuleUse] = {
    Operation.ENCRYPT: RuleUse.ENCRYPT,
    Operation.ENCAPSULATE: RuleUse.ENCAPSULATE,
    Operation.WRAP: RuleUse.WRAP,
    Operation.GENERATE_DATA_KEY: RuleUse.GENERATE_DATA_KEY,
    Operation.SIGN: RuleUse.SIGN,
    Operation.SIGN_HASH: RuleUse.SIGN,
    Operation.SIGN_JWS: RuleUse.SIGN,
    Operation.SIGN_MU: RuleUse.SIGN,
    Operation.COMPUTE_MAC: RuleUse.COMPUTE_MAC,
    Operation.GENERATE_KEY: RuleUse.GENERATE_KEY,
    Operation.GET_IMPORT_KEY: RuleUse.GENERATE_KEY,
    Operation.IMPORT_KEY: RuleUse.GENERATE_KEY,
    Operation.ROTATE_KEY: RuleUse.GENERATE_KEY,
}
"""The use of each operation that makes new data or new keys.

A re-encryption's target counts as ENCRYPT, or as WRAP if a key is wrapped. Its source is only
read."""


class RuleException(Struct, frozen=True, array_like=True):
    """Delays the denial of a rule for one API key. The rule still warns."""

    api_key: Annotated[int, Meta(ge=1, le=MAX_API_KEY)]
    until: Instant

    def __post_init__(self) -> None:
        """Raise ValueError unless the instant is a whole second in UTC."""
        _require_whole_second("exceptions", self.until)


class Rule(Struct, frozen=True, array_like=True):
    """Ends algorithms for some uses in some keyrings. Reading goes on."""

    name: RuleName
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1, max_length=len(Algorithm))]
    """The algorithms that the rule ends."""
    keyrings: Annotated[
        tuple[Annotated[str, Meta(pattern=RULE_KEYRING)], ...],
        Meta(min_length=1, max_length=MAX_RULE_KEYRINGS),
    ] = (ALL_KEYRINGS,)
    """Names, and prefixes that end in ``*``. Only ``*`` covers public keys of other owners."""
    uses: Annotated[tuple[RuleUse, ...], Meta(min_length=1, max_length=len(RuleUse))] = WHOLE_USES
    successor: Algorithm | None = None
    """The algorithm of new keys that the schedule makes after ``deny_from``."""
    warn_from: Instant | None = None
    """The time from which operations are warned. None: never."""
    deny_from: Instant | None = None
    """The time from which operations are denied. None: never."""
    exceptions: Annotated[tuple[RuleException, ...], Meta(max_length=MAX_RULE_EXCEPTIONS)] = ()
    """The exceptions, at most one for each API key."""

    def __post_init__(self) -> None:
        """Raise ValueError, with the field's name and the reason, on a contradictory rule."""
        for name, values in (
            ("algorithms", self.algorithms),
            ("keyrings", self.keyrings),
            ("uses", self.uses),
            ("exceptions", [exception.api_key for exception in self.exceptions]),
        ):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} must not name anything twice")
        if self.warn_from is not None:
            _require_whole_second("warn_from", self.warn_from)
        if self.deny_from is not None:
            _require_whole_second("deny_from", self.deny_from)
            if self.warn_from is not None and self.warn_from > self.deny_from:
                raise ValueError("warn_from must not be after deny_from")
        if self.successor is not None:
            kinds = {ALGORITHMS[algorithm].kind for algorithm in self.algorithms}
            if kinds != {ALGORITHMS[self.successor].kind}:
                raise ValueError("successor must be of the same kind as all algorithms")
            if self.successor in self.algorithms:
                raise ValueError("successor must not be one of the algorithms")
            if Operation.GENERATE_KEY not in ALGORITHMS[self.successor].operations:
                raise ValueError("successor must not be a legacy algorithm")


class RuleNotice(Struct, frozen=True, array_like=True):
    """The rule that warns an operation's caller, or denies the operation."""

    rule: RuleName
    deprecation: Instant
    """The time from which the rule warns.

    For a rule that never warns, the time from which it denies.
    """
    sunset: Instant | None
    """From when the rule denies this caller the operation; None for never."""
    successor: Algorithm | None


def urgency(notice: RuleNotice) -> tuple[datetime, datetime, str]:
    """Return the key that sorts the earliest denial first, then the earliest warning."""
    return notice.sunset or _NEVER, notice.deprecation, notice.rule


_NEVER = datetime.max.replace(tzinfo=UTC)
_ENCODER = msgspec.json.Encoder(order="sorted")


def rules_text(rules: Iterable[Rule]) -> bytes:
    """Return rules as JSON (RFC 8785): a list of objects, without spaces, with sorted names.

    Its SHA-256 is in the audit record of each change. Instants have the form
    ``2027-01-01T00:00:00Z``.
    """
    return _ENCODER.encode([structs.asdict(rule) | _exceptions(rule) for rule in rules])


def rules_of(text: str | bytes) -> tuple[Rule, ...]:
    """Return the rules of a ``rules_text``. Raises KeyError, ValueError and msgspec.MsgspecError."""
    return tuple(
        msgspec.convert(
            _in_order(Rule, {**found, "exceptions": _in_orders(found["exceptions"])}), Rule
        )
        for found in msgspec.json.decode(text, type=list[dict[str, Any]])
    )


def _in_orders(exceptions: list[dict[str, Any]]) -> list[list[Any]]:
    return [_in_order(RuleException, exception) for exception in exceptions]


def _in_order(kind: type[Struct], values: dict[str, Any]) -> list[Any]:
    """Return the values of a Struct in the order of its fields."""
    return [values[name] for name in kind.__struct_fields__]


def _exceptions(rule: Rule) -> dict[str, object]:
    return {"exceptions": [structs.asdict(exception) for exception in rule.exceptions]}


def _require_whole_second(name: str, instant: datetime) -> None:
    if instant.utcoffset() != timedelta() or instant.microsecond:
        raise ValueError(f"{name} must be a whole second in UTC")

"""Scopes of an API key: operations, on keys of some keyrings and algorithms.

An API key without scopes has everything that the access table grants. With scopes, it has only the
operations that a scope names. Scopes are compiled at the key's look-up. A request then costs one
set look-up, and another one for operations on keys.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import msgspec
from msgspec import Struct

from pqkeep_protocol.algorithms import ALGORITHMS, ON_RULES, USES, Algorithm, Operation
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keyrings import KeyringPatterns

ALL = "*"
"""Every operation except ``NAMED_ONLY``; in a pattern, any characters at the end of a keyring's name."""


class Group(StrEnum):
    """Groups of operations that scopes can name."""

    USE = "use"
    ENCRYPT_ONLY = "encrypt-only"
    DECRYPT_ONLY = "decrypt-only"
    VERIFY_ONLY = "verify-only"
    MANAGE_KEYS = "manage-keys"
    DELETE_KEYRINGS = "delete-keyrings"
    CAMPAIGNS = "campaigns"
    INVENTORY = "inventory"
    ADMINISTER = "administer"


_PUBLIC_KEYS = frozenset({Operation.GET_KEY, Operation.GET_ACTIVE_KEY, Operation.LIST_PUBLIC_KEYS})
_LISTS = frozenset({Operation.LIST_KEYS, Operation.LIST_KEYRINGS, Operation.GET_KEYRING})
_CAMPAIGNS = frozenset({AuditEvent.LIST_CAMPAIGNS, AuditEvent.GET_CAMPAIGN})
_RULES = frozenset({Operation.LIST_RULES})
_ENCRYPT = frozenset(
    {Operation.ENCRYPT, Operation.ENCAPSULATE, Operation.WRAP, Operation.GENERATE_DATA_KEY}
)
_DECRYPT = frozenset({Operation.DECRYPT, Operation.DECAPSULATE, Operation.UNWRAP})
_SIGN = frozenset({Operation.SIGN, Operation.SIGN_HASH, Operation.SIGN_JWS, Operation.SIGN_MU})
_VERIFY = frozenset(
    {Operation.VERIFY, Operation.VERIFY_HASH, Operation.VERIFY_MU, Operation.VERIFY_MAC}
)

_INVENTORY = frozenset(
    {
        AuditEvent.LIST_INVENTORY,
        AuditEvent.LIST_USES,
        AuditEvent.GET_CBOM,
        AuditEvent.LIST_EXTERNAL_KEYS,
        AuditEvent.PREVIEW_RULES,
    }
)

GROUPS: Mapping[Group, frozenset[GatewayOperation]] = {
    Group.USE: _ENCRYPT
    | _DECRYPT
    | {Operation.RE_ENCRYPT}
    | _SIGN
    | {Operation.COMPUTE_MAC}
    | _VERIFY
    | _PUBLIC_KEYS
    | _LISTS
    | _RULES
    | {AuditEvent.HASH, AuditEvent.GENERATE_RANDOM},
    Group.ENCRYPT_ONLY: _ENCRYPT | _PUBLIC_KEYS,
    Group.DECRYPT_ONLY: _DECRYPT,
    Group.VERIFY_ONLY: _VERIFY | _PUBLIC_KEYS,
    Group.MANAGE_KEYS: _PUBLIC_KEYS
    | _LISTS
    | _CAMPAIGNS
    | _RULES
    | {
        AuditEvent.PUT_CAMPAIGN,
        AuditEvent.CLOSE_CAMPAIGN,
        Operation.CREATE_KEYRING,
        Operation.UPDATE_KEYRING,
        Operation.RESTORE_KEYRING,
        Operation.GENERATE_KEY,
        Operation.GET_IMPORT_KEY,
        Operation.IMPORT_KEY,
        Operation.ROTATE_KEY,
        Operation.RETIRE_KEY,
        Operation.DISABLE_KEY,
        Operation.ENABLE_KEY,
        Operation.CANCEL_ARCHIVE,
    },
    Group.CAMPAIGNS: _PUBLIC_KEYS
    | _CAMPAIGNS
    | {AuditEvent.ADD_CAMPAIGN_SCAN, Operation.RE_ENCRYPT},
    Group.DELETE_KEYRINGS: _LISTS | {Operation.DELETE_KEYRING},
    Group.INVENTORY: _INVENTORY,
    Group.ADMINISTER: _INVENTORY
    | frozenset(
        {
            AuditEvent.IMPORT_EXTERNAL_KEYS,
            AuditEvent.REMOVE_EXTERNAL_KEYS,
            AuditEvent.LIST_TENANTS,
            AuditEvent.GET_TENANT,
            AuditEvent.CREATE_API_KEY,
            AuditEvent.LIST_API_KEYS,
            AuditEvent.ROTATE_API_KEY,
            AuditEvent.REVOKE_API_KEY,
            AuditEvent.LIST_WORKLOADS,
            AuditEvent.GET_SUBSCRIPTION,
            AuditEvent.GET_LIMITS,
            AuditEvent.GET_USAGE,
            AuditEvent.LIST_NOTICES,
            AuditEvent.LIST_NOTICE_SETTINGS,
            AuditEvent.LIST_AUDIT_RECORDS,
            AuditEvent.COUNT_AUDIT_RECORDS,
            AuditEvent.PROVE_AUDIT_RECORD,
            AuditEvent.LIST_AUDIT_CHECKPOINTS,
            AuditEvent.GET_AUDIT_NOTE,
            AuditEvent.GET_AUDIT_TLOG_PROOF,
            AuditEvent.LIST_AUDIT_WITNESSES,
            AuditEvent.PROVE_AUDIT_CONSISTENCY,
            AuditEvent.LIST_AUDIT_KEYS,
            AuditEvent.EXPORT_AUDIT_LOG,
            AuditEvent.LIST_WEBHOOKS,
            AuditEvent.LIST_WEBHOOK_DELIVERIES,
            AuditEvent.TEST_WEBHOOK,
            AuditEvent.RESEND_WEBHOOK_DELIVERY,
            Operation.LIST_RULES,
        }
    ),
}
"""The operations of each group. An operation outside all groups cannot be in a scope."""

OPERATIONS: Mapping[str, GatewayOperation] = {
    operation.value: operation for group in GROUPS.values() for operation in sorted(group)
}
"""The operations that scopes can name, by name."""

NAMED_ONLY: frozenset[GatewayOperation] = frozenset({Operation.DELETE_KEYRING})
"""Operations that an API key has only if a scope names them. ``delete-keyrings`` names them too.

``*`` does not include them. An API key without scopes does not have them either: if it were stolen,
it could destroy keys.
"""

_EVERYTHING = frozenset(OPERATIONS.values()) - NAMED_ONLY

ON_KEYS: frozenset[GatewayOperation] = frozenset(Operation) - ON_RULES
"""Operations on the keys of a keyring and an algorithm. All others concern the whole tenant. A
scope with limits on keyrings or algorithms does not grant them."""


class ScopeDeniedError(Exception):
    """The API key's scopes do not allow this."""

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        keyring: str | None = None,
        *,
        operation: GatewayOperation | None = None,
    ) -> None:
        """Take the requested keys' algorithm, if it is known.

        ``keyring``: the keyring of a second key, if the record of the request has another keyring.
        ``operation``: the operation that a scope would have to allow.
        """
        super().__init__()
        self.operation = operation
        self.algorithm = algorithm
        self.keyring = keyring
        self.must_name = operation if operation in NAMED_ONLY else None


class Scope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One scope as it was requested. None: all, except for ``NAMED_ONLY``."""

    operations: tuple[str, ...] | None = None
    """Names of operations and groups, or ``*``."""
    keyrings: tuple[str, ...] | None = None
    """Names of keyrings, or prefixes of names followed by ``*``."""
    algorithms: tuple[Algorithm, ...] | None = None


class _Grant:
    """One scope, compiled."""

    __slots__ = ("algorithms", "beginnings", "keyrings", "operations")

    def __init__(self, scope: Scope) -> None:
        self.operations = _operations_of(scope)
        patterns = (ALL,) if scope.keyrings is None else scope.keyrings
        self.keyrings = frozenset(pattern for pattern in patterns if not pattern.endswith(ALL))
        self.beginnings = tuple(
            pattern.removesuffix(ALL) for pattern in patterns if pattern.endswith(ALL)
        )
        self.algorithms = None if scope.algorithms is None else frozenset(scope.algorithms)

    @property
    def is_of_whole_tenant(self) -> bool:
        """Whether it includes all keyrings and all algorithms."""
        return self.algorithms is None and "" in self.beginnings

    def allows(
        self, operation: GatewayOperation, keyring: str | None, algorithm: Algorithm | None
    ) -> bool:
        """Return whether it allows an operation on a keyring and an algorithm; None: on all."""
        return (
            operation in self.operations
            and (self.algorithms is None or algorithm in self.algorithms)
            and (
                "" in self.beginnings
                if keyring is None
                else keyring in self.keyrings or keyring.startswith(self.beginnings)
            )
        )

    @property
    def patterns(self) -> frozenset[str]:
        """The scope's keyring patterns, as the request stated them."""
        return self.keyrings | {beginning + ALL for beginning in self.beginnings}


class Scopes:
    """The scopes of an API key, as stated and compiled."""

    __slots__ = ("_callable", "grants", "stated")

    def __init__(self, stated: Iterable[Scope]) -> None:
        """Take scopes. An unknown name of an operation grants nothing."""
        self.stated = tuple(stated)
        self.grants = tuple(map(_Grant, self.stated))
        self._callable = frozenset(
            operation
            for grant in self.grants
            for operation in grant.operations
            if operation in ON_KEYS or grant.is_of_whole_tenant
        )

    def may_call(self, operation: GatewayOperation) -> bool:
        """Return whether any scope names the operation, on any keys."""
        return operation in self._callable

    def allow(
        self, operation: GatewayOperation, keyring: str | None, algorithm: Algorithm | None
    ) -> bool:
        """Return whether they allow an operation on a keyring and an algorithm; None: on all."""
        return any(grant.allows(operation, keyring, algorithm) for grant in self.grants)

    def allow_any(
        self, operations: frozenset[GatewayOperation], keyring: str, algorithm: Algorithm
    ) -> bool:
        """Return whether they allow at least one of some operations on the keys of a keyring."""
        return any(
            not operations.isdisjoint(grant.operations)
            and (grant.algorithms is None or algorithm in grant.algorithms)
            and (keyring in grant.keyrings or keyring.startswith(grant.beginnings))
            for grant in self.grants
        )

    def keyrings(self, operation: GatewayOperation, algorithm: Algorithm) -> KeyringPatterns | None:
        """Return the keyrings on which an operation with an algorithm is allowed; None: all."""
        names, beginnings = self._keyrings(operation, algorithm)
        return None if "" in beginnings else KeyringPatterns(tuple(names), beginnings)

    def cover(self, others: "Scopes") -> bool:
        """Return whether these scopes allow everything that the others allow."""
        asked: dict[tuple[GatewayOperation, Algorithm | None], set[str]] = {}
        for grant in others.grants:
            for operation in grant.operations:
                for algorithm in grant.algorithms or (None,):
                    asked.setdefault((operation, algorithm), set()).update(grant.patterns)
        return all(
            self._covers(operation, algorithm, patterns)
            for (operation, algorithm), patterns in asked.items()
        )

    def _covers(
        self, operation: GatewayOperation, algorithm: Algorithm | None, patterns: Iterable[str]
    ) -> bool:
        names, beginnings = self._keyrings(operation, algorithm)
        return all(pattern in names or pattern.startswith(beginnings) for pattern in patterns)

    def _keyrings(
        self, operation: GatewayOperation, algorithm: Algorithm | None
    ) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the names and name prefixes of the keyrings on which an operation is allowed."""
        mine = [
            grant
            for grant in self.grants
            if operation in grant.operations
            and (grant.algorithms is None or algorithm in grant.algorithms)
        ]
        names = frozenset(name for grant in mine for name in grant.keyrings)
        return names, tuple({text for grant in mine for text in grant.beginnings})


@dataclass(frozen=True, slots=True)
class UsableKey:
    """A key: an algorithm in a keyring."""

    keyring: str
    algorithm: Algorithm

    def is_open_to(self, scopes: Scopes | None) -> bool:
        """Return whether scopes allow at least one use of it; None: without scopes."""
        uses = ALGORITHMS[self.algorithm].operations & USES
        return scopes is None or scopes.allow_any(uses, self.keyring, self.algorithm)


def check_call(scopes: Scopes | None, operation: GatewayOperation) -> None:
    """Check that a principal's scopes name an operation. Raises ScopeDeniedError."""
    if scopes is not None and not scopes.may_call(operation):
        raise ScopeDeniedError(operation=operation)


def check_scope(
    scopes: Scopes | None,
    operation: GatewayOperation,
    keyring: str | None,
    algorithm: Algorithm | None,
) -> None:
    """Check an operation on keys once their keyring and algorithm are known; None: on all keys.

    A request with several operations or keyrings needs one check for each. Raises ScopeDeniedError.
    """
    if scopes is not None and not scopes.allow(operation, keyring, algorithm):
        raise ScopeDeniedError(algorithm, operation=operation)


def check_named(scopes: Scopes | None, operation: Operation, keyring: str | None) -> None:
    """Check that an API key's scopes name an operation on a keyring. Raises ScopeDeniedError."""
    check_scope(scopes or _NO_SCOPES, operation, keyring, None)


def keyrings_in_scope(
    scopes: Scopes | None, operation: GatewayOperation, algorithm: Algorithm
) -> KeyringPatterns | None:
    """Return the keyrings on which scopes allow an operation with an algorithm; None: all."""
    return None if scopes is None else scopes.keyrings(operation, algorithm)


def other_algorithms_in_scope(
    scopes: Scopes | None, operation: GatewayOperation, keyring: str, named: Algorithm
) -> tuple[Algorithm, ...] | None:
    """Return the other algorithms with which scopes allow an operation; None: all."""
    if scopes is None:
        return None
    others = (algorithm for algorithm in Algorithm if algorithm is not named)
    return tuple(other for other in others if scopes.allow(operation, keyring, other))


def algorithms_in_scope(
    scopes: Scopes | None,
    operation: GatewayOperation,
    keyring: str,
    algorithms: Iterable[Algorithm],
) -> tuple[Algorithm, ...]:
    """Return the algorithms with keys in a keyring that a principal's scopes allow.

    Raises ScopeDeniedError if there are none.
    """
    found = tuple(
        algorithm
        for algorithm in algorithms
        if scopes is None or scopes.allow(operation, keyring, algorithm)
    )
    if not found:
        raise ScopeDeniedError(operation=operation)
    return found


def _operations_of(scope: Scope) -> frozenset[GatewayOperation]:
    if scope.operations is None:
        return _EVERYTHING
    return frozenset(operation for name in scope.operations for operation in operations_named(name))


def operations_named(name: str) -> frozenset[GatewayOperation]:
    """Return the operations of a name in a scope; an unknown name has none."""
    if name == ALL:
        return _EVERYTHING
    if name in _GROUPS:
        return GROUPS[_GROUPS[name]]
    return frozenset({OPERATIONS[name]} if name in OPERATIONS else ())


_GROUPS: Mapping[str, Group] = {group.value: group for group in Group}
GRANTED_WITHOUT_SCOPES = Scopes((Scope(),))
"""The most that an API key without scopes can grant to another API key."""
_NO_SCOPES = Scopes(())
_DECODER = msgspec.json.Decoder(tuple[Scope, ...])


def scopes_text(stated: Sequence[Scope]) -> str:
    """Return scopes in their stored form."""
    return msgspec.json.encode(stated).decode()


@lru_cache(1024)
def scopes_in(text: str) -> Scopes:
    """Return stored scopes, compiled. API keys with equal scopes share one object."""
    return Scopes(_DECODER.decode(text))

"""The table of operations by request, with the data that each needs loaded."""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from msgspec import Struct

from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.rules import Unusable
from pqkeep_keyservice.operations import (
    kem_dem,
    keyrings,
    lifecycle,
    re_encryption,
    rules,
    signing,
    supplied_keys,
)
from pqkeep_keyservice.operations.context import Context, OperationResult, Parts
from pqkeep_protocol import messages
from pqkeep_protocol.algorithms import ALGORITHMS, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import PURPOSE_OF
from pqkeep_protocol.messages import AnyRequest, KeyRequest
from pqkeep_protocol.rules import SIGN_HASH_USES, USE_OF, RuleUse

Run = Callable[[Any, Context], OperationResult | Awaitable[OperationResult]]
RunFromMemory = Callable[[Any, Context], OperationResult]


class Loads(Enum):
    """The data that is loaded and checked before an operation runs."""

    NOTHING = auto()
    KEYRING_OR_DELETED = auto()
    """The keyring is loaded, even a deleted one."""
    KEYRING = auto()
    KEYRING_OF_ALGORITHM = auto()
    """The keyring is loaded, and the algorithm supports the operation."""
    KEY = auto()
    """As above. The keyring's purposes allow the operation, and the key's versions are loaded."""


class Row(NamedTuple):
    """How a request is executed."""

    run: Run
    from_memory: RunFromMemory | None = None
    """A variant without waiting and without changes, or None. After it refuses a request, ``run``
    decides, and can give more detail."""
    loads: Loads = Loads.KEY
    changes_key: bool = False
    """Whether requests for one key run one after another."""
    use: RuleUse | None = None
    """The use that rules are asked about before the operation runs; None if the operation asks the
    rules itself, or makes no new data."""


def _plain(run: RunFromMemory) -> Row:
    return Row(run, from_memory=run)


def _changing(run: Run, loads: Loads = Loads.KEY) -> Row:
    return Row(run, loads=loads, changes_key=True)


_OPERATIONS: Mapping[type[KeyRequest[Any]], Row] = {
    messages.Encrypt: _plain(kem_dem.encrypt),
    messages.Decrypt: Row(kem_dem.decrypt_or_unwrap, from_memory=kem_dem.decrypt),
    messages.Encapsulate: _plain(kem_dem.encapsulate),
    messages.Decapsulate: _plain(kem_dem.decapsulate),
    messages.Wrap: _plain(kem_dem.wrap),
    messages.Unwrap: Row(kem_dem.decrypt_or_unwrap, from_memory=kem_dem.unwrap),
    messages.ReEncrypt: Row(re_encryption.re_encrypt, loads=Loads.KEYRING_OF_ALGORITHM),
    messages.GenerateDataKey: _plain(kem_dem.generate_data_key),
    messages.Sign: Row(signing.sign),
    messages.SignHash: Row(signing.sign),
    messages.SignMu: Row(signing.sign),
    messages.SignJws: Row(signing.sign_jws),
    messages.Verify: Row(signing.verify),
    messages.VerifyHash: Row(signing.verify),
    messages.VerifyMu: Row(signing.verify),
    messages.ComputeMac: _plain(kem_dem.compute_mac),
    messages.VerifyMac: _plain(kem_dem.verify_mac),
    messages.GenerateKey: _changing(lifecycle.generate, Loads.KEYRING_OF_ALGORITHM),
    messages.GetImportKey: Row(lifecycle.issue_import_key),
    messages.ImportPrivateKey: _changing(lifecycle.import_key, Loads.KEYRING_OF_ALGORITHM),
    messages.RotateKey: _changing(lifecycle.rotate, Loads.KEYRING_OF_ALGORITHM),
    messages.RetireKey: _changing(lifecycle.retire),
    messages.DisableKey: _changing(lifecycle.disable),
    messages.EnableKey: _changing(lifecycle.enable),
    messages.ScheduleArchive: _changing(lifecycle.schedule_archive),
    messages.CancelArchive: _changing(lifecycle.cancel_archive),
    messages.GetKey: _plain(lifecycle.get),
    messages.GetActiveKey: _plain(lifecycle.get_active),
    messages.ListKeys: Row(lifecycle.list_, loads=Loads.KEYRING),
    messages.ListPublicKeys: Row(lifecycle.list_public, loads=Loads.KEYRING),
    messages.CreateKeyring: Row(keyrings.create, loads=Loads.NOTHING),
    messages.UpdateKeyring: Row(keyrings.update, loads=Loads.KEYRING),
    messages.DeleteKeyring: Row(keyrings.delete, loads=Loads.KEYRING),
    messages.RestoreKeyring: Row(keyrings.restore, loads=Loads.KEYRING_OR_DELETED),
    messages.GetKeyring: Row(keyrings.get, loads=Loads.KEYRING),
    messages.ListKeyrings: Row(keyrings.list_, loads=Loads.NOTHING),
    messages.ScheduleDestruction: Row(keyrings.schedule_destruction, loads=Loads.KEYRING),
    messages.CancelDestruction: Row(keyrings.cancel_destruction, loads=Loads.KEYRING),
    messages.ListRules: Row(rules.list_, loads=Loads.NOTHING),
    messages.PutRule: Row(rules.put, loads=Loads.NOTHING),
    messages.DeleteRule: Row(rules.delete, loads=Loads.NOTHING),
    messages.OverrideRule: Row(rules.override, loads=Loads.NOTHING),
}
_RETURN_EXISTING = frozenset({Operation.GENERATE_KEY, Operation.IMPORT_KEY, Operation.ROTATE_KEY})
"""Operations that can return an existing key, which no rule denies. They ask the rules later."""
OPERATIONS: Mapping[type[Struct], Row] = {
    request: row._replace(
        use=None if request.operation in _RETURN_EXISTING else USE_OF.get(request.operation)
    )
    for request, row in _OPERATIONS.items()
}
WITH_SUPPLIED_KEY: Mapping[type[Struct], Row] = {
    request: Row(run, loads=Loads.KEYRING_OF_ALGORITHM)
    for request, run in (
        (messages.Encrypt, supplied_keys.encrypt),
        (messages.Encapsulate, supplied_keys.encapsulate),
        (messages.Verify, supplied_keys.verify),
        (messages.VerifyHash, supplied_keys.verify),
        (messages.VerifyMu, supplied_keys.verify),
    )
}
"""The rows for requests with a supplied key."""


def row_of(request: AnyRequest) -> Row:
    """Return the table row for a request."""
    if getattr(request, "public_key", None) is None:
        return OPERATIONS[type(request)]
    return WITH_SUPPLIED_KEY[type(request)]


def context_in_memory(
    request: AnyRequest, row: Row, parts: Parts, deadline: float, principal: str
) -> Context | None:
    """9. Return an operation's context, or None if data must be loaded first.

    Raises KEYRING_NOT_FOUND, UNSUPPORTED, PURPOSE_DENIED and RULE_DENIED.
    """
    context = Context(parts, deadline, principal)
    if row.loads is Loads.NOTHING:
        return context
    keyring = parts.keyrings.known(KeyringId(request.tenant, request.keyring))
    if keyring is None:
        return None
    context.keyring = keyring
    algorithm = request.algorithm
    if row.loads is not Loads.KEYRING_OR_DELETED:
        keyring.require_exists()
    if row.loads is Loads.KEYRING or algorithm is None:
        return context
    if request.operation not in ALGORITHMS[algorithm].operations:
        raise KeyServiceError(ErrorKind.UNSUPPORTED)
    if row.loads is Loads.KEYRING_OF_ALGORITHM:
        return context
    keyring.require(PURPOSE_OF.get(request.operation))
    versions = parts.keys.known(KeyName(request.tenant, algorithm, request.keyring))
    rules_found = None if row.use is None else parts.rules.known(request.tenant.int)
    if versions is None or rules_found is Unusable.NOT_LOADED:
        return None
    context.versions = versions
    if row.use is not None and rules_found is not None:
        use = row.use
        if isinstance(request, messages.SignHash):
            use = SIGN_HASH_USES[request.hash_algorithm]
        context.assess(rules_found, use, algorithm, request.keyring)
    return context


async def loaded_context(
    request: AnyRequest, row: Row, parts: Parts, deadline: float, principal: str
) -> Context:
    """9. Load an operation's data, and return its context.

    Raises the errors of ``context_in_memory``, KEYRING_NOT_FOUND, DamagedKeyError and
    DatabaseUnavailableError.
    """
    while (context := context_in_memory(request, row, parts, deadline, principal)) is None:
        if row.use and parts.rules.known(request.tenant.int) is Unusable.NOT_LOADED:
            await parts.rules.get(request.tenant)
        keyring = KeyringId(request.tenant, request.keyring)
        if parts.keyrings.known(keyring) is None:
            await parts.keyrings.get(keyring)
        elif request.algorithm is not None:
            await parts.keys.get(KeyName(request.tenant, request.algorithm, request.keyring))
    return context


async def respond(
    request: AnyRequest, parts: Parts, deadline: float, principal: str
) -> OperationResult:
    """Execute a request. Raises the errors of the operation and of ``loaded_context``."""
    row = row_of(request)
    context = await loaded_context(request, row, parts, deadline, principal)
    result = row.run(request, context)
    return context.noted(result if isinstance(result, OperationResult) else await result)

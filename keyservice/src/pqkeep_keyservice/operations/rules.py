"""list, put, delete and override rules."""

from collections.abc import Iterator
from contextlib import contextmanager

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import RulesChange
from pqkeep_keyservice.keys.rules import RuleSet
from pqkeep_keyservice.operations.context import Context, OperationResult, RecordedError
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import DeleteRule, ListRules, OverrideRule, PutRule, Rules
from pqkeep_protocol.rules import RuleName


async def list_(request: ListRules, context: Context) -> OperationResult:
    """Return a tenant's rules. Raises DamagedKeyError."""
    rules = await context.parts.rules.get(request.tenant)
    return OperationResult(_found(rules), None)


async def put(request: PutRule, context: Context) -> OperationResult:
    """Add rules, or make them stricter. Raises RULE_WEAKENED and RULE_LIMIT_REACHED."""
    with _refusals_named(request.name):
        old = await context.parts.rules.get(request.tenant)
        new = old.with_rules(request.rules)
        _require_no_weaker(new, old)
    return _changed(old, new, request.name)


async def delete(request: DeleteRule, context: Context) -> OperationResult:
    """Delete a rule without effect. Raises RULE_WEAKENED and RULE_NOT_FOUND."""
    with _refusals_named(request.name):
        old = await context.parts.rules.get(request.tenant)
        new = old.without_rule(request.name)
        _require_no_weaker(new, old)
    return _changed(old, new, request.name)


async def override(request: OverrideRule, context: Context) -> OperationResult:
    """Put rules or delete one, even if that weakens them. Raises also UNAVAILABLE."""
    with _refusals_named(request.name):
        old, is_damaged = await context.parts.rules.get_or_discard(request.tenant)
        if is_damaged and not request.discards_damaged:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        if request.name is None or request.rules:
            new = old.with_rules(request.rules)
        elif is_damaged:
            new = old.with_new_mac()
        else:
            new = old.without_rule(request.name)
    return _changed(old, new, request.name, replaces_damaged=is_damaged)


def _require_no_weaker(new: RuleSet, old: RuleSet) -> None:
    if new.is_weaker_than(old, clock.now()):
        raise KeyServiceError(ErrorKind.RULE_WEAKENED)


@contextmanager
def _refusals_named(name: RuleName | None) -> Iterator[None]:
    """Put the rule's name into the records of refusals."""
    try:
        yield
    except KeyServiceError as error:
        raise RecordedError(error.kind, rule=name) from None


def _changed(
    old: RuleSet, new: RuleSet, name: RuleName | None, *, replaces_damaged: bool = False
) -> OperationResult:
    change = None if new is old else RulesChange(new, replaces_damaged)
    return OperationResult(_found(new), None, change, rule=name)


def _found(rules: RuleSet) -> Rules:
    return Rules(rules=rules.rules, revision=rules.revision, sha256=rules.sha256)

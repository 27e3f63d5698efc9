"""Rules with dates: the algorithms that the tenant ends for new data and new keys.

Only signed-in people change rules, in the portal or with their session.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import (
    AlgorithmRule,
    AlgorithmRules,
    PreviewedUse,
    ProfileRule,
    RuleException,
    RulePreview,
    RuleProfile,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rules(Generic[T_co]):
    """The tenant's rules, and the profiles of the service."""

    _transport: T_co

    @Operation
    def list(self) -> Call[AlgorithmRules]:
        """Return all rules by name."""
        return get("/rules/algorithms", _rules)

    @Operation
    def get(self, name: str) -> Call[AlgorithmRule]:
        """Return a rule. Raises NotFoundError."""
        return get(f"/rules/algorithms/{in_path(name)}", _rule)

    @Operation
    def profiles(self) -> Call[tuple[RuleProfile, ...]]:
        """Return the sets of rules that can be put by name."""
        return get("/rules/profiles", _profiles)

    @Operation
    def preview(
        self,
        *,
        name: str | None = None,
        profile: str | None = None,
        algorithms: Sequence[str] | None = None,
        keyrings: Sequence[str] | None = None,
        uses: Sequence[str] | None = None,
    ) -> Call[RulePreview]:
        """Return what a rule would have refused in the last 30 days, most uses first.

        Give ``name`` for an existing rule, ``profile`` for its rules, or ``algorithms`` for a new
        rule. ``keyrings`` and ``uses`` limit a profile or a new rule; left out, they are all.
        """
        query = {
            "name": name,
            "profile": profile,
            "algorithms": _joined(algorithms),
            "keyrings": _joined(keyrings),
            "uses": _joined(uses),
        }
        return get("/rules/preview", _preview, query)


def _joined(values: Sequence[str] | None) -> str | None:
    return None if values is None else ",".join(values)


def _preview(data: Data) -> RulePreview:
    return RulePreview(
        since=data.time("since"),
        refused=tuple(
            PreviewedUse(
                rule=use.text("rule"),
                principal=use.text("principal"),
                keyring=use.text_or_none("keyring"),
                algorithm=use.text("algorithm"),
                operation=use.text("operation"),
                uses=use.integer("uses"),
                first_used_at=use.time("first_used_at"),
                last_used_at=use.time("last_used_at"),
            )
            for use in data.objects("refused")
        ),
        incomplete=data.flag("incomplete"),
    )


def _rules(data: Data) -> AlgorithmRules:
    return AlgorithmRules(
        rules=tuple(map(_rule, data.objects("rules"))),
        revision=data.integer("revision"),
        sha256=data.text("sha256"),
    )


def _rule(data: Data) -> AlgorithmRule:
    return AlgorithmRule(
        name=data.text("name"),
        algorithms=data.texts_or_none("algorithms") or (),
        keyrings=data.texts_or_none("keyrings") or (),
        uses=data.texts_or_none("uses") or (),
        successor=data.text_or_none("successor"),
        warn_from=data.time_or_none("warn_from"),
        deny_from=data.time_or_none("deny_from"),
        exceptions=tuple(
            RuleException(api_key=exception.integer("api_key"), until=exception.time("until"))
            for exception in data.objects("exceptions")
        ),
    )


def _profiles(data: Data) -> tuple[RuleProfile, ...]:
    return tuple(
        RuleProfile(
            name=profile.text("name"),
            description=profile.text("description"),
            rules=tuple(
                ProfileRule(
                    name=rule.text("name"),
                    algorithms=rule.texts_or_none("algorithms") or (),
                    uses=rule.texts_or_none("uses") or (),
                    successor=rule.text_or_none("successor"),
                )
                for rule in profile.objects("rules")
            ),
        )
        for profile in data.objects("profiles")
    )

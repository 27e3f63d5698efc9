"""The policy table, evaluated from Cedar policies at start.

Every tier includes the symmetric and the legacy algorithms. The policies are in ``policies/*.cedar``, readable for people. The number of questions is finite, so
each is evaluated once before the first request. A request costs only a look-up, and a wrong or
incomplete policy prevents the start.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import cedarpy

from pqkeep_gateway.access.entitlements import Subscription, Tier
from pqkeep_gateway.access.policy import Allowed, Decision, Denied, Policy, Question, questions
from pqkeep_gateway.tenancy.plans import Plans
from pqkeep_protocol.algorithms import KEY_PAIRS, Algorithm
from pqkeep_protocol.startup.settings import ConfigError, read_text

MAX_NAME = 128
"""The longest policy name in an audit record, in characters."""


def build(grants: Plans, directory: Path | None = None) -> Policy:
    """Evaluate every question. An operator's own policies in a directory supplement ours.

    Raises ConfigError if a policy is invalid, has no unique name or fails on a question, or if no
    policy decides a question.
    """
    ours = files(__package__).joinpath("policies")
    schema = ours.joinpath("pqkeep.cedarschema").read_text()
    text = "\n".join([ours.joinpath("operations.cedar").read_text(), *_own(directory)])
    names = _names(text, schema)
    asked = questions()
    responses = cedarpy.is_authorized_batch(
        [_request(question) for question in asked], text, _entities(grants), schema
    )
    return Policy(
        {
            question: _decision(question, response, names)
            for question, response in zip(asked, responses, strict=True)
        }
    )


def _own(directory: Path | None) -> list[str]:
    if directory is None:
        return []
    found = {path: read_text(path, "policy") for path in sorted(directory.glob("*.cedar"))}
    if not found:
        raise ConfigError(f"policy_directory: {directory} has no policies (*.cedar)")
    for path, text in found.items():
        if not _policies(text, str(path)):
            raise ConfigError(f"policy_directory: {path} has no policy")
    return list(found.values())


def _policies(text: str, where: str) -> Mapping[str, Any]:
    """Return the policies by Cedar's identifiers."""
    try:
        read: Mapping[str, Mapping[str, Any]] = json.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        raise ConfigError(f"{where} cannot be read: {error}") from None
    if read["templates"]:
        raise ConfigError(f"{where}: policy templates are not supported; write each policy in full")
    return read["staticPolicies"]


def _names(text: str, schema: str) -> Mapping[str, str]:
    """Return the policies' names by Cedar's identifiers, after validation."""
    policies = _policies(text, "the policies")
    validation = cedarpy.validate_policies(text, schema)
    if not validation.validation_passed:
        problems = "; ".join(error.error for error in validation.errors)
        raise ConfigError(f"the policies are not valid: {problems}")
    names = {key: policy.get("annotations", {}).get("id") for key, policy in policies.items()}
    if not all(names.values()) or len(set(names.values())) < len(names):
        raise ConfigError('every policy needs a unique name: add @id("…")')
    if not all(map(str.isprintable, names.values())):
        raise ConfigError("a policy's name has an unprintable character")
    return names


def _decision(
    question: Question, response: cedarpy.AuthzResult, names: Mapping[str, str]
) -> Decision:
    asked = ", ".join(part for part in question if part is not None)
    if response.diagnostics.errors:
        raise ConfigError(f"a policy fails on {asked}")
    policy = " and ".join(sorted(names[key] for key in response.diagnostics.reasons))
    if not policy:
        raise ConfigError(f"no policy decides {asked}")
    if len(policy) > MAX_NAME:
        raise ConfigError(f"the names of the policies about {asked} are too long")
    return Allowed(policy) if response.decision is cedarpy.Decision.Allow else Denied(policy)


def _request(question: Question) -> dict[str, Any]:
    resource = ("Catalogue", "all") if question.algorithm is None else _id(question.algorithm)
    return {
        "principal": _uid(_tenant(question.tier, question.subscription)),
        "action": _uid(("Action", question.operation)),
        "resource": _uid(resource),
    }


def _entities(grants: Plans) -> list[dict[str, Any]]:
    tiers = [
        _entity(
            ("Tier", tier),
            algorithms=[
                _reference(_id(algorithm))
                for algorithm in Algorithm
                if algorithm in grants[tier].algorithms or algorithm not in KEY_PAIRS
            ],
            key_wrap=grants[tier].key_wrap,
        )
        for tier in Tier
    ]
    tenants = [
        _entity(
            _tenant(tier, subscription),
            tier=_reference(("Tier", tier)),
            subscription=subscription,
        )
        for tier, subscription in product(Tier, Subscription)
    ]
    resources = [_entity(_id(algorithm)) for algorithm in Algorithm]
    return [*tiers, *tenants, *resources, _entity(("Catalogue", "all"))]


_Id = tuple[str, str]
"""An entity's type and name."""


def _id(algorithm: Algorithm) -> _Id:
    return "Algorithm", algorithm


def _tenant(tier: Tier, subscription: Subscription) -> _Id:
    return "Tenant", f"{tier}, {subscription}"


def _uid(entity: _Id) -> dict[str, str]:
    return {"type": entity[0], "id": entity[1]}


def _reference(entity: _Id) -> dict[str, Any]:
    return {"__entity": _uid(entity)}


def _entity(entity: _Id, **attributes: object) -> dict[str, Any]:
    return {"uid": _uid(entity), "attrs": attributes, "parents": []}

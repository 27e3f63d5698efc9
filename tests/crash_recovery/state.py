"""The tenants of a run, and the results of their operations."""

import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.crash_recovery.client import Caller, Client

KEMS = ("Kyber768", "X-Wing", "ML-KEM-1024")
WRAPPING = KEMS[:2]
SIGNATURES = ("Dilithium3", "Composite-ML-DSA", "ML-DSA-87")
SLH_DSA = "SLH-DSA-SHA2-128f"
OPERATOR_TENANT = str(uuid.UUID(int=0))
"""The tenant in records of the operator's refusals."""
BUSY_TENANTS = 6
RATE = 1_000_000
REMEMBERED = 200


@dataclass(frozen=True, slots=True)
class Made:
    """An operation's result, and the request that reverses or checks it."""

    caller: Caller
    body: dict[str, Any]
    expected: dict[str, Any]


@dataclass
class State:
    """All tenants and results. Threads share it: several may append to a deque at once."""

    operator: Caller
    busy: list[Caller] = field(default_factory=list)
    idle: list[Caller] = field(default_factory=list)
    """Tenants that are sometimes suspended, one for each thread."""
    free: Caller | None = None
    """A tenant of the free plan, with many refusals."""
    made: dict[str, deque[Made]] = field(default_factory=dict)
    """Possible next inputs, by operation."""
    api_keys: deque[Caller] = field(default_factory=deque)
    """API keys to rotate and revoke. One client uses each at a time."""
    keys: deque[tuple[Caller, str, int]] = field(default_factory=deque)
    """Key versions: tenant, algorithm, version."""

    def remember(self, operation: str, made: Made) -> None:
        """Store an input for another operation."""
        self.made.setdefault(operation, deque(maxlen=REMEMBERED)).append(made)

    @property
    def plan_bound(self) -> Caller:
        """The tenant of the free plan."""
        assert self.free is not None
        return self.free


def create_state(client: Client, operator_key: str, threads: int) -> State:
    """Make the tenants and their first keys."""
    state = State(Caller(OPERATOR_TENANT, "operator", operator_key))
    state.busy = [_tenant(client, state, "enterprise_plus") for _ in range(BUSY_TENANTS)]
    state.idle = [_tenant(client, state, "enterprise_plus") for _ in range(threads)]
    state.free = _tenant(client, state, "free")
    for caller in state.busy:
        for algorithm in (*KEMS, *SIGNATURES):
            _generate(client, state, caller, algorithm)
    _generate(client, state, state.busy[0], SLH_DSA)
    for algorithm in ("Kyber768", "Dilithium3"):
        _generate(client, state, state.free, algorithm)
    return state


def new_tenant(client: Client, state: State, plan: str) -> str:
    """Make a tenant; return its id."""
    body = {"name": f"tenant {uuid.uuid4()}", "plan": plan}
    made = client.ask(state.operator, "POST", "/tenants", body, idempotency=str(uuid.uuid4()))
    assert made is not None
    assert made.is_success, made
    tenant_id: str = made.data["id"]
    client.promised(made, Caller(tenant_id, "operator", ""), "create-tenant")
    return tenant_id


def new_api_key(client: Client, state: State, tenant_id: str) -> Caller:
    """Make another API key of a tenant."""
    path = f"/tenants/{tenant_id}/api-keys"
    made = client.ask(state.operator, "POST", path, {}, idempotency=str(uuid.uuid4()))
    assert made is not None
    assert made.is_success, made
    version = made.data["version"]
    client.promised(made, Caller(tenant_id, "operator", ""), "create-api-key", key_version=version)
    return Caller(tenant_id, f"api-key:{version}", made.data["api_key"])


def change_tenant(client: Client, state: State, tenant_id: str, change: dict[str, Any]) -> bool:
    """Change a tenant as the operator; return True if there was a response."""
    changed = client.ask(state.operator, "PATCH", f"/tenants/{tenant_id}", change)
    if changed is None:
        return False
    assert changed.is_success, changed
    ((name, value),) = change.items()
    operation = {
        ("status", "suspended"): "suspend-tenant",
        ("status", "active"): "resume-tenant",
    }.get((name, value), "set-rate-limit")
    client.promised(changed, Caller(tenant_id, "operator", ""), operation)
    return True


def _tenant(client: Client, state: State, plan: str) -> Caller:
    tenant_id = new_tenant(client, state, plan)
    assert change_tenant(client, state, tenant_id, {"requests_per_minute": RATE})
    return new_api_key(client, state, tenant_id)


def _generate(client: Client, state: State, caller: Caller, algorithm: str) -> None:
    body = {"algorithm": algorithm}
    made = client.ask(caller, "POST", "/kms/keys/generate", body, idempotency=str(uuid.uuid4()))
    assert made is not None
    assert made.is_success, made
    client.promised(made, caller, "generate-key", key_version=made.data["key_version"])
    if caller in state.busy:
        state.keys.append((caller, algorithm, made.data["key_version"]))

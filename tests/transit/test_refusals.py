"""The paths of Vault that pqkeep refuses with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from tests.transit.methods import METHODS

from pqkeep_gateway.transit.routes import REFUSALS

FILLED = {"type": "encryption-key", "target": "other", "version": "1", "path": "transit/tune"}


@pytest.mark.parametrize(("method", "path"), REFUSALS, ids=str)
def test_a_path_is_refused_with_its_reason(
    pqkeep: Any, send: Any, name: str, method: str, path: str
) -> None:
    """A token gets the reason, whether or not the key exists; without one there is no reason."""
    pqkeep.client().secrets.transit.create_key(name)
    for key in (name, f"{name}-unknown"):
        filled = path.replace(":path", "").format(name=key, **FILLED)
        response = send(method, filled, {} if method == "POST" else None)
        assert response.status_code == 400, response.text
        assert response.json() == {"errors": [REFUSALS[method, path]]}
        for token in ("", "unknown"):
            denied = send(method, filled, token=token)
            assert denied.status_code == 403
            assert denied.json() == {"errors": ["permission denied"]}
    latest = pqkeep.client().secrets.transit.read_key(name)["data"]["latest_version"]
    assert latest == 1


def test_the_table_of_methods_has_the_reasons() -> None:
    """The table of client methods gives each refused method the reason that the API gives."""
    for method in METHODS.values():
        if method.refusal:
            verb, _, path = method.request.partition(" ")
            assert REFUSALS[verb, f"transit/{path}"] == method.refusal


def test_a_path_that_does_not_exist(pqkeep: Any, send: Any) -> None:
    """Another engine's path is 404 for a token."""
    for path in ("secret/data/x", "kv/x", "transit/unknown", "sys/unknown"):
        assert send("GET", path).status_code == 404

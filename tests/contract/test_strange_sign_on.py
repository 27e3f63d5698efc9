"""Single sign-on with a provider that sends strange claims, and with callbacks at once.

An installation of its own, because attempts from one address are limited.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from tests.contract.test_single_sign_on import SsoInstallation, begun, refusal, settled, sso
from tests.patience import PATIENCE

from pqkeep_gateway.http.cookies import ACCESS

__all__ = ["sso"]

STRANGE_CLAIMS: dict[str, dict[str, object]] = {
    "the end as text": {"exp": "9999999999"},
    "the end is true": {"exp": True},
    "the end is endless": {"exp": 1e400},
    "begun tomorrow": {"iat": 9_999_999_999},
    "an issuer in a list": {"iss": ["x"]},
    "no audience": {"aud": []},
    "another audience too": {"aud": ["pqkeep", "another"]},
    "for another party": {"azp": "another"},
    "a nonce in a list": {"nonce": ["x"]},
    "a number as subject": {"sub": 7},
    "an empty subject": {"sub": ""},
    "a subject with a zero byte": {"sub": "ada\x00"},
    "verified as text": {"email_verified": "true"},
    "verified is one": {"email_verified": 1},
    "an address in a list": {"email": ["ada@example.com"]},
    "a longer domain": {"email": "ada@example.com.example.net"},
    "two domains": {"email": "ada@example.net@example.com"},
    "another domain after a line": {"email": "ada@example.net\n@example.com"},
    "letters that look alike": {"email": "ada@ex\u0430mple.com"},
    "a name for display": {"email": "Ada <ada@example.net>, x@example.com"},
    "groups as an object": {"groups": {"keys": True}},
    "groups within groups": {"groups": [["keys"]]},
}


@pytest.mark.threat("hostile-identity-provider")
@pytest.mark.parametrize("claims", STRANGE_CLAIMS.values(), ids=STRANGE_CLAIMS.keys())
def test_a_strange_claim_signs_nobody_in(sso: SsoInstallation, claims: dict[str, object]) -> None:
    """A claim of another type, or for another person or client, begins no session."""
    own = {"sub": f"strange {claims}"[:60], "email": "strange@example.com", **claims}
    reason = refusal(settled(sso, sso.browser(), **own))
    assert reason in {"provider", "email", "no-role"}
    assert "Traceback" not in sso.installation.output


@pytest.mark.threat("forged-callback")
def test_callbacks_at_once_sign_in_once(sso: SsoInstallation) -> None:
    """Of twenty callbacks with one state and its cookies, sent at once, one begins a session."""
    client = sso.browser()
    sso.settable.claims = {
        "sub": "at-once",
        "email": "at-once@example.com",
        "email_verified": True,
        "groups": ["keys"],
    }
    url = sso.settable.sign_in(begun(client, "settable"))
    cookies = dict(client.cookies)

    def call(_: int) -> bool:
        with httpx2.Client(
            base_url=sso.installation.base_url, cookies=cookies, trust_env=False, timeout=PATIENCE
        ) as other:
            return ACCESS in other.get(url).cookies

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(call, range(20))) == 1

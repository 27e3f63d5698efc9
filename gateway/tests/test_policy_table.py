"""The policy table: every decision, and every reason to refuse a start."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import cedarpy
import pytest

from pqkeep_gateway.access.entitlements import Entitlements, Subscription, Tier
from pqkeep_gateway.access.policy import Allowed, Decision, Denied, Policy, questions
from pqkeep_gateway.tenancy import cedar, plans
from pqkeep_protocol.algorithms import ALGORITHMS, LEGACY, Algorithm, Operation
from pqkeep_protocol.startup.settings import ConfigError

MAY_WRITE = {
    # with           free    starter  growth  profess. enterpr. ent. plus  after the subscription
    "Kyber768": ("use", "wrap", "wrap", "wrap", "wrap", "wrap", "use"),
    "X-Wing": ("", "wrap", "wrap", "wrap", "wrap", "wrap", ""),
    "ML-KEM-1024": ("", "", "", "", "use", "use", ""),
    "Dilithium3": ("ml-dsa",) * 7,
    "Composite-ML-DSA": ("", "sign", "sign", "sign", "sign", "sign", ""),
    "ML-DSA-87": ("", "", "", "", "ml-dsa", "ml-dsa", ""),
    "SLH-DSA-SHA2-128s": ("", "sign", "sign", "sign", "sign", "sign", ""),
    "SLH-DSA-SHA2-128f": ("", "sign", "sign", "sign", "sign", "sign", ""),
    "SLH-DSA-SHA2-192s": ("", "sign", "sign", "sign", "sign", "sign", ""),
    "SLH-DSA-SHA2-256s": ("", "sign", "sign", "sign", "sign", "sign", ""),
    "XAES-256-GCM": ("cipher", *["wrapping cipher"] * 5, "cipher"),
    "HMAC-SHA-256": ("mac",) * 7,
    "HMAC-SHA-512": ("mac",) * 7,
    **dict.fromkeys((name.value for name in LEGACY if "OAEP" in name), ("decrypting",) * 7),
    **dict.fromkeys((name.value for name in LEGACY if "OAEP" not in name), ("verifying",) * 7),
}
"""The specification's column "Plans (write side)". ``WRITING`` explains its words."""
COLUMNS = ("free", "starter", "growth", "professional", "enterprise", "enterprise_plus")
NEW = ("get-import-key", "import-key")
WRITING: Mapping[str, set[str]] = {
    "": set(),
    "use": {*NEW, "generate-key", "encrypt", "encapsulate", "generate-data-key"},
    "wrap": {*NEW, "generate-key", "encrypt", "encapsulate", "generate-data-key", "wrap"},
    "cipher": {"generate-key", "encrypt", "generate-data-key"},
    "wrapping cipher": {"generate-key", "encrypt", "generate-data-key", "wrap"},
    "mac": {"generate-key", "compute-mac"},
    "decrypting": set(NEW),
    "verifying": set(NEW),
    "sign": {*NEW, "generate-key", "sign", "sign-hash"},
    "ml-dsa": {*NEW, "generate-key", "sign", "sign-hash", "sign-jws", "sign-mu"},
}
READING = {
    "use": {"decrypt", "decapsulate", "re-encrypt"},
    "wrap": {"decrypt", "decapsulate", "re-encrypt", "unwrap"},
    "wrapping cipher": {"decrypt", "re-encrypt", "unwrap"},
    "mac": {"verify-mac"},
    "decrypting": {"re-encrypt"},
    "verifying": {"verify", "verify-hash"},
    "sign": {"verify", "verify-hash"},
    "ml-dsa": {"verify", "verify-hash", "verify-mu"},
}
"""Allowed without a plan's write side: the best that any plan has of the algorithm."""
UPKEEP = {
    *("rotate-key", "retire-key", "disable-key", "enable-key"),
    *("schedule-archive", "cancel-archive", "archive-key"),
}
LOOKING_UP = {"list-keys", "list-public-keys", "get-key", "get-active-key"}


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The table with the plans on sale."""
    return cedar.build(plans.read())


def _allowed_by(tier: str, subscription: str, algorithm: str | None) -> dict[str, str]:
    """Return the operations that the tables above allow, and the deciding policies."""
    if algorithm is None:
        return {
            **dict.fromkeys(
                (
                    "create-keyring",
                    "update-keyring",
                    "delete-keyring",
                    "restore-keyring",
                    "put-rule",
                    "delete-rule",
                ),
                "upkeep-on-every-plan",
            ),
            **dict.fromkeys(
                ("list-keys", "list-public-keys", "get-keyring", "list-keyrings", "list-rules"),
                "own-public-keys",
            ),
        }
    row = MAY_WRITE[algorithm]
    here = row[-1] if subscription == "ended" else row[COLUMNS.index(tier)]
    policy = (
        "plan-includes-algorithm" if subscription == "active" else "free-plan-after-subscription"
    )
    return {
        **dict.fromkeys(WRITING[here], policy),
        **dict.fromkeys(READING[row[-2]], "reading-on-every-plan"),
        **dict.fromkeys(UPKEEP - _absent(algorithm), "upkeep-on-every-plan"),
        **dict.fromkeys(LOOKING_UP - _absent(algorithm), "own-public-keys"),
    }


def _absent(algorithm: str) -> set[str]:
    """Return the upkeep that an algorithm lacks: only key pairs are in lists of public keys."""
    spec = ALGORITHMS[Algorithm(algorithm)]
    if spec.is_legacy:
        return {"list-public-keys", "rotate-key"}
    return {"list-public-keys"} if spec.is_symmetric else set()


@pytest.mark.parametrize("tier", COLUMNS)
@pytest.mark.parametrize("subscription", ["active", "ended"])
def test_every_answer_is_the_specification_s(policy: Policy, tier: str, subscription: str) -> None:
    """Every operation with every algorithm, or none, has the specified policy's decision."""
    entitlements = Entitlements(Tier(tier), Subscription(subscription))
    for algorithm in (*MAY_WRITE, None):
        named = None if algorithm is None else Algorithm(algorithm)
        allowed = {
            operation.value: decision.policy
            for operation in Operation
            if isinstance(decision := policy.decide(entitlements, operation, named), Allowed)
        }
        assert allowed == _allowed_by(tier, subscription, algorithm), algorithm


def test_the_specification_s_table_is_whole() -> None:
    """The table above contains every algorithm and every tier."""
    assert MAY_WRITE.keys() == set(Algorithm)
    assert set(COLUMNS) == set(Tier)


LACKS, LACKS_WRAP = "plan-lacks-algorithm", "plan-lacks-key-wrap"
ENDED, ENDED_WRAP = "subscription-ended", "subscription-ended-without-key-wrap"
REFUSALS = [
    ("free", "active", "encrypt", "X-Wing", {LACKS}),
    ("free", "active", "generate-key", "ML-DSA-87", {LACKS}),
    ("free", "active", "sign", "SLH-DSA-SHA2-128s", {LACKS}),
    ("free", "active", "wrap", "Kyber768", {LACKS_WRAP}),
    ("free", "active", "wrap", "X-Wing", {LACKS, LACKS_WRAP}),
    ("professional", "active", "encrypt", "ML-KEM-1024", {LACKS}),
    ("enterprise", "ended", "encrypt", "ML-KEM-1024", {ENDED}),
    ("growth", "ended", "sign-hash", "Composite-ML-DSA", {ENDED}),
    ("starter", "ended", "encapsulate", "ML-KEM-1024", {LACKS, ENDED}),
    ("starter", "ended", "wrap", "Kyber768", {ENDED_WRAP}),
    ("starter", "ended", "wrap", "X-Wing", {ENDED, ENDED_WRAP}),
    ("free", "ended", "wrap", "X-Wing", {LACKS, LACKS_WRAP, ENDED, ENDED_WRAP}),
]


@pytest.mark.parametrize(("tier", "subscription", "operation", "algorithm", "names"), REFUSALS)
def test_a_refusal_names_every_policy_that_refuses(
    policy: Policy, tier: str, subscription: str, operation: str, algorithm: str, names: set[str]
) -> None:
    """The denial of a writing operation names all causes: plan, key wrap or subscription."""
    entitlements = Entitlements(Tier(tier), Subscription(subscription))
    decision = policy.decide(entitlements, Operation(operation), Algorithm(algorithm))
    assert isinstance(decision, Denied)
    assert set(decision.policy.split(" and ")) == names


def test_every_refusal_of_a_question_names_a_policy(policy: Policy) -> None:
    """Every denied question has a named policy."""
    known = {LACKS, LACKS_WRAP, ENDED, ENDED_WRAP}
    for tier, subscription, operation, algorithm in questions():
        decision = policy.decide(Entitlements(tier, subscription), operation, algorithm)
        if isinstance(decision, Denied):
            assert set(decision.policy.split(" and ")) <= known


def test_the_operator_s_grants_are_no_question(policy: Policy) -> None:
    """A tenant's own rate limit changes no decision."""
    granted = Entitlements(Tier.FREE, requests_per_minute=1_000_000)
    for operation in Operation:
        for algorithm in Algorithm:
            plain = policy.decide(Entitlements(Tier.FREE), operation, algorithm)
            assert policy.decide(granted, operation, algorithm) == plain


UNKNOWN = cast(Any, "unknown")


@pytest.mark.parametrize(
    ("entitlements", "operation", "algorithm"),
    [
        (Entitlements(UNKNOWN), Operation.DECRYPT, Algorithm.ML_KEM_768),
        (Entitlements(Tier.FREE, UNKNOWN), Operation.DECRYPT, Algorithm.ML_KEM_768),
        (Entitlements(Tier.FREE), UNKNOWN, Algorithm.ML_KEM_768),
        (Entitlements(Tier.FREE), Operation.DECRYPT, UNKNOWN),
        (Entitlements(Tier.FREE), Operation.DECRYPT, None),
        (Entitlements(Tier.FREE), Operation.DECRYPT, Algorithm.ML_DSA_65),
        (Entitlements(Tier.ENTERPRISE), Operation.WRAP, Algorithm.ML_KEM_1024),
    ],
)
def test_what_is_in_no_table_is_denied(
    policy: Policy, entitlements: Entitlements, operation: Operation, algorithm: Algorithm | None
) -> None:
    """An unknown question is denied, and does not raise."""
    assert policy.decide(entitlements, operation, algorithm) == Denied("not-in-the-table")


NO_NIGHT_WORK = """
@id("no-encryption-here")
forbid (principal, action == Action::"encrypt", resource == Algorithm::"Kyber768");
"""


def _own(folder: Path, text: str) -> Path:
    (folder / "own.cedar").write_text(text)
    return folder


def test_an_own_forbid_outweighs_ours(policy: Policy, tmp_path: Path) -> None:
    """An operator's forbid policy denies exactly its subject, under its own name."""
    own = cedar.build(plans.read(), _own(tmp_path, NO_NIGHT_WORK))
    for question in questions():
        tier, subscription, operation, algorithm = question
        entitlements = Entitlements(tier, subscription)
        expected: Decision = policy.decide(entitlements, operation, algorithm)
        if (operation, algorithm) == (Operation.ENCRYPT, Algorithm.ML_KEM_768):
            expected = Denied("no-encryption-here")
        assert own.decide(entitlements, operation, algorithm) == expected


def test_an_own_permit_outweighs_no_forbid_of_ours(policy: Policy, tmp_path: Path) -> None:
    """An operator's permit cannot override a plan's limits."""
    text = '@id("everything") permit (principal, action, resource);'
    own = cedar.build(plans.read(), _own(tmp_path, text))
    for tier, subscription, operation, algorithm in questions():
        entitlements = Entitlements(tier, subscription)
        before = policy.decide(entitlements, operation, algorithm)
        after = own.decide(entitlements, operation, algorithm)
        assert type(after) is type(before)
        assert isinstance(after, Denied) or "everything" in after.policy.split(" and ")


def test_every_own_file_counts(tmp_path: Path) -> None:
    """All files *.cedar of the directory are read, with any line ends, and no others."""
    files = (
        ("a.cedar", "encrypt"),
        ("b.cedar", "sign"),
        ("c.txt", "decrypt"),
        ("d.cedar~", "verify"),
    )
    for name, operation in files:
        text = f'@id("no-{operation}") forbid (principal, action == Action::"{operation}", resource); // x'
        (tmp_path / name).write_text(text)
    own = cedar.build(plans.read(), tmp_path)
    enterprise = Entitlements(Tier.ENTERPRISE)
    decided = [
        own.decide(enterprise, Operation.ENCRYPT, Algorithm.ML_KEM_768),
        own.decide(enterprise, Operation.SIGN, Algorithm.ML_DSA_65),
        own.decide(enterprise, Operation.DECRYPT, Algorithm.ML_KEM_768),
        own.decide(enterprise, Operation.VERIFY, Algorithm.ML_DSA_65),
    ]
    allowed = Allowed("reading-on-every-plan")
    assert decided == [Denied("no-encrypt"), Denied("no-sign"), allowed, allowed]


def test_own_plans_change_the_answers(tmp_path: Path) -> None:
    """An algorithm that an operator's plans file adds to free is allowed on free."""
    path = tmp_path / "own.toml"
    path.write_text('[free]\nalgorithms = ["X-Wing"]\nkey_wrap = true\n')
    own = cedar.build(plans.read(path))
    free = Entitlements(Tier.FREE)
    assert isinstance(own.decide(free, Operation.WRAP, Algorithm.X_WING), Allowed)
    assert own.decide(free, Operation.ENCRYPT, Algorithm.ML_KEM_768) == Denied(LACKS)
    ended = Entitlements(Tier.ENTERPRISE, Subscription.ENDED)
    assert isinstance(own.decide(ended, Operation.ENCRYPT, Algorithm.X_WING), Allowed)
    assert own.decide(ended, Operation.ENCRYPT, Algorithm.ML_KEM_768) == Denied(ENDED)


FORBID = "forbid (principal, action, resource)"
MISTAKES = {
    "no syntax": "forbid (",
    "an unknown attribute": f'@id("x") {FORBID} when {{ principal.colour == "red" }};',
    "an unknown operation": '@id("x") forbid (principal, action == Action::"destroy", resource);',
    "an unknown kind": '@id("x") forbid (principal == User::"x", action, resource);',
    "a wrong type": f'@id("x") {FORBID} when {{ principal.tier.key_wrap == 1 }};',
    "a number for a truth": f'@id("x") {FORBID} when {{ 1 }};',
    "an unknown context": f'@id("x") {FORBID} when {{ context.hour > 20 }};',
    "no name": f"{FORBID};",
    "an empty name": f'@id("") {FORBID};',
    "another annotation": f'@name("x") {FORBID};',
    "one name twice": f'@id("x") {FORBID}; @id("x") {FORBID};',
    "a name of ours": f'@id("reading-on-every-plan") {FORBID};',
    "a name that is too long": f'@id("{129 * "x"}") {FORBID};',
    "a name that cannot be printed": f'@id("x\\n") {FORBID};',
    "a policy that fails": f'@id("x") {FORBID} when {{ Tier::"gold".key_wrap }};',
    "a template": '@id("x") forbid (principal == ?principal, action, resource);',
    "nothing": "",
    "comments": "// forbid (principal, action, resource);\n",
}


@pytest.mark.parametrize("text", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_found_at_start(tmp_path: Path, text: str) -> None:
    """A mistake in one policy prevents the whole table."""
    with pytest.raises(ConfigError):
        cedar.build(plans.read(), _own(tmp_path, text))


def test_every_mistake_is_said(tmp_path: Path) -> None:
    """One message has the mistakes of two policies."""
    text = "".join(
        MISTAKES[name].replace("x", name) for name in ("a wrong type", "an unknown kind")
    )
    with pytest.raises(ConfigError, match="compatible; for policy"):
        cedar.build(plans.read(), _own(tmp_path, text))


def test_a_name_as_long_as_a_record_holds(tmp_path: Path) -> None:
    """A policy name may have 128 characters; 129 are refused."""
    forbid = '@id("{}") forbid (principal, action == Action::"list-keys", resource);'
    own = cedar.build(plans.read(), _own(tmp_path, forbid.format(128 * "x")))
    assert own.decide(Entitlements(Tier.FREE), Operation.LIST_KEYS, None) == Denied(128 * "x")
    with pytest.raises(ConfigError, match="too long"):
        cedar.build(plans.read(), _own(tmp_path, forbid.format(129 * "x")))


def test_a_template_is_called_one(tmp_path: Path) -> None:
    """A template is refused as a template, even beside a valid policy."""
    template = '@id("x") forbid (principal == ?principal, action, resource);'
    with pytest.raises(ConfigError, match="templates are not supported"):
        cedar.build(plans.read(), _own(tmp_path, template + NO_NIGHT_WORK))


def test_a_policy_that_is_not_utf_8(tmp_path: Path) -> None:
    """A file that is not text is refused, with its directory's name."""
    (tmp_path / "own.cedar").write_bytes(b"// \xff\n")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        cedar.build(plans.read(), tmp_path)


def test_a_directory_without_policies(tmp_path: Path) -> None:
    """A policy directory that is missing or empty is refused."""
    (tmp_path / "own.txt").write_text(NO_NIGHT_WORK)
    for directory in (tmp_path, tmp_path / "missing", tmp_path / "own.txt"):
        with pytest.raises(ConfigError, match=str(directory)):
            cedar.build(plans.read(), directory)


def test_a_question_that_no_policy_answers(policy: Policy) -> None:
    """A decision without a policy, which Cedar reports as a denial, prevents the table."""
    silent = cedarpy.is_authorized(
        cast(
            Any,
            {"principal": 'A::"a"', "action": 'Action::"b"', "resource": 'C::"c"', "context": {}},
        ),
        'permit (principal == A::"somebody else", action, resource);',
        [],
    )
    assert silent.decision is cedarpy.Decision.Deny
    with pytest.raises(ConfigError, match="no policy decides free, active, encrypt"):
        cedar._decision(questions()[0], silent, {})

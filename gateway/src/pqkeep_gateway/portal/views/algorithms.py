"""Descriptions of the algorithms, to choose one: purpose and strength."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pqkeep_gateway.portal.reading import Reader
from pqkeep_protocol.algorithms import ALGORITHMS, LEGACY, Algorithm, AlgorithmSpec, Kind


@dataclass(frozen=True, slots=True)
class Words:
    """The words for the use of a kind of keys."""

    legend: str
    writes: str
    reads: str
    does: str
    retired: str
    kept: str
    lost: str
    gone: str
    output: str
    """The name of the output, without its size."""
    public_half: str = ""
    """The abilities of a public key's holder. Empty for symmetric keys."""
    destroyed: str = "private key"
    """The part of the key that archiving destroys."""


_ENCRYPTING = Words(
    legend="To encrypt",
    writes="encrypt",
    reads="decrypt",
    does="encrypts and decrypts",
    retired="decrypts old data, and encrypts nothing new",
    kept="Data encrypted with this version can still be decrypted",
    lost="Data encrypted with it can never be read again",
    gone="Data encrypted with it can never be read again",
    output="ciphertext",
    public_half="It can encrypt to this key, but not decrypt.",
)
WORDS: Mapping[Kind, Words] = {
    Kind.KEM: _ENCRYPTING,
    Kind.SIGNATURE: Words(
        legend="To sign",
        writes="sign",
        reads="verify",
        does="signs and verifies",
        retired="verifies old signatures, and signs nothing new",
        kept="Its signatures can still be verified",
        lost="This service can never verify its signatures again",
        gone="It can no longer sign or verify here",
        output="signature",
        public_half="It can verify this key's signatures, but not sign.",
    ),
    Kind.LEGACY_DECRYPTION: replace(
        _ENCRYPTING,
        legend="To move old data",
        does="moves old ciphertexts to other keys, by re-encrypt",
        retired="still moves old ciphertexts to other keys",
        public_half="Do not encrypt anything new to it.",
    ),
    Kind.LEGACY_VERIFICATION: Words(
        legend="To verify old signatures",
        writes="sign",
        reads="verify",
        does="verifies old signatures",
        retired="still verifies old signatures",
        kept="Old signatures can still be verified",
        lost="This service can never verify its signatures again",
        gone="It can no longer verify here",
        output="signature",
        public_half="It can verify this key's signatures, but not sign.",
        destroyed="stored key",
    ),
    Kind.CIPHER: replace(_ENCRYPTING, public_half="", destroyed="secret key"),
    Kind.MAC: Words(
        legend="To authenticate",
        writes="compute MACs",
        reads="verify MACs",
        does="computes and verifies MACs",
        retired="verifies old MACs, and computes no new ones",
        kept="Its MACs can still be verified",
        lost="This service can never verify its MACs again",
        gone="It can no longer compute or verify MACs",
        output="MAC",
        destroyed="secret key",
    ),
}
LEGENDS = tuple(
    dict.fromkeys(words.legend for kind, words in WORDS.items() if "legacy" not in kind)
)
"""The groups of algorithms in the dialog that generates a key."""


@dataclass(frozen=True, slots=True)
class About:
    """The description of one algorithm."""

    algorithm: Algorithm
    standard_name: str
    level: int
    """NIST's security category, from 1 to 5. For a hybrid, the post-quantum half's. 0: none."""
    purpose: str
    """The purpose of the algorithm in one sentence."""

    @property
    def spec(self) -> AlgorithmSpec:
        """The algorithm's public properties."""
        return ALGORITHMS[self.algorithm]

    @property
    def words(self) -> Words:
        """The words for the operations of its keys."""
        return WORDS[self.spec.kind]

    @property
    def adds(self) -> int:
        """The bytes of an output, without the data in a ciphertext."""
        return self.spec.overhead if self.has_data else self.spec.output_size

    @property
    def has_data(self) -> bool:
        """Whether an output contains the data."""
        return self.spec.kind in {Kind.KEM, Kind.CIPHER}

    @property
    def strength(self) -> str:
        """Return the AES variant that is as hard to break."""
        return _AS_HARD_AS[self.level]


_AS_HARD_AS: Mapping[int, str] = {1: "AES-128", 3: "AES-192", 5: "AES-256"}
_TABLE = (
    About(
        Algorithm.ML_KEM_768,
        "ML-KEM-768",
        3,
        "Encrypts data and wraps keys. The usual choice.",
    ),
    About(
        Algorithm.X_WING,
        "X-Wing",
        3,
        "Encrypts data and wraps keys with ML-KEM-768 and X25519. Safe while one of them is.",
    ),
    About(
        Algorithm.ML_KEM_1024,
        "ML-KEM-1024",
        5,
        "Encrypts data with the widest margin, as CNSA 2.0 requires. It cannot wrap keys.",
    ),
    About(
        Algorithm.ML_DSA_65,
        "ML-DSA-65",
        3,
        "Signs in about a millisecond. The usual choice.",
    ),
    About(
        Algorithm.COMPOSITE_ML_DSA,
        "ML-DSA-65 with ECDSA P-256",
        3,
        "Signs with both ML-DSA-65 and ECDSA P-256. A forger must break both.",
    ),
    About(
        Algorithm.ML_DSA_87,
        "ML-DSA-87",
        5,
        "Signs with the widest margin of ML-DSA, as CNSA 2.0 requires.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_128S,
        "SLH-DSA-SHA2-128s",
        1,
        "Signs with hash functions only, slowly. For rare signatures that must last long.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_128F,
        "SLH-DSA-SHA2-128f",
        1,
        "Signs with hash functions only, faster than 128s, but signatures are twice as large.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_192S,
        "SLH-DSA-SHA2-192s",
        3,
        "Signs with hash functions only, slowly, with more margin.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_256S,
        "SLH-DSA-SHA2-256s",
        5,
        "Signs with hash functions only, slowly, with the widest margin.",
    ),
    About(
        Algorithm.XAES_256_GCM,
        "XAES-256-GCM",
        5,
        "Encrypts data and wraps keys, with short ciphertexts. Only this service can encrypt and decrypt.",
    ),
    About(
        Algorithm.HMAC_SHA_256,
        "HMAC-SHA-256",
        5,
        "Computes MACs of 32 bytes: proofs that a message is unchanged. Only this service can verify them.",
    ),
    About(
        Algorithm.HMAC_SHA_512,
        "HMAC-SHA-512",
        5,
        "Computes MACs of 64 bytes: proofs that a message is unchanged. Only this service can verify them.",
    ),
)
_LEGACY_PURPOSE = {
    Kind.LEGACY_DECRYPTION: "Only moves old ciphertexts to other keys. A quantum computer breaks it.",
    Kind.LEGACY_VERIFICATION: "Only verifies old signatures. A quantum computer can forge them.",
}
ABOUT: Mapping[Algorithm, About] = {
    **{about.algorithm: about for about in _TABLE},
    **{
        algorithm: About(algorithm, algorithm.value, 0, _LEGACY_PURPOSE[ALGORITHMS[algorithm].kind])
        for algorithm in LEGACY
    },
}
"""Legacy algorithms have no category, and no place in the dialogs that generate a key."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm in the dialog that generates a key."""

    about: About
    has_active: bool
    """Whether it has an active key, which can only be rotated."""
    plan: str
    """The first plan with this algorithm; empty if the tenant's plan has it."""

    @property
    def is_open(self) -> bool:
        """Whether a key can be generated now."""
        return not (self.has_active or self.plan)


async def choices(reader: Reader, active: Iterable[Algorithm]) -> tuple[Choice, ...]:
    """Return all algorithms. If plans cannot be read, all are offered, and the API decides."""
    subscription = (await reader.section("get_subscription")).data
    sold = (await reader.section("list_plans")).data
    plans = sold.plans if sold and subscription else ()
    included = {
        name for plan in plans if plan.tier is subscription.tier for name in plan.algorithms
    }
    first: dict[Algorithm, str] = {}
    for plan in plans:
        for name in plan.algorithms:
            first.setdefault(name, plan.tier.value.replace("_", " "))
    active_names = set(active)

    def plan_of(about: About) -> str:
        """Return the first plan with an algorithm; empty if the tenant has it."""
        has_it = not included or about.algorithm in included or about.spec.is_symmetric
        return "" if has_it else first.get(about.algorithm, "")

    return tuple(Choice(about, about.algorithm in active_names, plan_of(about)) for about in _TABLE)

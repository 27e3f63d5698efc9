"""What people should know of an algorithm to choose it: what it is for, and how strong it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pqkeep_gateway.portal.reading import Reader
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, AlgorithmSpec, Kind


@dataclass(frozen=True, slots=True)
class About:
    """One algorithm, for people."""

    algorithm: Algorithm
    standard_name: str
    level: int
    """NIST's security category, from 1 to 5; of a hybrid, that of its post-quantum half."""
    purpose: str
    """One sentence."""

    @property
    def spec(self) -> AlgorithmSpec:
        """Its public properties."""
        return ALGORITHMS[self.algorithm]

    @property
    def encrypts(self) -> bool:
        """Whether it encrypts; the others sign."""
        return self.spec.kind is Kind.KEM

    @property
    def strength(self) -> str:
        """Return what its security category is compared with."""
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
        "Encrypts data and wraps keys by ML-KEM-768 and X25519 together: safe while either is.",
    ),
    About(
        Algorithm.ML_KEM_1024,
        "ML-KEM-1024",
        5,
        "Encrypts data with the widest margin, as CNSA 2.0 asks for. It wraps no keys.",
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
        "Signs by ML-DSA-65 and ECDSA P-256 together: a forger has to break both.",
    ),
    About(
        Algorithm.ML_DSA_87,
        "ML-DSA-87",
        5,
        "Signs with the widest margin of ML-DSA, as CNSA 2.0 asks for.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_128S,
        "SLH-DSA-SHA2-128s",
        1,
        "Signs by hash functions alone, slowly: for what is signed rarely and trusted long.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_128F,
        "SLH-DSA-SHA2-128f",
        1,
        "Signs by hash functions alone, faster than 128s, with signatures of twice the size.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_192S,
        "SLH-DSA-SHA2-192s",
        3,
        "Signs by hash functions alone, slowly, with more margin.",
    ),
    About(
        Algorithm.SLH_DSA_SHA2_256S,
        "SLH-DSA-SHA2-256s",
        5,
        "Signs by hash functions alone, slowly, with the widest margin.",
    ),
)
ABOUT: Mapping[Algorithm, About] = {each.algorithm: each for each in _TABLE}


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm in the dialog that generates a key."""

    about: About
    has_active: bool
    """Whether a key of it is active: that one is rotated."""
    plan: str
    """The first plan that has it, where the tenant's does not; else empty."""

    @property
    def is_open(self) -> bool:
        """Whether a key of it can be generated now."""
        return not (self.has_active or self.plan)


async def choices(reader: Reader, active: Iterable[Algorithm]) -> tuple[Choice, ...]:
    """Return every algorithm. Where plans cannot be read, the service decides when it is asked."""
    subscription = (await reader.section("get_subscription")).data
    sold = (await reader.section("list_plans")).data
    plans = sold.plans if sold and subscription else ()
    included = {
        name for each in plans if each.tier is subscription.tier for name in each.algorithms
    }
    first: dict[Algorithm, str] = {}
    for each in plans:
        for name in each.algorithms:
            first.setdefault(name, each.tier.value.replace("_", " "))
    having = set(active)
    return tuple(
        Choice(
            about,
            about.algorithm in having,
            "" if not included or about.algorithm in included else first.get(about.algorithm, ""),
        )
        for about in _TABLE
    )

"""Our classes match FIPS 203 and FIPS 204, by the vectors of cryptography-vectors.

Provenance: kat_MLKEM_*.rsp and kat_MLDSA_*_det_pure.rsp, of post-quantum-cryptography/KAT.
"""

from collections.abc import Callable, Iterator

import cryptography_vectors
import pytest
from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm

Vector = dict[str, bytes]
Record = Callable[[str, object], None]
SCHEMES = signature_schemes(Pqcrypto())
KEM, SCHEME = KEMS[Algorithm.ML_KEM_768], SCHEMES[Algorithm.ML_DSA_65]


def vectors(path: str, wanted: set[str]) -> Iterator[Vector]:
    """Read the blocks of a NIST response file. Each begins with its ``count`` line."""
    vector: Vector = {}
    with cryptography_vectors.open_vector_file(path, "r") as lines:
        for line in lines:
            name, _, value = line.partition(" = ")
            if name == "count" and vector:
                yield vector
                vector = {}
            if name in wanted:
                vector[name] = bytes.fromhex(value)
    yield vector


@pytest.mark.parametrize(
    ("algorithm", "name"), [(Algorithm.ML_KEM_768, "768"), (Algorithm.ML_KEM_1024, "1024")]
)
def test_ml_kem(algorithm: Algorithm, name: str, record_testsuite_property: Record) -> None:
    """1,000 vectors: key generation, decapsulation, and implicit rejection."""
    kem = KEMS[algorithm]
    wanted = {"d", "z", "pk", "ct", "ss", "ct_n", "ss_n"}
    count = 0
    for count, vector in enumerate(vectors(f"asymmetric/MLKEM/kat_MLKEM_{name}.rsp", wanted), 1):
        private = kem.load_seed(Secret(vector["d"] + vector["z"]))
        assert private.public_bytes() == vector["pk"]
        assert bytes(private.seed().reveal()) == vector["d"] + vector["z"]
        assert private.decapsulate(vector["ct"]) == vector["ss"]
        assert private.decapsulate(vector["ct_n"]) == vector["ss_n"]
        if count % 10 == 0:
            secret, ciphertext = kem.load_public(vector["pk"]).encapsulate()
            assert private.decapsulate(ciphertext) == secret
    record_testsuite_property(f"vectors {algorithm}", count)
    assert count == 1000


@pytest.mark.parametrize(
    ("algorithm", "name"), [(Algorithm.ML_DSA_65, "65"), (Algorithm.ML_DSA_87, "87")]
)
def test_ml_dsa(algorithm: Algorithm, name: str, record_testsuite_property: Record) -> None:
    """100 vectors: key generation and verification, with the right context only."""
    scheme = SCHEMES[algorithm]
    size = ALGORITHMS[algorithm].output_size
    wanted = {"xi", "pk", "msg", "sm", "ctx"}
    every = list(vectors(f"asymmetric/MLDSA/kat_MLDSA_{name}_det_pure.rsp", wanted))
    for vector in every:
        private = scheme.load_seed(Secret(vector["xi"]))
        assert private.public_bytes() == vector["pk"]
        assert bytes(private.seed().reveal()) == vector["xi"]
        signature, message, context = vector["sm"][:size], vector["msg"], vector["ctx"]
        assert vector["sm"][size:] == message
        public = scheme.load_public(vector["pk"])
        public.verify(signature, message, context)
        public.verify(private.sign(message, context), message, context)
        for attempt in ((signature, message), (signature, message + b"\0", context)):
            with pytest.raises(InvalidSignature):
                public.verify(*attempt)
    record_testsuite_property(f"vectors {algorithm}", len(every))
    assert len(every) == 100


@pytest.mark.parametrize("size", [0, 1, 32, 63, 65, 128])
def test_ml_kem_seeds_of_another_size_are_refused(size: int) -> None:
    """An ML-KEM seed must have 64 bytes."""
    with pytest.raises(ValueError):  # noqa: PT011 - the library's message
        KEM.load_seed(Secret(bytes(size)))


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_ml_dsa_seeds_of_another_size_are_refused(size: int) -> None:
    """An ML-DSA seed must have 32 bytes."""
    with pytest.raises(ValueError):  # noqa: PT011 - the library's message
        SCHEME.load_seed(Secret(bytes(size)))


@pytest.mark.parametrize("algorithm", [*KEMS, *SCHEMES])
@pytest.mark.parametrize("difference", [None, -1, 1])
def test_public_keys_of_another_size_are_refused(
    algorithm: Algorithm, difference: int | None
) -> None:
    """A public key must have the size of its parameter set."""
    scheme = KEMS.get(algorithm) or SCHEMES[algorithm]
    right = ALGORITHMS[algorithm].public_key_size
    with pytest.raises(ValueError):  # noqa: PT011 - the library's message
        scheme.load_public(bytes(0 if difference is None else right + difference))


def test_an_encapsulation_key_out_of_range_is_refused() -> None:
    """A coefficient not below the modulus is refused (FIPS 203, section 7.2)."""
    valid = KEM.generate().public_bytes()
    KEM.load_public(valid)
    with pytest.raises(ValueError):  # noqa: PT011 - the library's message
        KEM.load_public(b"\xff\xff\xff" + valid[3:])


@pytest.mark.parametrize("size", [0, 1087, 1089])
def test_ciphertexts_of_another_size_are_refused(size: int) -> None:
    """A ciphertext of another size is refused (FIPS 203, section 7.3)."""
    with pytest.raises(ValueError):  # noqa: PT011 - the library's message
        KEM.generate().decapsulate(bytes(size))

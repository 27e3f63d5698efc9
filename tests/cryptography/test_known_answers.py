"""Published answers, computed by the project's own classes.

Sources: the vectors of pyca/cryptography (ML-KEM, ML-DSA, and X-Wing as HPKE's KEM 0x647a), and
those in tests/vectors with their provenance. SLH-DSA is in test_slhdsa.py.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography_vectors import open_vector_file

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol.algorithms import ALGORITHMS, KEY_PAIRS, Algorithm

Count = Callable[[Algorithm, int], None]
Vectors = Callable[[str], Any]
Answer = Mapping[str, bytes]

SCHEMES = signature_schemes(Pqcrypto())

ML_KEM_FILES = {
    Algorithm.ML_KEM_768: "asymmetric/MLKEM/kat_MLKEM_768.rsp",
    Algorithm.ML_KEM_1024: "asymmetric/MLKEM/kat_MLKEM_1024.rsp",
}
ML_DSA_FILES = {
    Algorithm.ML_DSA_65: "asymmetric/MLDSA/kat_MLDSA_65_det_pure.rsp",
    Algorithm.ML_DSA_87: "asymmetric/MLDSA/kat_MLDSA_87_det_pure.rsp",
}
HPKE_FILE = "HPKE/hpke-pq-test-vectors.json"
HPKE_KEMS = {
    Algorithm.ML_KEM_768: 0x0041,
    Algorithm.ML_KEM_1024: 0x0042,
    Algorithm.X_WING: 0x647A,
}
HPKE_HASHES: Mapping[int, HashAlgorithm] = {1: SHA256(), 2: SHA384()}
HPKE_CIPHERS: Mapping[int, Callable[[bytes], AESGCM | ChaCha20Poly1305]] = {
    1: AESGCM,
    2: AESGCM,
    3: ChaCha20Poly1305,
}
M_SIGNATURE = 3309
"""Bytes of the ML-DSA-65 part of a composite signature."""


def _answers(file: str) -> Iterator[Answer]:
    with open_vector_file(file, "r") as lines:
        answer: dict[str, bytes] = {}
        for line in lines:
            name, _, value = line.strip().partition(" = ")
            if name == "count" and answer:
                yield answer
                answer = {}
            if name not in ("", "count", "mlen", "smlen"):
                answer[name] = bytes.fromhex(value)
        yield answer


def _hpke_answers(kem: int) -> list[dict[str, Any]]:
    with open_vector_file(HPKE_FILE, "r") as file:
        return [answer for answer in json.load(file) if answer["kem_id"] == kem]


def _labeled_extract(
    algorithm: HashAlgorithm, suite: bytes, salt: bytes, label: bytes, key: bytes
) -> bytes:
    extract = HMAC(salt or bytes(algorithm.digest_size), algorithm)
    extract.update(b"HPKE-v1" + suite + label + key)
    return extract.finalize()


def _labeled_expand(
    algorithm: HashAlgorithm, suite: bytes, key: bytes, label: bytes, info: bytes, size: int
) -> bytes:
    labeled = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return HKDFExpand(algorithm, size, labeled).derive(key)


def test_every_algorithm_is_in_a_table_of_known_answers() -> None:
    """All algorithms of the project have published or independent known answers."""
    slh_dsa = {a for a in Algorithm if ALGORITHMS[a].standard == "FIPS 205"}
    own = {Algorithm.X_WING, Algorithm.COMPOSITE_ML_DSA} | slh_dsa
    symmetric = set(Algorithm) - set(KEY_PAIRS)  # keyservice/tests/test_symmetric_keys.py
    assert {*ML_KEM_FILES, *ML_DSA_FILES, *HPKE_KEMS, *own} | symmetric == set(Algorithm)


@pytest.mark.parametrize("algorithm", ML_KEM_FILES)
def test_ml_kem_known_answers(algorithm: Algorithm, count_known_answers: Count) -> None:
    """Every published seed gives the published key, secret, and secret of a bad ciphertext."""
    held = 0
    for answer in _answers(ML_KEM_FILES[algorithm]):
        private = KEMS[algorithm].load_seed(Secret(answer["d"] + answer["z"]))
        assert private.public_bytes() == answer["pk"]
        assert private.decapsulate(answer["ct"]) == answer["ss"]
        assert private.decapsulate(answer["ct_n"]) == answer["ss_n"]
        assert answer["ss"] != answer["ss_n"]
        held += 1
    count_known_answers(algorithm, held)


@pytest.mark.parametrize("algorithm", ML_KEM_FILES)
def test_ml_kem_encapsulates_to_published_keys(algorithm: Algorithm) -> None:
    """A new encapsulation to each published public key opens with its published seed."""
    for answer in _answers(ML_KEM_FILES[algorithm]):
        secret, ciphertext = KEMS[algorithm].load_public(answer["pk"]).encapsulate()
        private = KEMS[algorithm].load_seed(Secret(answer["d"] + answer["z"]))
        assert private.decapsulate(ciphertext) == secret


@pytest.mark.parametrize("algorithm", HPKE_KEMS)
def test_hpke_known_answers(algorithm: Algorithm, count_known_answers: Count) -> None:
    """HPKE's published private keys give its published public keys and shared secrets."""
    held = 0
    for answer in _hpke_answers(HPKE_KEMS[algorithm]):
        private = KEMS[algorithm].load_seed(Secret(bytes.fromhex(answer["skRm"])))
        assert private.public_bytes().hex() == answer["pkRm"]
        assert private.decapsulate(bytes.fromhex(answer["enc"])).hex() == answer["shared_secret"]
        held += 1
    count_known_answers(algorithm, held)


@pytest.mark.parametrize("algorithm", HPKE_KEMS)
def test_hpke_messages_open(algorithm: Algorithm) -> None:
    """With our shared secret, RFC 9180's key schedule opens the published messages."""
    opened = 0
    for answer in _hpke_answers(HPKE_KEMS[algorithm]):
        if answer["kdf_id"] not in HPKE_HASHES:
            continue  # the single-stage schedules say nothing more about the KEM
        used, suite = HPKE_HASHES[answer["kdf_id"]], bytes.fromhex(answer["suite_id"])
        private = KEMS[algorithm].load_seed(Secret(bytes.fromhex(answer["skRm"])))
        shared_secret = private.decapsulate(bytes.fromhex(answer["enc"]))
        context = (
            b"\0"
            + _labeled_extract(used, suite, b"", b"psk_id_hash", b"")
            + _labeled_extract(used, suite, b"", b"info_hash", bytes.fromhex(answer["info"]))
        )
        secret = _labeled_extract(used, suite, shared_secret, b"secret", b"")
        size = len(answer["key"]) // 2
        key = _labeled_expand(used, suite, secret, b"key", context, size)
        assert key.hex() == answer["key"]
        for message in answer["encryptions"]:
            nonce, ciphertext, data = (
                bytes.fromhex(message[name]) for name in ("nonce", "ct", "aad")
            )
            cipher = HPKE_CIPHERS[answer["aead_id"]](key)
            assert cipher.decrypt(nonce, ciphertext, data).hex() == message["pt"]
            opened += 1
    assert opened > 0


def test_x_wing_known_answers(read_vectors: Vectors, count_known_answers: Count) -> None:
    """X-Wing's seeds give the recorded keys and secrets, also for damaged ciphertexts."""
    held = 0
    for case in read_vectors("x-wing.json")["cases"]:
        answer = {name: b64decode(value) for name, value in case.items()}
        private = KEMS[Algorithm.X_WING].load_seed(Secret(answer["seed"]))
        assert private.public_bytes() == answer["public_key"]
        assert private.decapsulate(answer["kem_ciphertext"]) == answer["shared_secret"]
        tampered = private.decapsulate(answer["tampered_ciphertext"])
        assert tampered == answer["tampered_shared_secret"] != answer["shared_secret"]
        held += 1
    count_known_answers(Algorithm.X_WING, held)


@pytest.mark.parametrize("algorithm", ML_DSA_FILES)
def test_ml_dsa_known_answers(algorithm: Algorithm, count_known_answers: Count) -> None:
    """Every published seed gives the published key, and that key verifies the published signature.

    Our signatures are randomised: they differ from the published signatures, and verify.
    """
    held = 0
    size = ALGORITHMS[algorithm].output_size
    for answer in _answers(ML_DSA_FILES[algorithm]):
        private = SCHEMES[algorithm].load_seed(Secret(answer["xi"]))
        assert private.public_bytes() == answer["pk"]
        public = SCHEMES[algorithm].load_public(answer["pk"])
        signature, message = answer["sm"][:size], answer["msg"]
        assert answer["sm"][size:] == message
        public.verify(signature, message, answer["ctx"])
        own = private.sign(message, answer["ctx"])
        assert own != signature
        public.verify(own, message, answer["ctx"])
        held += 1
    count_known_answers(algorithm, held)


@pytest.mark.parametrize("algorithm", ML_DSA_FILES)
def test_ml_dsa_refuses_what_differs_from_the_published(algorithm: Algorithm) -> None:
    """A published signature is refused for another message, context, key or size, or a change."""
    size = ALGORITHMS[algorithm].output_size
    refused = 0
    neighbour = None
    for answer in _answers(ML_DSA_FILES[algorithm]):
        public = SCHEMES[algorithm].load_public(answer["pk"])
        signature, message, context = answer["sm"][:size], answer["msg"], answer["ctx"]
        position = refused % size
        changed = bytearray(signature)
        changed[position] ^= 1
        for wrong in (
            (bytes(changed), message, context),
            (signature[:-1], message, context),
            (signature + b"\0", message, context),
            (signature, message + b"\0", context),
            (signature, message, context + b"\0"),
            (signature, message, b""),
            (signature, context + message, b""),
        ):
            with pytest.raises(InvalidSignature):
                public.verify(*wrong)
            refused += 1
        if neighbour is not None:
            with pytest.raises(InvalidSignature):
                neighbour.verify(signature, message, context)
        neighbour = public
    assert refused > 0


def _composite_cases(vectors: Vectors) -> list[dict[str, bytes]]:
    cases = vectors("composite-ml-dsa.json")["cases"]
    return [{name: b64decode(value) for name, value in case.items()} for case in cases]


def test_composite_known_answers(read_vectors: Vectors, count_known_answers: Count) -> None:
    """Recorded private keys give the recorded public keys; the recorded signatures hold."""
    scheme = SCHEMES[Algorithm.COMPOSITE_ML_DSA]
    held = 0
    for case in _composite_cases(read_vectors):
        private = scheme.load_seed(Secret(case["sk"]))
        assert private.public_bytes() == case["pk"]
        public = scheme.load_public(case["pk"])
        public.verify(case["signature"], case["message"], case["context"])
        own = private.sign(case["message"], case["context"])
        public.verify(own, case["message"], case["context"])
        held += 1
    count_known_answers(Algorithm.COMPOSITE_ML_DSA, held)


def test_composite_contexts_and_messages_are_bound(read_vectors: Vectors) -> None:
    """A composite signature is valid for no other message and no other context."""
    scheme = SCHEMES[Algorithm.COMPOSITE_ML_DSA]
    cases = _composite_cases(read_vectors)
    assert {bool(case["context"]) for case in cases} == {True, False}
    for case in cases:
        public = scheme.load_public(case["pk"])
        for message, context in (
            (case["message"] + b"\0", case["context"]),
            (case["message"], case["context"][:-1] or b"x"),
            (case["message"], case["context"][:-1] + b"\0"),
            (b"x" + case["message"], b""),
        ):
            with pytest.raises(InvalidSignature):
                public.verify(case["signature"], message, context)


def test_composite_needs_both_halves(read_vectors: Vectors) -> None:
    """A composite signature with either half replaced or missing is invalid."""
    scheme = SCHEMES[Algorithm.COMPOSITE_ML_DSA]
    for case in _composite_cases(read_vectors):
        private, public = scheme.load_seed(Secret(case["sk"])), scheme.load_public(case["pk"])
        signature, message, context = case["signature"], case["message"], case["context"]
        other = private.sign(b"another message", context)
        stranger = scheme.generate().sign(message, context)
        for first, second in (
            (other, signature),
            (signature, other),
            (stranger, signature),
            (signature, stranger),
        ):
            with pytest.raises(InvalidSignature):
                public.verify(first[:M_SIGNATURE] + second[M_SIGNATURE:], message, context)
        for cut in (
            signature[:M_SIGNATURE],
            signature[M_SIGNATURE:],
            bytes(M_SIGNATURE) + signature[M_SIGNATURE:],
            signature[:M_SIGNATURE] + bytes(len(signature) - M_SIGNATURE),
        ):
            with pytest.raises(InvalidSignature):
                public.verify(cut, message, context)
        same = private.sign(message, context)
        public.verify(same[:M_SIGNATURE] + signature[M_SIGNATURE:], message, context)

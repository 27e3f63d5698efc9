"""The tables are complete and agree with each other and with the interface specification."""

import pytest

from pqkeep_protocol.algorithms import ALGORITHMS, LIFECYCLE, READING, Algorithm, Kind, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import USABLE, KeyStatus
from pqkeep_protocol.messages import AnyRequest

KEM = {Operation.ENCRYPT, Operation.DECRYPT, Operation.ENCAPSULATE, Operation.DECAPSULATE}
SIGNATURE = {Operation.SIGN, Operation.VERIFY}
SIZES = {  # FIPS 203, table 3; FIPS 204, table 2
    Algorithm.ML_KEM_768: (Kind.KEM, "FIPS 203", 1184, 1088),
    Algorithm.ML_DSA_65: (Kind.SIGNATURE, "FIPS 204", 1952, 3309),
}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_has_its_row(algorithm: Algorithm) -> None:
    """Each algorithm that can be named has a row, with the sizes of its standard."""
    spec = ALGORITHMS[algorithm]
    row = (spec.kind, spec.standard, spec.public_key_size, spec.output_size)
    assert row == SIZES[algorithm]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_an_algorithm_does_what_its_kind_does(algorithm: Algorithm) -> None:
    """Keys for encryption never sign and keys for signatures never decrypt; all have a life."""
    spec = ALGORITHMS[algorithm]
    assert spec.operations - LIFECYCLE == (KEM if spec.kind is Kind.KEM else SIGNATURE)
    assert spec.operations >= LIFECYCLE


@pytest.mark.parametrize("operation", sorted((KEM | SIGNATURE) - READING))
def test_new_use_wants_the_active_key(operation: Operation) -> None:
    """The specification's first column: encrypt, encapsulate and sign with active keys only."""
    assert USABLE[operation] == {KeyStatus.ACTIVE}


@pytest.mark.parametrize("operation", sorted(READING))
def test_reading_goes_on_with_retired_keys(operation: Operation) -> None:
    """The second column: decrypt, decapsulate and verify also with retired keys, never archived."""
    assert USABLE[operation] == {KeyStatus.ACTIVE, KeyStatus.RETIRED}


def test_no_operation_is_without_a_rule() -> None:
    """Every operation is either one on the key itself or has its row of permitted states."""
    assert set(USABLE) | LIFECYCLE == set(Operation)
    assert not set(USABLE) & LIFECYCLE


def test_every_operation_has_exactly_one_request() -> None:
    """Requests and operations are in one-to-one correspondence."""
    requested = [request.operation for request in AnyRequest.__args__]
    assert sorted(requested) == sorted(Operation)


@pytest.mark.parametrize("kind", ErrorKind)
def test_an_error_says_its_kind_and_no_more(kind: ErrorKind) -> None:
    """What is printed of a refusal is the kind: nothing of the request is in it."""
    error = KeyServiceError(kind)
    assert (error.kind, str(error), error.args) == (kind, kind.value, (kind.value,))

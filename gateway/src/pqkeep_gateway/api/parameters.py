"""The fields of requests for operations of the key service, with the limits that ``fields`` keeps."""

import pybase64

from pqkeep_gateway.api.fields import (
    KEMS,
    MAX_CIPHERTEXT,
    MAX_KEM_CIPHERTEXT,
    MAX_MESSAGE,
    MAX_PLAINTEXT,
    MAX_SIGNATURE,
    MAX_WRAPPED_KEY,
    MODES,
    SHORTEST_WRAPPED_KEY,
)
from pqkeep_gateway.http.about import Parameter
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.text import ANY_BASE64, Base64, base64, base64_pattern, base64_size
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    DIGEST_SIZE,
    SYMMETRIC_KEY_SIZES,
    Algorithm,
    HashAlgorithm,
    Operation,
)
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyStatus


def _base64(*, at_most: int) -> dict[str, object]:
    return {
        "type": "string",
        "contentEncoding": "base64",
        "pattern": ANY_BASE64,
        "maxLength": base64_size(at_most),
    }


def _base64_of(*sizes: int) -> dict[str, object]:
    return {"type": "string", "contentEncoding": "base64", "pattern": base64_pattern(sizes)}


PLAINTEXT = Parameter(
    "plaintext",
    f"What to encrypt: at most {MAX_PLAINTEXT:,} bytes.",
    _base64(at_most=MAX_PLAINTEXT),
    "YXR0YWNrIGF0IGRhd24=",
)
CIPHERTEXT = Parameter(
    "ciphertext",
    f"What encrypt returned, whole: at most {MAX_CIPHERTEXT:,} bytes.",
    _base64(at_most=MAX_CIPHERTEXT),
    "Fyf0eJ8oWZ0OQK3MwPQBXGpZ8YwWxqUJ",
    made_by="encrypt",
)
KEM_CIPHERTEXT = Parameter(
    "kem_ciphertext",
    "What encapsulate returned: "
    + ", ".join(f"{ALGORITHMS[kem].output_size:,} bytes for {kem}" for kem in KEMS)
    + ".",
    _base64(at_most=MAX_KEM_CIPHERTEXT),
    "o0R5cYk0Yy1mJ2d0rO8q3Q6yVn0wE7uB",
    made_by="encapsulate",
)
SYMMETRIC_KEY = Parameter(
    "symmetric_key",
    "The key to wrap: " + ", ".join(str(size) for size in sorted(SYMMETRIC_KEY_SIZES)) + " bytes.",
    _base64_of(*SYMMETRIC_KEY_SIZES),
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
)
WRAPPED_KEY = Parameter(
    "wrapped_key",
    f"What wrap returned, whole: {SHORTEST_WRAPPED_KEY:,} to {MAX_WRAPPED_KEY:,} bytes.",
    _base64(at_most=MAX_WRAPPED_KEY),
    "kQ2sVb8xWm4T1cZp9uHfLr6eYd3aNj7g",
    made_by="wrap",
)
MESSAGE = Parameter(
    "message",
    f"What is signed: at most {MAX_MESSAGE:,} bytes.",
    _base64(at_most=MAX_MESSAGE),
    "cGF5IEJvYiAxMCBFVVI=",
)
SIGNATURE = Parameter(
    "signature",
    f"The signature to check: at most {MAX_SIGNATURE:,} bytes.",
    _base64(at_most=MAX_SIGNATURE),
    "xV3Jb0nRUZ3ZoN8HqY0mS4uC5cEw2kPz",
    made_by="sign",
)
SIGNATURE_OVER_HASH = Parameter(
    SIGNATURE.name,
    SIGNATURE.description,
    SIGNATURE.schema,
    SIGNATURE.example,
    made_by="sign_hash",
)
HASH_ALGORITHM = Parameter(
    "hash_algorithm",
    "The hash function that made the digest.",
    {"type": "string", "enum": list(HashAlgorithm)},
    HashAlgorithm.SHA_256,
    codes=(Code.SIG_010,),
)
HASH = Parameter(
    "hash",
    "The digest: "
    + ", ".join(f"{size} bytes for {name}" for name, size in DIGEST_SIZE.items())
    + ".",
    _base64_of(*DIGEST_SIZE.values()),
    "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
    codes=(Code.SIG_001, Code.SIG_011),
)
KEY_VERSION = Parameter(
    "key_version",
    "The version of the key.",
    {"type": "integer", "minimum": 1, "maximum": MAX_KEY_VERSION},
    1,
)
ACTIVE_KEY_VERSION = Parameter(
    KEY_VERSION.name,
    "The version of the key, which must be active. Left out: the one that is active.",
    KEY_VERSION.schema,
    KEY_VERSION.example,
    required=False,
)
MODE = Parameter(
    "mode",
    "Accepted, and changes nothing: ciphertexts are randomized in either mode.",
    {"type": "string", "enum": list(MODES), "default": MODES[0]},
    MODES[0],
    required=False,
    codes=(Code.KEM_007,),
)
SALT = Parameter(
    "salt",
    "Accepted, and changes nothing. Required where mode is deterministic.",
    _base64(at_most=MAX_PLAINTEXT),
    "c2FsdA==",
    required=False,
    codes=(Code.INVALID_001, Code.INVALID_002),
)
STATUS = Parameter(
    "status",
    "Only keys with this status.",
    {"type": "string", "enum": list(KeyStatus)},
    KeyStatus.ACTIVE,
    required=False,
)


def shortened(parameter: Parameter) -> Base64:
    """Return the example of a binary field, for an answer that has it."""
    return base64(pybase64.b64decode(str(parameter.example)))


def algorithm_for(operation: Operation, default: Algorithm | None) -> Parameter:
    """Return the field ``algorithm`` of an operation; without a default it is required."""
    usable = [each for each, spec in ALGORITHMS.items() if operation in spec.operations]
    return Parameter(
        "algorithm",
        "The algorithm.",
        {"type": "string", "enum": usable, **({"default": default} if default else {})},
        default or usable[0],
        required=default is None,
        codes=(Code.INVALID_001,),
    )

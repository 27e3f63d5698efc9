"""SLH-DSA from the system's OpenSSL, 3.5 or later, through its EVP functions and ctypes.

OpenSSL releases the interpreter lock, and the distribution patches it.
See EVP_SIGNATURE-SLH-DSA(7), EVP_PKEY_sign(3) and EVP_PKEY_Q_keygen(3).
"""

import ctypes
import ctypes.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_ulong, c_void_p

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.startup.settings import ConfigError

OLDEST = 0x30500000
_OCTET_STRING = 5  # OSSL_PARAM_OCTET_STRING, <openssl/core.h>
_UNMODIFIED = c_size_t(-1).value


class _Parameter(Structure):
    """OSSL_PARAM, <openssl/core.h>."""

    _fields_ = (
        ("key", c_char_p),
        ("data_type", c_uint),
        ("data", c_void_p),
        ("data_size", c_size_t),
        ("return_size", c_size_t),
    )


_FUNCTIONS = {
    "OpenSSL_version_num": (c_ulong, []),
    "EVP_PKEY_Q_keygen": (c_void_p, [c_void_p, c_char_p, c_char_p]),
    "EVP_PKEY_new_raw_private_key_ex": (
        c_void_p,
        [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t],
    ),
    "EVP_PKEY_new_raw_public_key_ex": (
        c_void_p,
        [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t],
    ),
    "EVP_PKEY_get_raw_private_key": (c_int, [c_void_p, c_void_p, POINTER(c_size_t)]),
    "EVP_PKEY_free": (None, [c_void_p]),
    "EVP_PKEY_CTX_new_from_pkey": (c_void_p, [c_void_p, c_void_p, c_char_p]),
    "EVP_PKEY_CTX_free": (None, [c_void_p]),
    "EVP_SIGNATURE_fetch": (c_void_p, [c_void_p, c_char_p, c_char_p]),
    "EVP_SIGNATURE_free": (None, [c_void_p]),
    "EVP_PKEY_sign_message_init": (c_int, [c_void_p, c_void_p, POINTER(_Parameter)]),
    "EVP_PKEY_sign": (c_int, [c_void_p, c_void_p, POINTER(c_size_t), c_char_p, c_size_t]),
    "EVP_PKEY_verify_message_init": (c_int, [c_void_p, c_void_p, POINTER(_Parameter)]),
    "EVP_PKEY_verify": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t]),
    "ERR_clear_error": (None, []),
}


class OpenSsl:
    """OpenSSL's SLH-DSA."""

    def __init__(self, library: str | None = None) -> None:
        """Load the named libcrypto or the system's. Raises ConfigError."""
        path = library or ctypes.util.find_library("crypto")
        if path is None:
            raise ConfigError(
                'slh_dsa = "openssl": the system has no libcrypto; install OpenSSL 3.5'
            )
        try:
            self._crypto = ctypes.CDLL(path)
            version = self._crypto.OpenSSL_version_num
            version.restype = c_ulong
            number = version()
            if number < OLDEST:
                raise ConfigError(
                    f'slh_dsa = "openssl" needs OpenSSL 3.5 or later; {path} is {_dotted(number)}'
                )
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(self._crypto, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise ConfigError(f'slh_dsa = "openssl": {error}') from None
        for algorithm in PARAMETER_SETS:
            scheme = self._crypto.EVP_SIGNATURE_fetch(None, algorithm.encode(), None)
            if scheme is None:
                raise ConfigError(f'slh_dsa = "openssl": {path} has no {algorithm}')
            self._crypto.EVP_SIGNATURE_free(scheme)

    def generate(self, algorithm: Algorithm) -> bytes:
        """Return a new private key (4n bytes)."""
        key = _require_pointer(self._crypto.EVP_PKEY_Q_keygen(None, None, algorithm.encode()))
        try:
            size = c_size_t(PARAMETER_SETS[algorithm].private_key)
            raw = ctypes.create_string_buffer(size.value)
            _check(self._crypto.EVP_PKEY_get_raw_private_key(key, raw, byref(size)))
            return raw.raw
        finally:
            self._crypto.EVP_PKEY_free(key)

    def sign(
        self, algorithm: Algorithm, private_key: bytes, message: bytes, context: bytes
    ) -> bytes:
        """Return a hedged signature. Raises ValueError on a private key of a wrong size.

        It is computed twice with the same randomizer. A fault in one computation can give a valid
        signature that reveals the private key. Raises InvalidSignature if the two differ.
        """
        randomizer = os.urandom(PARAMETER_SETS[algorithm].n)
        first, second = (
            self._sign(algorithm, private_key, message, context, randomizer) for _ in range(2)
        )
        if first != second:
            raise InvalidSignature
        return first

    def _sign(
        self,
        algorithm: Algorithm,
        private_key: bytes,
        message: bytes,
        context: bytes,
        randomizer: bytes,
    ) -> bytes:
        load = self._crypto.EVP_PKEY_new_raw_private_key_ex
        key = _require_pointer(load(None, algorithm.encode(), None, private_key, len(private_key)))
        with self._context(algorithm, key) as (operation, scheme):
            start = self._crypto.EVP_PKEY_sign_message_init
            parameters = _parameters(
                {b"context-string": context, b"test-entropy": randomizer}  # addrnd of algorithm 22
            )
            _check(start(operation, scheme, parameters))
            size = c_size_t(PARAMETER_SETS[algorithm].signature)
            signature = ctypes.create_string_buffer(size.value)
            sign = self._crypto.EVP_PKEY_sign
            _check(sign(operation, signature, byref(size), message, len(message)))
            return signature.raw[: size.value]

    def verify(
        self,
        algorithm: Algorithm,
        public_key: bytes,
        message: bytes,
        context: bytes,
        signature: bytes,
    ) -> None:
        """Raise InvalidSignature unless the signature is valid. Any size is allowed."""
        load = self._crypto.EVP_PKEY_new_raw_public_key_ex
        key = _require_pointer(load(None, algorithm.encode(), None, public_key, len(public_key)))
        with self._context(algorithm, key) as (operation, scheme):
            start = self._crypto.EVP_PKEY_verify_message_init
            _check(start(operation, scheme, _parameters({b"context-string": context})))
            verify = self._crypto.EVP_PKEY_verify
            holds = verify(operation, signature, len(signature), message, len(message))
            self._crypto.ERR_clear_error()
            if holds != 1:
                raise InvalidSignature

    @contextmanager
    def _context(self, algorithm: Algorithm, key: int) -> Iterator[tuple[int, int]]:
        """Yield the contexts of one operation, and free them and the key afterwards."""
        operation = scheme = None
        try:
            operation = _require_pointer(self._crypto.EVP_PKEY_CTX_new_from_pkey(None, key, None))
            scheme = _require_pointer(
                self._crypto.EVP_SIGNATURE_fetch(None, algorithm.encode(), None)
            )
            yield operation, scheme
        finally:
            self._crypto.EVP_SIGNATURE_free(scheme)
            self._crypto.EVP_PKEY_CTX_free(operation)
            self._crypto.EVP_PKEY_free(key)


def is_installed() -> bool:
    """Return whether the system has an OpenSSL of 3.5 or later with these parameter sets."""
    try:
        OpenSsl()
    except ConfigError:
        return False
    return True


def _parameters(values: Mapping[bytes, bytes]) -> ctypes.Array[_Parameter]:
    """Return an array of OSSL_PARAM. The values must live as long as the array."""
    return (_Parameter * (len(values) + 1))(
        *(
            _Parameter(
                name, _OCTET_STRING, ctypes.cast(c_char_p(value), c_void_p), len(value), _UNMODIFIED
            )
            for name, value in values.items()
        ),
        _Parameter(None, 0, None, 0, 0),
    )


def _require_pointer(pointer: int | None) -> int:
    if pointer is None:
        raise ValueError("OpenSSL refused a key")
    return pointer


def _check(result: int) -> None:
    if result != 1:
        raise ValueError("OpenSSL refused an operation")


def _dotted(version: int) -> str:
    return f"{version >> 28}.{version >> 20 & 0xFF}.{version >> 4 & 0xFFFF}"

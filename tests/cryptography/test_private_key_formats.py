"""Private keys as OpenSSL writes them."""

import ctypes
from ctypes import byref, c_char_p, c_void_p

from pqkeep_keyservice.crypto import pkcs8
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm


def test_slh_dsa_keys_of_openssl(openssl_library: str) -> None:
    """OpenSSL's SLH-DSA private keys are decoded to what it holds."""
    crypto = ctypes.CDLL(openssl_library)
    crypto.EVP_PKEY_Q_keygen.restype = c_void_p
    crypto.EVP_PKEY_Q_keygen.argtypes = [c_void_p, c_void_p, c_char_p]
    crypto.i2d_PrivateKey.argtypes = [c_void_p, c_void_p]
    crypto.EVP_PKEY_free.argtypes = [c_void_p]
    crypto.EVP_PKEY_get_raw_private_key.argtypes = [c_void_p, c_void_p, c_void_p]
    for algorithm in (each for each in Algorithm if each.startswith("SLH-DSA")):
        key = crypto.EVP_PKEY_Q_keygen(None, None, algorithm.encode())
        out = c_void_p()
        data = ctypes.string_at(out, crypto.i2d_PrivateKey(key, byref(out)))
        size = pkcs8.SEED_SIZE[algorithm]
        raw, length = ctypes.create_string_buffer(size), ctypes.c_size_t(size)
        assert crypto.EVP_PKEY_get_raw_private_key(key, raw, byref(length)) == 1
        crypto.EVP_PKEY_free(key)
        assert bytes(pkcs8.decode(algorithm, Secret(data)).reveal()) == raw.raw

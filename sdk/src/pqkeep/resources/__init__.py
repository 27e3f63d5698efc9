"""The operations by resource: which fields go out, which come back.

Each is written once, as a method that describes its call (see pqkeep._operation). Every one raises
PqkeepError. Where ``algorithm`` may be left out, the service takes ``Kyber768`` to encrypt and
``Dilithium3`` to sign, and a compliance profile its own; where ``key_version`` may be, it takes the
active key.
"""

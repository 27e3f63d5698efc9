"""The operations by resource: fields of requests and fields of responses.

Each operation is written once, as a method that describes its call (see pqkeep._operation). Every
operation raises PqkeepError. Without ``algorithm``, the service encrypts with ``Kyber768`` and
signs with ``Dilithium3``, or the compliance profile chooses. Without ``key_version``, the service
uses the active key.
"""

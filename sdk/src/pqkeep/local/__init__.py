"""Local encryption: data of any size is encrypted on this machine. The service never sees it.

    client.local.encrypt_file("report.pdf", "report.pdf.pqk")
    client.local.decrypt_file("report.pdf.pqk", "report.pdf")

Encryption needs only public keys: ``pqkeep.local.encrypt`` works without a service. For decryption,
the service gets a KEM ciphertext from the header, and returns the shared secret that unwraps the
file key. Re-encryption wraps the file key again, and does not change the data.

docs/local-format.md describes the format, and docs/local-encryption.md the protection. It needs the
extra ``pqkeep[local]``.
"""

from pqkeep.local._async_local import AsyncLocal
from pqkeep.local._encryption import (
    decrypt,
    decrypt_file,
    decrypt_stream,
    encrypt,
    encrypt_file,
    encrypt_for_service,
    encrypt_stream,
)
from pqkeep.local._header import DEFAULT_CAPACITY, MOST_RECIPIENTS, Decapsulate, Header, read_header
from pqkeep.local._local import Local
from pqkeep.local._primitives import encapsulate
from pqkeep.local._re_encryption import re_encrypt, re_encrypt_file, re_encrypt_stream
from pqkeep.local._recipients import DEFAULT_KEYRING, Recipient, WrappedFileKey
from pqkeep.local._streams import FilePath, Reader, Writer

__all__ = [
    "DEFAULT_CAPACITY",
    "DEFAULT_KEYRING",
    "MOST_RECIPIENTS",
    "AsyncLocal",
    "Decapsulate",
    "FilePath",
    "Header",
    "Local",
    "Reader",
    "Recipient",
    "WrappedFileKey",
    "Writer",
    "decrypt",
    "decrypt_file",
    "decrypt_stream",
    "encapsulate",
    "encrypt",
    "encrypt_file",
    "encrypt_for_service",
    "encrypt_stream",
    "re_encrypt",
    "re_encrypt_file",
    "re_encrypt_stream",
    "read_header",
]

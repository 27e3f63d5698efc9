"""Local encryption: data of any size is encrypted here, and the service sees none of it.

    client.local.encrypt_file("report.pdf", "report.pdf.pqk")
    client.local.decrypt_file("report.pdf.pqk", "report.pdf")

Encryption needs a public key and no service; ``pqkeep.local.encrypt`` and its like take one. For
decryption the service is sent the KEM ciphertext from the header, and returns the shared secret.

The format is in docs/local-format.md, what it protects in docs/local-encryption.md. It needs the
extra ``pqkeep[local]``.
"""

from pqkeep.local._async_local import AsyncLocal
from pqkeep.local._decryption import Decapsulate, decrypt, decrypt_file, decrypt_stream
from pqkeep.local._encapsulation import encapsulate
from pqkeep.local._encryption import encrypt, encrypt_file, encrypt_for_service, encrypt_stream
from pqkeep.local._files import FilePath
from pqkeep.local._header import Header, read_header
from pqkeep.local._local import Local
from pqkeep.local._streams import Reader, Writer

__all__ = [
    "AsyncLocal",
    "Decapsulate",
    "FilePath",
    "Header",
    "Local",
    "Reader",
    "Writer",
    "decrypt",
    "decrypt_file",
    "decrypt_stream",
    "encapsulate",
    "encrypt",
    "encrypt_file",
    "encrypt_for_service",
    "encrypt_stream",
    "read_header",
]

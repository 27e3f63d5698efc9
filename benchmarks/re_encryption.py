"""Measures moving ciphertexts to another algorithm: by re-encryption, and by the client itself.

Run as a script; it only reports. It starts a real installation on loopback. The Python client moves
the same ciphertexts from Kyber768 to X-Wing in batches: by re-encrypt, and by decrypting and
encrypting. Both alternate, because the machine is shared.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.installation import API, RATE, ask, service
from pqkeep import Client
from pqkeep.models import Ciphertext

SOURCE, TARGET = "Kyber768", "X-Wing"
PLAINTEXT = bytes(256)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way")
    parser.add_argument("--items", type=int, default=10_000, help="ciphertexts to move")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="pqkeep-bench-") as folder,
        service(Path(folder)) as (_, ready),
        Client(ready["base_url"], ready["api_key"]) as client,
    ):
        tenant = f"{ready['base_url']}{API}/tenants/{ready['tenant_id']}"
        ask("PATCH", tenant, {"requests_per_minute": RATE}, ready["operator_key"])
        for algorithm in (SOURCE, TARGET):
            client.keys.generate(algorithm, if_absent=True)
        plaintexts = ({"plaintext": PLAINTEXT} for _ in range(arguments.items))
        sealed = [
            {"ciphertext": each.ciphertext, "key_version": each.key_version}
            for each in client.kem.encrypt_many(plaintexts, algorithm=SOURCE)
            if isinstance(each, Ciphertext)
        ]
        ways = {"re-encrypt": re_encrypted, "decrypt, then encrypt": encrypted_again}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                rates[name].append(len(sealed) / _seconds(way, client, sealed))
    print(f"{len(sealed):,} ciphertexts, {SOURCE} to {TARGET}, items/s")
    for name, found in rates.items():
        print(f"{name:22} {median(found):8,.0f}")


Sealed = Sequence[dict[str, object]]


def re_encrypted(client: Client, sealed: Sealed) -> int:
    """Re-encrypt them in the key service; return their number."""
    moved = client.kem.re_encrypt_many(sealed, algorithm=SOURCE, to_algorithm=TARGET)
    return sum(not isinstance(each, Exception) for each in moved)


def encrypted_again(client: Client, sealed: Sealed) -> int:
    """Decrypt and encrypt them again, one by one; return their number."""
    opened = client.kem.decrypt_many(sealed, algorithm=SOURCE)
    items = ({"plaintext": each} for each in opened if isinstance(each, bytes))
    moved = client.kem.encrypt_many(items, algorithm=TARGET)
    return sum(not isinstance(each, Exception) for each in moved)


def _seconds(way: Callable[[Client, Sealed], int], client: Client, sealed: Sealed) -> float:
    began = time.perf_counter()
    if way(client, sealed) != len(sealed):
        raise SystemExit("not all were moved")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

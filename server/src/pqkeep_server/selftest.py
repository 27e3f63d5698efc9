"""``pqkeepd selftest``: every algorithm against its known answer and itself, as a table."""

from collections.abc import Mapping

from rich.table import Table

from pqkeep_keyservice.crypto import selftest
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS, Implementation
from pqkeep_keyservice.crypto.slhdsa_openssl import OpenSsl, is_installed
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm


def run(openssl: str | None) -> tuple[Table, bool]:
    """Return the table, and whether everything passed. Raises ConfigError.

    ``openssl``: "" for the system's libcrypto, or a library's path; None for the system's if it has
    SLH-DSA, else pqcrypto.
    """
    is_pqcrypto = openssl is None and not is_installed()
    implementation: Implementation = Pqcrypto() if is_pqcrypto else OpenSsl(openssl or None)
    passed = selftest.run(signature_schemes(implementation))
    return _table(passed, type(implementation).__name__), all(passed.values())


def _table(passed: Mapping[Algorithm, bool], slh_dsa: str) -> Table:
    table = Table("algorithm", "standard", "implementation", "result")
    for algorithm, holds in passed.items():
        table.add_row(
            algorithm,
            ALGORITHMS[algorithm].standard,
            slh_dsa.lower() if algorithm in PARAMETER_SETS else "cryptography",
            "[green]passed[/green]" if holds else "[red]FAILED[/red]",
        )
    return table

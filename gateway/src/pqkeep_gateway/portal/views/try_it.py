"""Operations to try in the browser."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.keys import Key
from pqkeep_gateway.languages import said
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.views.keyrings import in_keyring, offered
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyStatus

OFFERED = 200
"""Retired versions to choose from, at most."""
MAX_FILE = 256 * 1024
"""Bytes of a text or file, at most."""
MAX_OUTPUT = MAX_FILE + 64 * 1024
"""Bytes of an operation's output, at most."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Two operations. The second one reads the output of the first one."""

    name: str
    title: str
    makes: Operation
    reads: Operation
    takes: str
    """The field of the text or file."""
    made: str
    """The field of the output."""
    make: str
    """The button of the first operation."""
    read: str
    """The button of the second operation."""
    output: str
    """The heading of the output."""
    usual: Algorithm
    """The algorithm of a first key."""

    @property
    def verifies(self) -> bool:
        """Whether the second operation compares the text with the output."""
        return self.takes == "message"

    @property
    def first(self) -> str:
        """The endpoint of the first operation."""
        return self.makes.replace("-", "_")

    @property
    def second(self) -> str:
        """The endpoint of the second operation."""
        return self.reads.replace("-", "_")


PAIRS = (
    Operations(
        "encrypt",
        "Encrypt and decrypt",
        Operation.ENCRYPT,
        Operation.DECRYPT,
        "plaintext",
        "ciphertext",
        make="Encrypt",
        read="Decrypt",
        output="Ciphertext",
        usual=Algorithm.ML_KEM_768,
    ),
    Operations(
        "sign",
        "Sign and verify",
        Operation.SIGN,
        Operation.VERIFY,
        "message",
        "signature",
        make="Sign",
        read="Verify",
        output="Signature",
        usual=Algorithm.ML_DSA_65,
    ),
    Operations(
        "mac",
        "Compute and verify MACs",
        Operation.COMPUTE_MAC,
        Operation.VERIFY_MAC,
        "message",
        "mac",
        make="Compute the MAC",
        read="Verify",
        output="MAC",
        usual=Algorithm.HMAC_SHA_256,
    ),
)


async def _read(visit: Visit) -> Content:
    keyring = visit.query.get("keyring") or DEFAULT_KEYRING
    named = in_keyring(keyring)
    keyrings, active, retired = await asyncio.gather(
        offered(visit.reader, keyring),
        visit.reader.section("list_keys", status=KeyStatus.ACTIVE.value, **named),
        visit.reader.section("list_keys", status=KeyStatus.RETIRED.value, limit=OFFERED, **named),
    )
    chosen = next((pair for pair in PAIRS if pair.name == visit.query.get("do")), PAIRS[0])
    writing = _usable(active.data.keys if active.data else (), chosen.makes)
    return {
        "keyring": keyring,
        "keyrings": keyrings,
        "named": named,
        "error": active.error or retired.error,
        "pairs": PAIRS,
        "pair": chosen,
        "writing": [
            (key.algorithm.value, f"{key.algorithm.value} · version {key.key_version}")
            for key in writing
        ],
        "reading": [
            (
                f"{key.algorithm.value}:{key.key_version}",
                f"{key.algorithm.value} · version {key.key_version} · {said(key.status.value)}",
            )
            for key in (
                *writing,
                *reversed(_usable(retired.data.keys if retired.data else (), chosen.reads)),
            )
        ],
        "max_file": MAX_FILE,
        "max_output": MAX_OUTPUT,
    }


def _usable(keys: Sequence[Key], operation: Operation) -> list[Key]:
    return [key for key in keys if operation in ALGORITHMS[key.algorithm].operations]


PAGES = (
    Page(
        path="/try",
        title="Try it",
        template="try_it/page.html",
        permission=Permission.USE_KEYS,
        read=_read,
        icon="try",
    ),
)

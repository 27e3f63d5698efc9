"""Campaigns, by both clients, against the real service."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pqkeep import (
    CampaignSource,
    CampaignTarget,
    Client,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ScannedVersion,
)

SOURCES = [CampaignSource(algorithm="Kyber768", key_versions=(1, 2))]
TARGET = CampaignTarget(algorithm="ML-KEM-1024")
DIGEST = "ab" * 32


def test_a_campaign_is_planned_stated_and_closed(client: Client) -> None:
    """Every method of a campaign returns what the service has; a scan counts the sources."""
    with pytest.raises(NotFoundError):
        client.campaigns.get("cards")
    made = client.campaigns.put("cards", sources=SOURCES, target=TARGET, quiet_days=7)
    assert (made.sources, made.target, made.state) == (tuple(SOURCES), TARGET, "open")
    assert client.campaigns.list() == (client.campaigns.get("cards"),) == (made,)
    now = datetime.now(UTC)
    counts = [
        ScannedVersion(algorithm="Kyber768", key_version=1, count=3),
        ScannedVersion(algorithm="Kyber768", key_version=3, count=4),
    ]
    scan: dict[str, Any] = {"place": "cards", "sha256": DIGEST, "counts": counts}
    stated = client.campaigns.add_scan("cards", scanned_at=now, unreadable=1, **scan)
    assert (stated.left, stated.other, stated.unreadable) == (3, 4, 1)
    with pytest.raises(ConflictError):
        client.campaigns.add_scan("cards", scanned_at=now - timedelta(hours=1), **scan)
    assert client.campaigns.close("cards").state == "closed"


def test_a_move_names_its_campaign(client: Client) -> None:
    """A re-encryption of the campaign succeeds, and one from another key is refused."""
    for algorithm in ("Kyber768", "X-Wing", "ML-KEM-1024"):
        client.keys.generate(algorithm)
    client.campaigns.put("cards", sources=SOURCES, target=TARGET)
    for algorithm, is_source in (("Kyber768", True), ("X-Wing", False)):
        old = client.kem.encrypt(b"4111", algorithm=algorithm)
        named: dict[str, Any] = {
            "key_version": old.key_version,
            "algorithm": algorithm,
            "to_algorithm": "ML-KEM-1024",
            "campaign": "cards",
        }
        if is_source:
            assert client.kem.re_encrypt(old.ciphertext, **named).moved
            found = client.campaigns.progress("cards")
            assert (found.moved, found.left, found.canary) == (1, None, "none")
            (moved,) = found.moved_by_version
            assert (moved.key_version, moved.target_algorithm) == (1, "ML-KEM-1024")
            assert not found.is_quiet
            continue
        with pytest.raises(InvalidRequestError):
            client.kem.re_encrypt(old.ciphertext, **named)

"""The removal of a shard loses no needed data, and the shard's log stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.key_service import running_key_service
from tests.shards.test_tenant_moves import moves, pqkeepd, until_served
from tests.shards.test_two_shards import is_readable, use

from pqkeep_gateway import config as gateway_config
from pqkeep_server.initialise import Layout

if TYPE_CHECKING:
    from tests.shards.conftest import TwoShards


def test_a_shard_is_removed(two_shards: TwoShards) -> None:
    """A needed shard is not removed.

    Afterwards its tenants work elsewhere, and its log is complete.
    """
    tenant = two_shards.new_tenant("b")
    encrypted = use(tenant)
    settings = two_shards.layout.gateway_settings.read_text()
    shard = Layout(two_shards.layout.directory, "b")

    def refusal(*options: str) -> str:
        refused = pqkeepd(two_shards, "shard", "remove", "b", *options)
        assert refused.returncode == 1
        assert two_shards.layout.gateway_settings.read_text() == settings
        assert shard.key_service_settings.exists()
        return refused.stderr

    assert "accepts new tenants" in refusal("--leave-records")
    assert moves(two_shards).drain("b") >= 1
    two_shards.until(lambda: "wait for its log" not in refusal())
    assert "records of tenants that were moved (1)" in refusal()
    with two_shards.without("b"):
        assert "does not respond" in refusal("--leave-records")
    two_shards.until_serving()
    until_served(two_shards, tenant)
    log = two_shards.operator.get("/audit/keys", shard="b")["log_id"]
    assert tenant.get("/audit/keys")["logs"][0] == log
    records = two_shards.operator.get("/audit/records", shard="b", limit="500")["records"]

    removed = pqkeepd(two_shards, "shard", "remove", "b", "--leave-records")
    assert removed.returncode == 0, removed.stderr
    assert str(shard.key_service) in removed.stdout
    assert "b" not in gateway_config.read(two_shards.layout.gateway_settings).key_services
    assert [each.stored.name for each in moves(two_shards).list()] == ["default"]
    assert is_readable(tenant, encrypted)
    assert "logs" not in tenant.get("/audit/keys")
    assert tenant.get("/audit/keys")["log_id"] != log
    two_shards.until(
        lambda: (
            "remove-shard"
            in {
                each["operation"]
                for each in two_shards.operator.get(
                    "/audit/records", operation="remove-shard", limit="10"
                )["records"]
            }
        )
    )

    two_shards.stop("b")
    output = shard.key_service / "output"
    with running_key_service(shard.removed_settings, output):  # which compares the log at its start
        two_shards.until_serving()
        again = two_shards.operator.get("/audit/records", shard="b", limit="500")["records"]
        assert again[: len(records)] == records
        assert two_shards.operator.get("/audit/keys", shard="b")["log_id"] == log

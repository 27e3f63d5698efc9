"""What people are called beside their identifiers."""

from collections.abc import Mapping

from pqkeep_gateway.portal.pages import MOST_NAMED
from pqkeep_gateway.portal.reading import Reader
from pqkeep_protocol.audit_events import PERSON


async def addresses(reader: Reader) -> Mapping[str, str]:
    """Return members' addresses by principal; none, where they cannot be read."""
    members = (await reader.section("list_members", limit=MOST_NAMED)).data
    return {f"{PERSON}{each.id}": each.email for each in members.members} if members else {}

"""docs/configuration.md has every setting, as the processes define them."""

from pathlib import Path

import pytest

from pqkeep_server.settings_reference import ROLES, reference, settings_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_reference_is_current() -> None:
    """It is what python -m pqkeep_server.settings_reference writes."""
    assert DOCUMENT.read_text() == reference()


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_is_explained(role: str) -> None:
    """Each setting has a text of its own in the source."""
    form, _ = ROLES[role]
    assert [each.name for each in settings_of(form) if not each.explanation] == []

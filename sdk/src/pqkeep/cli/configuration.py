"""The service and the credential of a command, with their sources.

The client decides (see pqkeep.client). This module follows the same rules, to show the choice.
"""

from dataclasses import dataclass

from pqkeep.cli.invocation import Invocation
from pqkeep.compliance import Rules, profile_named
from pqkeep.profiles import DEFAULT, Profile, environment, profile_file, read_profile

NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The values in use, with their sources. It never has an API key."""

    url: str
    url_from: str
    api_key_from: str
    profile: str | None
    compliance_profile: str | None


def configuration(invocation: Invocation) -> Configuration:
    """Return the configuration of a command. Raises ConfigurationError."""
    url, url_from = _url(invocation)
    name = _profile_name(invocation)
    stored = None if name is None else read_profile(name)
    place = f"profile {name} in {profile_file()}" if stored is not None else NOWHERE
    if stored is not None and url is None:
        url, url_from = stored.url, place
    return Configuration(
        url=url or "",
        url_from=url_from,
        api_key_from=_api_key_from(invocation, stored, place),
        profile=name,
        compliance_profile=_compliance_profile(invocation, stored),
    )


def rules(invocation: Invocation) -> Rules:
    """Return the rules that need no service. Raises ConfigurationError."""
    name, stored = _profile_name(invocation), None
    if name is not None and (name != DEFAULT or profile_file().exists()):
        stored = read_profile(name)
    return Rules(profile_named(_compliance_profile(invocation, stored)))


def _profile_name(invocation: Invocation) -> str | None:
    """Return the name of the profile to read, or None if the address comes from elsewhere."""
    named = invocation.profile or environment("PQKEEP_PROFILE")
    return named or (None if _url(invocation)[0] else DEFAULT)


def _compliance_profile(invocation: Invocation, stored: Profile | None) -> str | None:
    return invocation.compliance_profile or (stored.compliance_profile if stored else None)


def _url(invocation: Invocation) -> tuple[str | None, str]:
    if invocation.url:
        return invocation.url, "--url"
    return environment("PQKEEP_URL"), "PQKEEP_URL"


def _api_key_from(invocation: Invocation, stored: Profile | None, place: str) -> str:
    if invocation.api_key_file is not None:
        return f"--api-key-file {invocation.api_key_file}"
    if file := environment("PQKEEP_API_KEY_FILE"):
        return f"PQKEEP_API_KEY_FILE {file}"
    if environment("PQKEEP_API_KEY"):
        return "PQKEEP_API_KEY"
    if file := environment("PQKEEP_TOKEN_FILE"):
        return f"PQKEEP_TOKEN_FILE {file}"
    if stored is None:
        return NOWHERE
    return f"{stored.api_key_file}, by {place}" if stored.api_key_file else place

"""Chooses the settings of a backup that the restored installation keeps.

A restore sets the places of databases and secrets itself, and never keeps settings that load code.
It keeps settings of the service's behaviour. All others name places or peers: ports, mail, payment,
rate limits, files. The operator names the ones to keep, because a copy must not send mail or take
payments by accident.
"""

import json
from collections.abc import Collection, Iterator, Mapping

from pqkeep_protocol.documents import MalformedDocumentError, decode_toml
from pqkeep_server.settings_file import Settings, SettingsFileError, edited

SET = frozenset(
    {
        *("socket", "operator_socket", "gateway_uid", "key_service_socket", "link"),
        *("shard", "shards", "transfer_key_file"),
        *("database", "database_password_file"),
        *("pepper_file", "root_key_file", "root_keys"),
    }
)
"""Settings that the restore writes."""
KEPT = frozenset(
    {
        *("operator_digest", "signup", "password_costs", "api_key_overlap_seconds", "cookies"),
        *(
            "approval_days",
            "session_lifetime_days",
            "default_plan",
            "self_service",
            "slh_dsa",
            "verify_signatures",
            "log_format",
        ),
        *("require_post_quantum", "access_log", "gateways", "valkey_memory_mib"),
        "least_destruction_days",
        *("origin", "witnesses"),  # witnesses must see the restored log under its name
    }
)
"""Settings that are always kept."""
NEVER = frozenset({"openssl_library", "valkey_server", "key_service_environment"})
"""Settings that load code or can name a variable that does."""


def choices(text: str) -> Mapping[str, str]:
    """Return the settings that can be kept or left out, each as text.

    Raises SettingsFileError.
    """
    return {
        name: json.dumps(value, default=str)
        for name, value in read(text).items()
        if name not in SET | KEPT | NEVER
    }


def restored(text: str, keep: Collection[str], settings: Settings) -> str:
    """Return the text of a settings file with the kept settings and those of the restore.

    Raises SettingsFileError.
    """
    left_out = dict.fromkeys(_left_out(text, keep))
    return edited(text, {**left_out, **settings})


def _left_out(text: str, keep: Collection[str]) -> Iterator[str]:
    for name in read(text):
        if name in NEVER or name not in SET | KEPT | set(keep):
            yield name


def read(text: str) -> dict[str, object]:
    """Return the settings in a file. Raises SettingsFileError."""
    try:
        return decode_toml(text, dict[str, object])
    except MalformedDocumentError as error:
        raise SettingsFileError(f"cannot read the settings: {error}") from None

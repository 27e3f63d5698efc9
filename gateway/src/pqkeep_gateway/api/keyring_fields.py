"""The fields of keyrings: a description, labels, purposes, and what happens to keys by itself."""

import re
from typing import cast

from pqkeep_gateway.api.key_fields import keyring_field
from pqkeep_gateway.http.field import Field, InvalidValueError, integer_field, text_field
from pqkeep_protocol.documents import is_printable
from pqkeep_protocol.keyrings import (
    ALL_PURPOSES,
    LABEL_NAME,
    MAX_DAYS,
    MAX_DESCRIPTION,
    MAX_LABEL_VALUE,
    MAX_LABELS,
    KeyPurpose,
)

_LABEL = "[a-z0-9][a-z0-9._-]{0,63}"
_is_label_name = re.compile(LABEL_NAME).fullmatch
_EACH_LABEL = (
    f"must be an object of at most {MAX_LABELS} labels: names of 1 to 64 of a-z 0-9 . _ -, a letter"
    f" or digit first, and texts of at most {MAX_LABEL_VALUE} printable characters"
)
_EACH_PURPOSE = "must be a list of purposes, at least one: " + ", ".join(KeyPurpose)
_A_LABEL = "must be a label's name and value with a colon between them"


def _is_label_value(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LABEL_VALUE and is_printable(value)


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(cast("dict[str, object]", value)) > MAX_LABELS:
        raise InvalidValueError(_EACH_LABEL)
    labels = cast("dict[str, object]", value)
    if not all(_is_label_name(name) and _is_label_value(each) for name, each in labels.items()):
        raise InvalidValueError(_EACH_LABEL)
    return cast("dict[str, str]", labels)


def _purposes(value: object) -> tuple[KeyPurpose, ...]:
    named = cast("list[object]", value) if isinstance(value, list) else []
    if not named or any(each not in ALL_PURPOSES for each in named):
        raise InvalidValueError(_EACH_PURPOSE)
    return tuple(each for each in ALL_PURPOSES if each in named)


def _label(value: object) -> tuple[str, str]:
    name, colon, text = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (colon and _is_label_name(name) and _is_label_value(text)):
        raise InvalidValueError(_A_LABEL)
    return name, text


def _days(name: str, description: str, example: int) -> Field[int]:
    return integer_field(name, description, example, at_least=0, at_most=MAX_DAYS)


_NO_KEYRING = "no such keyring"
NEW_NAME = keyring_field("name", "The keyring's name, which does not change.")
NAME = keyring_field("name", "The keyring's name.", not_found=_NO_KEYRING)
DESCRIPTION = text_field(
    "description", "What it is for.", "Card numbers", at_most=MAX_DESCRIPTION, at_least=0
)
LABELS = Field(
    name="labels",
    description="Names and values of your own, by which you find it.",
    schema={
        "type": "object",
        "maxProperties": MAX_LABELS,
        "propertyNames": {"pattern": f"^{_LABEL}$"},
        "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_VALUE},
    },
    example={"team": "payments"},
    parse=_labels,
)
PURPOSES = Field(
    name="purposes",
    description="What its keys may be used for.",
    schema={
        "type": "array",
        "items": {"type": "string", "enum": list(ALL_PURPOSES)},
        "minItems": 1,
    },
    example=["encrypt", "decrypt"],
    parse=_purposes,
)
ROTATION_DAYS = _days(
    "rotation_days", "After how many days an active key is rotated by itself. 0: never.", 90
)
ARCHIVE_AFTER_DAYS = _days(
    "archive_after_days",
    "How many days after it was retired a key version is archived by itself, which destroys its"
    " private key. 0: never.",
    0,
)
LABEL = Field(
    name="label",
    description="Only keyrings with this label: its name, a colon and its value.",
    schema={"type": "string", "pattern": f"^{_LABEL}:"},
    example="team:payments",
    parse=_label,
).optional()
AFTER = keyring_field("after", "Only what comes after this keyring, by name.").optional()

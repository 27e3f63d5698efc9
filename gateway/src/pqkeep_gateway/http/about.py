"""What a row says of itself, for the reference: everything that serving it does not need."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import Code


class Caller(StrEnum):
    """Whose credential an endpoint takes."""

    TENANT = "Called with a tenant's API key, or by somebody whose role allows it."
    OPERATOR = "Called with the operator's credential."
    EITHER = (
        "Called with the tenant's API key, by somebody whose role allows it, or with the operator's"
        " credential."
    )
    PEOPLE = "Called by somebody whose role allows it, or with the operator's credential."
    PERSON = "Called by somebody who has signed in."
    ANYONE = "Called without a credential."


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a body, a query or a path."""

    name: str
    description: str
    schema: Mapping[str, object]
    example: object
    required: bool = True
    codes: tuple[Code, ...] = ()
    """What a bad value is answered with, where it is not the operation's code for that.

    Where it is missing and must be there, the first.
    """
    made_by: str = ""
    """The operation whose answer has the real value; the example is cut short then."""

    def optional(self) -> "Parameter":
        """Return the field as one that may be left out."""
        return replace(self, required=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the reference tells beside the docstring of what the endpoint does."""

    name: str
    """The operation's identifier; no two have the same."""
    caller: Caller
    example: Data | None
    """An answer; its type is the answer's type. None: it never succeeds."""
    parameters: tuple[Parameter, ...] = ()
    codes: frozenset[Code] = frozenset()
    """What it can be refused with, beyond what every request can."""
    makes_lines: bool = False
    """Whether it answers with a file of JSON lines instead of the envelope."""

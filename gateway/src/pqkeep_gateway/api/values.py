"""Values that several answers have."""

from typing import Annotated

from msgspec import Meta

from pqkeep_gateway.http.text import Base64, base64_pattern
from pqkeep_protocol.algorithms import Algorithm

SHARED_SECRET_SIZE = 32

KeyVersionUsed = Annotated[int, Meta(ge=1, description="The version of the key that was used.")]
AlgorithmUsed = Annotated[Algorithm, Meta(description="The algorithm that was used.")]
SharedSecret = Annotated[
    Base64,
    Meta(
        description="32 bytes, for use as a symmetric key on your side. Kept nowhere.",
        extra_json_schema={"pattern": base64_pattern([SHARED_SECRET_SIZE])},
    ),
]

"""What can be wrong with encrypted data."""

from pqkeep.errors import PqkeepError


class DecryptionError(PqkeepError):
    """This is not what was encrypted, or not for the key that the service used. Do not retry.

    ``message`` says what is known of the reason. Nothing that was not authenticated came out.
    """

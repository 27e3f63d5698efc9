"""What each request does, on one loaded keyring. Nothing here writes to storage.

An operation returns a Done: the result, the key version that was used, and the change of the
keyring, if any. The audit log makes the change durable together with its record.
"""

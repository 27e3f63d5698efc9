"""What each request does with keys, and nothing about frames, records or databases.

An operation returns an OperationResult: the result, the key version that was used, and the change
of the key, if any. ``transaction`` commits the change together with its audit record.
"""

"""The operations on keys, without frames, records or databases.

An operation returns an OperationResult: the result, the used key version, and the change, if any.
``transaction`` commits the change together with its audit record.
"""

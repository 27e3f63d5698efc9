"""The audit log as data: records, the Merkle tree over them, checkpoints and searches."""

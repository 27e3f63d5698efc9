"""Delivery of mail and of audit records to other systems."""

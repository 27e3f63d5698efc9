"""Backups: their contents, their encryption, and how to restore an installation from one."""

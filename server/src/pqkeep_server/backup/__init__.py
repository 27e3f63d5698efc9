"""Backups: what they hold, how they are encrypted, how an installation comes out of one again."""

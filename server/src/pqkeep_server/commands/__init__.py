"""The commands of ``pqkeepd``: one module for each subject, listed in ``cli.py``."""

"""What the command ``pqkeepd`` can do: one module for each subject, listed in ``cli.py``."""

"""What is installed here."""


def installed_version() -> str:
    """Return this package's version."""
    from importlib.metadata import version  # noqa: PLC0415 - it takes as long to load as typer

    return version("pqkeep")

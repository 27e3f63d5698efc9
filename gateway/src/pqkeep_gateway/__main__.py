"""Starts the gateway: ``python -m pqkeep_gateway SETTINGS.toml [--fd N]``.

With ``--fd`` it serves on a socket that its parent listens on already. Before anything else is
imported, cryptography becomes what this process cannot import.
"""

import sys

from pqkeep_gateway import wall

if __name__ == "__main__":
    wall.build()

    from pqkeep_gateway.process import main  # not before the wall stands

    sys.exit(main())

"""Starts the gateway: ``python -m pqkeep_gateway SETTINGS.toml [--fd N]``.

With ``--fd`` it serves on a socket that its parent listens on already. Before anything else is
imported, cryptography becomes what this process cannot import.
"""

import gc
import sys

from pqkeep_gateway import wall

if __name__ == "__main__":
    wall.build()

    gc.disable()  # of what is imported nothing is garbage, and to look for it takes a sixth longer
    from pqkeep_gateway.process import main  # not before the wall stands

    gc.enable()
    sys.exit(main())

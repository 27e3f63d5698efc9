"""Starts the gateway: ``python -m pqkeep_gateway SETTINGS.toml [--fd N]``.

With ``--fd`` it serves on a socket that its parent listens on already. Before anything else is
imported, cryptography becomes what this process cannot import.
"""

import gc
import sys

from pqkeep_gateway import forbidden_imports

if __name__ == "__main__":
    forbidden_imports.install()

    gc.disable()  # of what is imported nothing is garbage, and to look for it takes a sixth longer
    from pqkeep_gateway.process import main  # only now

    gc.enable()
    sys.exit(main())

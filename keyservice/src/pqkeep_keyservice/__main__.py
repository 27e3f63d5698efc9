"""Starts the key service: ``python -m pqkeep_keyservice SETTINGS.toml``.

Worker processes run this file too when they start, so it imports the service only where it is
meant to run.
"""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # of what is imported nothing is garbage, and to look for it takes a sixth longer
    from pqkeep_keyservice.process import main

    gc.enable()
    sys.exit(main())

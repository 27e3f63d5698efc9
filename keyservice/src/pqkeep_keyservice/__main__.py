"""Starts the key service: ``python -m pqkeep_keyservice SETTINGS.toml``.

Worker processes run this file too when they start, so it imports the service only where it is
meant to run.
"""

import sys

if __name__ == "__main__":
    from pqkeep_keyservice.process import main

    sys.exit(main())

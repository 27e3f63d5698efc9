"""``make typescript``: generate the TypeScript client's types from the API's description."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.typescript.description import CLIENT, encoded

npm = shutil.which("npm") or sys.exit("npm is not installed: apt-get install npm")
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "openapi.json")
    file.write_bytes(encoded())
    subprocess.run([npm, "run", "--silent", "generate", "--", file], cwd=CLIENT, check=True)

"""``make debian13``, ``make debian12``: install, run and use pqkeep in its own Debian tree.

Needs root, mmdebstrap, and the network for Debian's and Python's packages. ``make imagecheck`` runs
the chart's pods from the trees of the images in ``dist/``, in a network of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.deploy.composed import prepare_databases
from tests.deploy.https import check_https
from tests.deploy.images import DATABASES, check_images
from tests.deploy.installation import check_installation
from tests.deploy.tree import SUITES, CampaignError, Suite, Tree, enter, is_inside, prepare

ROOT = Path(__file__).parents[2]
IMAGES = "images"
CAMPAIGNS: Mapping[str, Callable[[Tree, Suite], Iterator[str]]] = {
    "https": check_https,
    "installation": check_installation,
}


def main() -> int:
    """Run the named checks, or all. Exit status 1: a check failed."""
    parser = argparse.ArgumentParser(prog="make debian13")
    parser.add_argument("suite", choices=[*SUITES, IMAGES])
    parser.add_argument("campaigns", nargs="*", choices=[[], *CAMPAIGNS])
    arguments = parser.parse_args()
    if arguments.suite == IMAGES:
        if not is_inside():
            prepare_databases(DATABASES)
        enter("tests.deploy", "--net")
        with tempfile.TemporaryDirectory(prefix="pqkeep-images-") as made:
            return _shown(check_images(Path(made), ROOT / "dist"))
    suite = SUITES[arguments.suite]
    folder, dist = ROOT / ".debian" / suite.name, ROOT / "dist"
    if not is_inside():
        prepare(folder, suite, dist / "run.txt")
    enter("tests.deploy")
    names = arguments.campaigns or CAMPAIGNS
    return _shown(seen for name in names for seen in CAMPAIGNS[name](Tree(folder, dist), suite))


def _shown(observations: Iterator[str]) -> int:
    began = time.monotonic()
    try:
        for seen in observations:
            print(f"ok  {time.monotonic() - began:4.0f} s  {seen}", flush=True)
    except CampaignError as error:
        print(f"FAILED  {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Makes a process of pqkeep note each call of its own code during a request.

Python imports it at the start if ``PYTHONPATH`` has this folder. SIGRTMIN + 1 begins, and SIGRTMIN
+ 2 ends after the running callback of the event loop. The result has one line per call, in a file
named by PQKEEP_ROAD and the process id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from types import CodeType, FrameType

PACKAGES = ("/pqkeep_protocol/", "/pqkeep_gateway/", "/pqkeep_keyservice/")


class Tracer:
    """Notes calls, but not resumed coroutines."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._is_noting = False
        self._frames: list[FrameType] = []
        self._seen: set[int] = set()

    def begin(self, *_: object) -> None:
        """Note calls from now on."""
        self._write()
        self._is_noting = True
        sys.setprofile(self.note)

    def end(self, *_: object) -> None:
        """Write the notes after the callback that sends the response.

        The client has the response before that, and a signal interrupts the callback.
        """
        asyncio.get_running_loop().call_soon_threadsafe(self._end)

    def _end(self) -> None:
        sys.setprofile(None)
        self._is_noting = False
        self._write()

    def _write(self) -> None:
        lines = [_line(frame.f_code) for frame in self._frames]
        partial = f"{self._destination}.{os.getpid()}.partial"
        with open(partial, "w", encoding="utf-8") as file:  # noqa: PTH123 - imported at every start
            file.writelines(lines)
        os.replace(partial, partial.removesuffix(".partial"))  # noqa: PTH105 - likewise
        self._frames, self._seen = [], set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call of pqkeep's code. Frames are kept, so that each id belongs to one frame."""
        if event != "call" or not self._is_noting or id(frame) in self._seen:
            return
        if any(package in frame.f_code.co_filename for package in PACKAGES):
            self._seen.add(id(frame))
            self._frames.append(frame)


def _line(code: CodeType) -> str:
    path = code.co_filename
    begin = max(path.find(package) for package in PACKAGES) + 1
    return f"{path[begin:]}\t{code.co_firstlineno}\t{code.co_qualname}\n"


if destination := os.environ.get("PQKEEP_ROAD"):
    tracer = Tracer(destination)
    threading.setprofile(tracer.note)
    signal.signal(signal.SIGRTMIN + 1, tracer.begin)
    signal.signal(signal.SIGRTMIN + 2, tracer.end)

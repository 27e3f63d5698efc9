"""What becomes of memory that is freed, and when it is looked for."""

import ctypes
import gc

_LIBC = ctypes.CDLL(None)

# mallopt(3), from <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT = 32 * 1024 * 1024
"""Bytes that are free at the end of the heap before any go back to the kernel."""
LARGE = 8 * 1024 * 1024
"""Bytes of an allocation that is outside of the heap: none of a body or a frame is."""
YOUNG = 20_000
"""New objects between two collections: some 32 batches have as many under way."""


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next large body, instead of giving it back each time.

    The kernel clears memory that it gives out, page by page, which took more time than all that
    is done with a body of 1 MiB. Other C libraries are left as they are.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def collect_rarely() -> None:
    """Have the collector look for cycles among what was made from now on, and less often.

    Requests make few cycles. Python looks after every 700 new objects, most of which belong to
    requests under way, and looks at them again and again the more of these there are.
    """
    gc.collect()
    gc.freeze()  # what is here now stays: later collections need not examine it
    gc.set_threshold(YOUNG)

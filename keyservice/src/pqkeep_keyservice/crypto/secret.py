"""Key material that cannot be printed, pickled or hashed, and that is wiped after use."""

from typing import NoReturn, Self


class Secret:
    """A buffer of key material that is wiped on exit from its ``with`` block.

    Wiping is best effort: the libraries underneath keep their own copies while they compute.
    """

    __slots__ = ("_buffer",)
    __hash__ = None  # type: ignore[assignment]  # a hash would leak into dictionaries

    def __init__(self, data: bytes | bytearray) -> None:
        """Own the data. A bytearray is not copied, and is wiped with the secret."""
        self._buffer = data if isinstance(data, bytearray) else bytearray(data)

    def reveal(self) -> memoryview:
        """Return a read-only view of the bytes. Every call needs review."""
        return memoryview(self._buffer).toreadonly()

    def wipe(self) -> None:
        """Overwrite the bytes with zeros."""
        self._buffer[:] = bytes(len(self._buffer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __len__(self) -> int:
        return len(self._buffer)

    def __repr__(self) -> str:
        return f"<Secret: {len(self)} bytes>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be serialized")

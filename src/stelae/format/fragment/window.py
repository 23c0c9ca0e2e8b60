"""A file object over the parts of a file that have been read and verified, for Arrow to decode from."""

from __future__ import annotations


class Window:
    """Serves reads inside the parts given, by offset in the whole file; a read outside them is an OSError."""

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._parts: list[tuple[int, memoryview]] = []
        self._position = 0
        self.closed = False

    def add(self, offset: int, data: memoryview) -> None:
        self._parts.append((offset, data))

    def read(self, size: int = -1) -> memoryview:
        start = self._position
        stop = self._size if size < 0 else min(start + size, self._size)
        for offset, data in self._parts:
            if offset <= start and stop <= offset + len(data):
                self._position = stop
                return data[start - offset : stop - offset]
        raise OSError(f"bytes {start} to {stop} were not read")

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is ever written."""

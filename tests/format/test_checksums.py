"""CRC-32C as others compute it, whichever way the extension module is found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stelae.format.checksums import crc32c

_FIRST = "from stelae.format.checksums import crc32c"
_PACKAGE = "import crc32c as package"


def test_the_checksum_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"6789"), crc32c(b"12345")) == 0xE3069283


@pytest.mark.parametrize("lines", [(_FIRST, _PACKAGE), (_PACKAGE, _FIRST)], ids=["before", "behind"])
def test_it_is_the_function_of_the_package(lines: tuple[str, str]) -> None:
    """Whoever is imported first: the extension module is loaded once."""
    code = "; ".join((*lines, "assert crc32c is package.crc32c"))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

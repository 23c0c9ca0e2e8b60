"""Parquet's split-block Bloom filter, probed. pyarrow writes these filters but cannot ask them.

A filter is a row of 256-bit blocks. The upper half of a value's XXH64 (seed 0, over its plain Parquet bytes) picks the
block, the lower half times eight salts picks one bit in each of the block's eight words. A value that was added always
has its eight bits set: a filter never says no to what is there.
"""

from __future__ import annotations

import struct

import xxhash

from stelae.model.errors import Corruption

_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_BLOCK_BYTES = 32
_BLOCK = struct.Struct("<8I")


def bloom_hash(plain: bytes) -> int:
    return xxhash.xxh64_intdigest(plain, seed=0)


class Bloom:
    def __init__(self, bits: bytes, file: str) -> None:
        if not bits or len(bits) % _BLOCK_BYTES:
            raise Corruption(f"a Bloom filter of {len(bits)} bytes", file)
        self._bits = bits
        self._count = len(bits) // _BLOCK_BYTES

    @staticmethod
    def parse(data: bytes, file: str) -> Bloom:
        """From the header and bits as they lie in the file: the header is a Thrift struct whose first field is the
        size of the bits, which come last."""
        size, shift, at = 0, 0, 1
        while at < min(len(data), 8):
            byte = data[at]
            size |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not byte & 0x80:
                break
        size >>= 1
        if data[:1] != b"\x15" or not 0 < size < len(data):
            raise Corruption("not a Bloom filter", file)
        return Bloom(data[-size:], file)

    def may_contain(self, hashed: int) -> bool:
        words = _BLOCK.unpack_from(self._bits, (((hashed >> 32) * self._count) >> 32) * _BLOCK_BYTES)
        low = hashed & 0xFFFFFFFF
        return all(word >> ((low * salt & 0xFFFFFFFF) >> 27) & 1 for word, salt in zip(words, _SALTS, strict=True))

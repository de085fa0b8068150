"""zarr's zstd and gzip codecs, decoding no more than the chunk that shape and dtype promise.

zarr's own decode whatever the bytes unfold to: 5 KB become gigabytes. Only arrays opened `with bounded()` use these.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import zarr
from numcodecs import zstd
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.registry import register_codec

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec

_CHECKSUM_BYTES = 64  # what codecs below may have added to a chunk
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class _Bounded(BytesBytesCodec):
    _unpacked: Callable[[bytes, int], bytes]  # returns at most so many bytes, or raises an error

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        promised_bytes = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        return chunk_spec.prototype.buffer.from_bytes(self._unpacked(chunk_bytes.to_bytes(), promised_bytes))

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)


class BoundedZstd(_Bounded, ZstdCodec):
    """zstd, for reading."""

    @staticmethod
    def _unpacked(data: bytes, promised_bytes: int) -> bytes:
        stated_bytes = _zstd_content_bytes(data)
        if stated_bytes is None:  # written as a stream, which must be exactly what was promised
            unpacked = bytearray(promised_bytes)
            zstd.decompress(data, unpacked)
            return bytes(unpacked)
        _check(stated_bytes, promised_bytes)
        return bytes(zstd.decompress(data))  # allocates what is stated, and fails where there is more


class BoundedGzip(_Bounded, GzipCodec):
    """gzip of one member, for reading."""

    @staticmethod
    def _unpacked(data: bytes, promised_bytes: int) -> bytes:
        inflater = zlib.decompressobj(wbits=31)
        unpacked = inflater.decompress(data, promised_bytes + _CHECKSUM_BYTES + 1)
        _check(len(unpacked), promised_bytes)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("the gzip stream is cut short, or bytes follow its end")
        return unpacked


def _check(unpacked_bytes: int, promised_bytes: int) -> None:
    if unpacked_bytes > promised_bytes + _CHECKSUM_BYTES:
        raise ValueError(f"it unfolds to more than the {promised_bytes} bytes that shape and dtype promise")


def _zstd_content_bytes(data: bytes) -> int | None:
    """Return the decoded size that a zstd frame states (RFC 8878, 3.1.1.1), None where it states none."""
    if len(data) < 5 or data[:4] != _ZSTD_MAGIC:
        raise ValueError("it is no zstd frame")
    descriptor = data[4]
    single_segment = descriptor >> 5 & 1
    size = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if not size:
        return None
    if len(data) < start + size:
        raise ValueError("it is cut short")
    return int.from_bytes(data[start : start + size], "little") + (256 if size == 2 else 0)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Let the arrays that are opened inside use the codecs of this file."""
    chosen = {}
    for name, codec in (("zstd", BoundedZstd), ("gzip", BoundedGzip)):
        register_codec(name, codec)
        chosen[f"codecs.{name}"] = f"{codec.__module__}.{codec.__qualname__}"
    with zarr.config.set(chosen):
        yield

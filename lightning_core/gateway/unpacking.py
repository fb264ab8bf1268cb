"""Compressed bodies of requests, unpacked within a bound: a few kilobytes can stand for gigabytes."""

from __future__ import annotations

import io
import zlib
from types import MappingProxyType
from typing import Final

from lightning_core.errors import ApiError

_WINDOWS: Final = MappingProxyType({"gzip": 31, "x-gzip": 31, "deflate": 15})
"""zlib's name for each encoding."""
_ZSTD_WINDOW: Final = 2**27
"""Bytes of memory that unpacking may take, as zstd's own command allows."""


def encoding_of(headers: list[tuple[bytes, bytes]]) -> str:
    """How a body is compressed; "identity" if it is not."""
    given = [value for name, value in headers if name == b"content-encoding"]
    return b",".join(given).decode("latin-1").strip().lower() or "identity"


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """The body without its compression. Raises ApiError for one of more than `most` bytes, for a broken one,
    and for another encoding than gzip, deflate and zstd."""
    if encoding in _WINDOWS:
        content = _inflate(body, encoding, most)
    elif encoding == "zstd":
        content = _unpack_zstd(body, most)
    else:
        raise _unsupported(
            f"the content encoding {encoding!r} is not supported; send gzip, deflate, zstd or none"
        )
    if len(content) > most:
        raise ApiError(
            f"the body is longer than {most} bytes once it is unpacked; send less in one request",
            status=413,
            code="too_large",
        )
    return content


def _inflate(body: bytes, encoding: str, most: int) -> bytes:
    stream = zlib.decompressobj(_WINDOWS[encoding])
    try:
        content = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise _broken(f"the body is not {encoding}: {error}") from error
    if len(content) <= most and not stream.eof:
        raise _broken(f"the {encoding} body breaks off")
    if stream.unused_data:
        count = len(stream.unused_data)
        raise _broken(f"{count} bytes follow the end of the {encoding} stream; send one stream")
    return content


def _unpack_zstd(body: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise _unsupported(
            "the content encoding 'zstd' can't be read, as zstandard is not installed; where the gateway "
            "runs: pip install zstandard"
        ) from None
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    try:
        with unpacker.stream_reader(io.BytesIO(body), read_across_frames=False) as stream:
            content = stream.read(most + 1)
            whole = len(content) > most or zstandard.frame_content_size(body) in (-1, len(content))
    except zstandard.ZstdError as error:
        raise _broken(f"the body is not zstd: {error}") from error
    if not whole:
        raise _broken("the zstd body breaks off")
    return bytes(content)


def _broken(words: str) -> ApiError:
    return ApiError(words, code="malformed_body")


def _unsupported(words: str) -> ApiError:
    return ApiError(words, status=415, code="unsupported_media_type")

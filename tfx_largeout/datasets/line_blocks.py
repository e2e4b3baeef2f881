# SPDX-License-Identifier: Apache-2.0
"""line_blocks: a file, compressed or not, as blocks of whole lines in bounded memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, BinaryIO

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 24  # a line of more than a million features
_SHOWN_BYTES = 240  # enough for the 60 characters of a word that a message shows
_MAX_XZ_BYTES = 1 << 28  # four times what `xz -9` asks for
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # of UTF-8, which some editors write


def line_blocks(
    path: str, report: Callable[[int, int], None] | None = None
) -> Generator[tuple[int, bytes], None, None]:
    """Yields (number of the first line, whole lines); line ends are newlines.

    Args:
        path: A plain, gzip, xz or bzip2 file; its first bytes tell which.
        report: Called with (bytes read so far, size of the file) before each block.

    Raises:
        ValueError: A line is too long, or the file can't be unpacked.
    """
    rest, number = b"", 1  # the start of a line, and its number
    with contextlib.closing(_unpacked(path, report)) as blocks:
        while True:
            try:
                block = next(blocks, b"")
            except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
                rule = "whole; it is cut short or damaged"
                if "memory" in str(error).lower():
                    rule = f"one that needs at most {_MAX_XZ_BYTES} bytes of memory to unpack"
                raise ValueError(
                    f"{path}:{number}: a compressed file must be {rule} ({error})"
                ) from error
            data = rest + block
            if not block and data and not data.endswith(b"\n"):
                data += b"\n"
            # Only the first line can be longer than a block.
            length = data.find(b"\n")
            if (len(data) if length < 0 else length) > _MAX_LINE_BYTES:
                raise ValueError(
                    f"{path}:{number}: a line must have at most {_MAX_LINE_BYTES} bytes; "
                    f"got more: {shorten(data)}"
                )
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            if end:
                lines = data[:end].replace(b"\r\n", b"\n")
                if number == 1:
                    lines = lines.removeprefix(_BYTE_ORDER_MARK)
                yield number, lines
                number += lines.count(b"\n")
            if not block:
                return


def _unpacked(path: str, report: Callable[[int, int], None] | None) -> Generator[bytes, None, None]:
    """Yields the content of a plain or compressed file (by its first bytes), in blocks."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        magic = file.read(6)
        file.seek(0)
        if magic == b"\xfd7zXZ\x00":
            blocks = _unpacked_streams(file, _new_xz_decoder)
        elif magic.startswith(b"BZh"):
            blocks = _unpacked_streams(file, bz2.BZ2Decompressor)
        else:
            stream: Any = gzip.GzipFile(fileobj=file) if magic.startswith(b"\x1f\x8b") else file
            blocks = iter(lambda: stream.read(_BLOCK_BYTES), b"")
        for block in blocks:
            if report:
                report(min(file.tell(), size), size)
            yield block


def _unpacked_streams(file: BinaryIO, new_decoder: Callable[[], Any]) -> Iterator[bytes]:
    """As `lzma.open` and `bz2.open`, but raises for data after the streams, except zeros."""
    decoder, block = new_decoder(), b""
    while True:
        data = b""
        if decoder.eof:  # zeros or another stream may follow
            data = decoder.unused_data.lstrip(b"\0")
            while not data:
                data = file.read(_BLOCK_BYTES)
                if not data:
                    yield block
                    return
                data = data.lstrip(b"\0")
            decoder = new_decoder()
        elif decoder.needs_input:
            data = file.read(_BLOCK_BYTES)
            if not data:
                raise EOFError("the end of the compressed data is missing")
        try:
            block += decoder.decompress(data, _BLOCK_BYTES - len(block))
        except OSError as error:  # bz2's error for damage
            raise EOFError(str(error)) from error
        if len(block) == _BLOCK_BYTES:
            yield block
            block = b""


def _new_xz_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)


def shorten(text: bytes) -> str:
    """Returns the start of a text from a file, for a message."""
    shown = text[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")

# SPDX-License-Identifier: Apache-2.0
"""line_blocks: a file, packed or not, as blocks of whole lines in bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import zlib
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 24  # a line of more than a million features
_SHOWN_BYTES = 240  # as much of a word as the 60 characters that a message shows can take
_MAX_XZ_BYTES = 1 << 28  # four times what `xz -9` asks for


def line_blocks(path: str) -> Generator[tuple[int, bytes], None, None]:
    """Yields (number of the first line, whole lines); line ends are all a newline.

    Raises:
        ValueError: A line is too long, or the file can't be unpacked.
    """
    rest, number = b"", 1  # the beginning of a line, and which one it is
    with contextlib.closing(_unpacked(path)) as blocks:
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
            # No other line but the first can be longer than a block.
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
                yield number, lines
                number += lines.count(b"\n")
            if not block:
                return


def _unpacked(path: str) -> Generator[bytes, None, None]:
    """Yields the content of a plain, gzip or xz file, whichever its first bytes say, in blocks."""
    with open(path, "rb") as file:
        magic = file.read(6)
        file.seek(0)
        if magic == b"\xfd7zXZ\x00":
            yield from _unpacked_xz(file)
            return
        stream: Any = gzip.GzipFile(fileobj=file) if magic.startswith(b"\x1f\x8b") else file
        while block := stream.read(_BLOCK_BYTES):
            yield block


def _unpacked_xz(file: BinaryIO) -> Iterator[bytes]:
    """As `lzma.open`, but limits the memory that a file asks for, and refuses what is behind it."""
    decoder, block = _new_decoder(), b""
    while True:
        data = b""
        if decoder.eof:  # there may be zeros behind it, and another stream
            data = decoder.unused_data.lstrip(b"\0")
            while not data:
                data = file.read(_BLOCK_BYTES)
                if not data:
                    yield block
                    return
                data = data.lstrip(b"\0")
            decoder = _new_decoder()
        elif decoder.needs_input:
            data = file.read(_BLOCK_BYTES)
            if not data:
                raise EOFError("the end of the compressed data is missing")
        block += decoder.decompress(data, _BLOCK_BYTES - len(block))
        if len(block) == _BLOCK_BYTES:
            yield block
            block = b""


def _new_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)


def shorten(text: bytes) -> str:
    """Returns the start of a text from a file, as a message shows it."""
    shown = text[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")

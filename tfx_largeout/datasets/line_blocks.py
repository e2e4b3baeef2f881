# SPDX-License-Identifier: Apache-2.0
"""LineBlocks: a file, packed or not, as blocks of whole lines in bounded memory."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 24  # a line of more than a million features
_SHOWN_BYTES = 240  # as much of a word as the 60 characters that a message shows can take
_MAX_XZ_BYTES = 1 << 28  # four times what `xz -9` asks for


def open_unpacked(path: str) -> BinaryIO:
    """Opens a plain, gzip or xz file, whichever its first bytes say, for reading bytes."""
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if magic == b"\xfd7zXZ\x00":
        return io.BufferedReader(_XzStream(path))
    return open(path, "rb")


class _XzStream(io.RawIOBase):
    """The content of an xz file.

    Unlike `lzma.LZMAFile`, it limits the memory that the file may ask for, and refuses what stands
    behind the compressed data.
    """

    def __init__(self, path: str) -> None:
        self._file = io.FileIO(path)
        self._decoder = self._new_decoder()
        self._input = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decoder.eof:
                self._input = self._next_stream()
                if not self._input:
                    return 0
                self._decoder = self._new_decoder()
            elif self._decoder.needs_input and not self._input:
                self._input = self._file.read(_BLOCK_BYTES)
                if not self._input:
                    raise EOFError("the end of the compressed data is missing")
            data, self._input = self._input, b""
            content = self._decoder.decompress(data, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _next_stream(self) -> bytes:
        """Returns the beginning of what follows a stream and its padding; empty at the end."""
        following = self._decoder.unused_data.lstrip(b"\0")
        while not following:
            block = self._file.read(_BLOCK_BYTES)
            if not block:
                break
            following = block.lstrip(b"\0")
        return following

    @staticmethod
    def _new_decoder() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)


class LineBlocks:
    """Iterates over (number of the first line, whole lines); line ends are all a newline."""

    def __init__(self, path: str, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._rest = b""  # the beginning of line `_number`
        self._number = 1

    def header(self) -> bytes:
        """The first line, without its end."""
        while b"\n" not in self._rest:
            block = self._read()
            if not block:
                break
            self._rest += block
            self._check_length(self._rest)
        line, _, self._rest = self._rest.partition(b"\n")
        self._number = 2
        return line.removesuffix(b"\r")

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while True:
            block = self._read()
            data = self._rest + block
            if not block and data and not data.endswith(b"\n"):
                data += b"\n"
            # No other line but the first can be longer than a block.
            self._check_length(data)
            end = data.rfind(b"\n") + 1
            self._rest = data[end:]
            if end:
                lines = data[:end].replace(b"\r\n", b"\n")
                yield self._number, lines
                self._number += lines.count(b"\n")
            if not block:
                return

    def _check_length(self, data: bytes) -> None:
        """Refuses data whose first line is too long."""
        length = data.find(b"\n")
        if (len(data) if length < 0 else length) > _MAX_LINE_BYTES:
            raise ValueError(
                f"{self._path}:{self._number}: a line must have at most {_MAX_LINE_BYTES} bytes; "
                f"got more: {shorten(data)}"
            )

    def _read(self) -> bytes:
        try:
            return self._stream.read(_BLOCK_BYTES)
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            rule = "whole; it is cut short or damaged"
            if "memory" in str(error).lower():
                rule = f"one that needs at most {_MAX_XZ_BYTES} bytes of memory to unpack"
            raise ValueError(
                f"{self._path}:{self._number}: a compressed file must be {rule} ({error})"
            ) from error


def shorten(text: bytes) -> str:
    """Returns the start of a text from a file, as a message shows it."""
    shown = text[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")

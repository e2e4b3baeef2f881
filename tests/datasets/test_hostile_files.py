# SPDX-License-Identifier: Apache-2.0
"""A damaged or inconsistent file raises an error with its line, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import struct
import warnings
import zlib

import child
import numpy as np
import pytest
from datasets.test_xc_format import rows_of

from tfx_largeout.datasets import line_blocks, read_svmlight, read_xc, xc_format

COUNT = "the header must be three integers of at most 18 digits"
LABEL, FEATURE = "a label must be an integer in", "a feature must be an integer in"
VALUE = "the value of feature 2 must be a finite float32 number"
PAIR = "a feature must be written id:value"

REFUSED = {
    # The header does not match the content.
    "empty file": (b"", 1, COUNT),
    "only a line end": (b"\n", 1, COUNT),
    "header alone": (b"2 10 10\n", 1, "promises 2 examples; got 0 before the end"),
    "header alone, no line end": (b"2 10 10", 1, "promises 2 examples; got 0 before the end"),
    "too few examples": (b"3 10 10\n1 2:3\n1 2:3\n", 3, "promises 3 examples; got 2"),
    "a billion examples": (b"1000000000 10 10\n1 2:3\n", 2, "promises 1000000000 examples; got 1"),
    "10^18 - 1 examples": (b"9" * 18 + b" 10 10\n1 2:3\n", 2, "promises 9{18} examples; got 1"),
    "10^18 examples": (b"1" + b"0" * 18 + b" 10 10\n1 2:3\n", 1, COUNT),
    "2^64 + 1 examples": (b"18446744073709551617 10 10\n1 2:3\n", 1, COUNT),
    "too many examples": (b"1 10 10\n1 2:3\n1 2:3\n", 3, "promises 1 examples; got more"),
    "more than no examples": (b"0 10 10\n1 2:3\n", 2, "promises 0 examples; got more"),
    "examples behind blank lines": (b"1 9 9\n1 2:3\n\n\n1 2:3\n", 5, "got more: '1 2:3'"),
    "too few features": (b"1 2 10\n1 2:3\n", 2, rf"{FEATURE} \[0, 2\); got '2'"),
    "too few labels": (b"1 10 1\n1 2:3\n", 2, rf"{LABEL} \[0, 1\); got '1'"),
    "no features": (b"1 0 10\n1 0:3\n", 2, rf"{FEATURE} \[0, 0\); got '0'"),
    "2^31 features": (b"1 2147483648 10\n1 2:3\n", 1, "features must be at most 2147483647"),
    "10^18 - 1 labels": (b"1 10 " + b"9" * 18 + b"\n1 2:3\n", 1, "labels must be at most"),
    "negative number": (b"1 -10 10\n1 2:3\n", 1, COUNT),
    "numbers apart by a vertical tab": (b"1\x0b10 10\n1 2:3\n", 1, COUNT),
    "two numbers": (b"1 10\n1 2:3\n", 1, COUNT),
    # Numbers.
    "label 2^31": (b"1 10 2147483647\n2147483648 2:3\n", 2, LABEL),
    "label 2^32": (b"1 10 10\n4294967296 2:3\n", 2, LABEL),
    "label 2^64 + 1": (b"1 10 10\n18446744073709551617 2:3\n", 2, LABEL),
    "label of 1,000 digits": (b"1 10 10\n" + b"9" * 1000 + b" 2:3\n", 2, LABEL),
    "negative label": (b"1 10 10\n-1 2:3\n", 2, LABEL),
    "label with a fraction": (b"1 10 10\n1.5 2:3\n", 2, LABEL),
    "label as 1e0": (b"1 10 10\n1e0 2:3\n", 2, LABEL),
    "label repeated": (b"1 10 10\n1,2,1 2:3\n", 2, "must not occur twice in a line; got 1"),
    "label repeated among many": (
        b"1 10 999999\n" + b",".join(b"%d" % i for i in range(200_000)) + b",0 2:3\n",
        2,
        "a label must not occur twice in a line; got 0 again",
    ),
    "feature 2^32 + 2": (b"1 10 10\n1 4294967298:3\n", 2, FEATURE),
    "negative feature": (b"1 10 10\n1 -2:3\n", 2, FEATURE),
    "feature repeated": (b"1 10 10\n1 2:3 2:3\n", 2, "must not occur twice in a line; got 2"),
    "feature without a colon": (b"1 10 10\n1 2:3 4\n", 2, f"{PAIR}; got '4'"),
    "feature without a value": (b"1 10 10\n1 2:\n", 2, VALUE),
    "feature with two values": (b"1 10 10\n1 2:3:4\n", 2, VALUE),
    "nan": (b"1 10 10\n1 2:nan\n", 2, VALUE),
    "inf": (b"1 10 10\n1 2:inf\n", 2, VALUE),
    "-Infinity": (b"1 10 10\n1 2:-Infinity\n", 2, VALUE),
    "1e999": (b"1 10 10\n1 2:1e999\n", 2, VALUE),
    "finite in float64 alone": (b"1 10 10\n1 2:-1e39\n", 2, VALUE),
    "value of 1,000 digits": (b"1 10 10\n1 2:" + b"9" * 1000 + b"\n", 2, VALUE),
    "many digits and a letter": (b"1 10 10\n1 2:" + b"9" * 200_000 + b"x\n", 2, VALUE),
    "a sum and a letter": (b"1 10 10\n1 2:1+2 3:e\n", 2, VALUE),
    "hexadecimal": (b"1 10 10\n1 2:0x1p3\n", 2, VALUE),
    "Arabic digits": ("1 10 10\n٣ 2:3\n".encode(), 2, LABEL),
    # Bytes.
    "two byte order marks": (b"\xef\xbb\xbf" * 2 + b"1 10 10\n1 2:3\n", 1, COUNT),
    "byte order mark in a line": (b"1 10 10\n\xef\xbb\xbf1 2:3\n", 2, LABEL),
    "UTF-16": ("1 10 10\n1 2:3\n".encode("utf-16"), 1, COUNT),
    "no UTF-8": (b"2 10 10\n1 2:3\n1 2:\xff\xfe\n", 3, rf"{VALUE}; got '\\\\xff\\\\xfe'"),
    "no UTF-8 in the header": (b"1 10 \xff10\n1 2:3\n", 1, COUNT),
    "NUL in the header": (b"1 10 1\x000\n1 2:3\n", 1, COUNT),
    "NUL in a label": (b"1 10 10\n1\x00 2:3\n", 2, LABEL),
    "NUL in a value": (b"1 10 10\n1 2:3\x00\n", 2, VALUE),
    "NUL bytes for a line": (b"1 10 10\n\x00\x00\x00\n", 2, LABEL),
    "NUL bytes at the end": (b"1 10 10\n1 2:3\n\x00\x00", 3, "promises 1 examples; got more"),
    "line ends of a Macintosh": (b"2 10 10\r1 2:3\r1 2:3\r", 1, COUNT),
    "carriage return in a line": (b"1 10 10\n1 2:3\r4:5\n", 2, VALUE),
    "two carriage returns": (b"1 10 10\n1 2:3\r\r\n", 2, VALUE),
    "blank line": (b"3 10 10\n1 2:3\n\n1 2:3\n", 3, "got a blank line"),
    "compressed twice": (gzip.compress(gzip.compress(b"1 10 10\n1 2:3\n")), 1, COUNT),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("is_fast", [True, False])
def test_refused(tmp_path, monkeypatch, name, is_fast):
    content, line, message = REFUSED[name]
    if not is_fast:
        monkeypatch.setattr(xc_format, "parse_fast", lambda block, header: None)
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"data\.txt:{line}: .*{message}"):
        read_xc(path)


ROWS = [([1, 2], {3: 1.0, 4: 0.5}), ([7], {9: -1.0})]
TEXT = b"2 10 10\n1,2 3:1 4:0.5\n7 9:-1\n"

READ = {
    "as it should be": TEXT,
    "no line end": TEXT[:-1],
    "Windows line ends": TEXT.replace(b"\n", b"\r\n"),
    "Windows line ends, cut in the last": TEXT.replace(b"\n", b"\r\n")[:-1],
    "mixed line ends": TEXT.replace(b"\n", b"\r\n", 1),
    "blank lines at the end": TEXT + b"\n \n\t\r\n",
    "a billion features and labels": TEXT.replace(b" 10 10", b" 1000000000 2147483647"),
    "leading zeros": TEXT.replace(b"9:", b"0" * 1000 + b"9:"),
    "many digits": TEXT.replace(b"0.5", b"0.5" + b"0" * 1000),
    "byte order mark": b"\xef\xbb\xbf" + TEXT,
    "packed byte order mark": gzip.compress(b"\xef\xbb\xbf" + TEXT),
    "gzip": gzip.compress(TEXT),
    "gzip in two members": gzip.compress(TEXT[:11]) + gzip.compress(TEXT[11:]),
    "gzip and NUL bytes": gzip.compress(TEXT) + bytes(512),
    "xz": lzma.compress(TEXT),
    "xz in two streams": lzma.compress(TEXT[:11]) + lzma.compress(TEXT[11:]),
    "xz and NUL bytes": lzma.compress(TEXT) + bytes(512),
    "bzip2": bz2.compress(TEXT),
    "bzip2 in two streams": bz2.compress(TEXT[:11]) + bz2.compress(TEXT[11:]),
    "bzip2 and NUL bytes": bz2.compress(TEXT) + bytes(512),
    "xz in two streams with NUL bytes between": (
        lzma.compress(TEXT[:11]) + bytes(512) + lzma.compress(TEXT[11:]) + bytes(4)
    ),
}


@pytest.mark.parametrize("name", list(READ))
@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
def test_read_rightly(tmp_path, monkeypatch, name, block_bytes):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "data"
    path.write_bytes(READ[name])
    assert rows_of(read_xc(path)) == ROWS


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_compressed_file_is_read_whole_or_not_at_all(tmp_path, compress):
    """Truncated anywhere, with extra data at the end, with any byte changed."""
    data, path = compress(TEXT), tmp_path / "data"
    cut = [data[:end] for end in range(len(data))]
    longer = [data + behind for behind in (b"\x01", b"1 2:3\n", data[:9], b"\x00" * 4 + b"x")]
    for content in cut + longer:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"data:\d+: "):
            read_xc(path)
    num_refused = 0
    for place in range(len(data)):
        turned = bytearray(data)
        turned[place] ^= 0xFF
        path.write_bytes(turned)
        try:
            assert rows_of(read_xc(path)) == ROWS  # the date in a gzip header may have any value
        except ValueError as error:
            assert str(path) + ":" in str(error)
            num_refused += 1
    assert num_refused > len(data) * 0.8


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_damage_is_named_with_a_line_near_it(tmp_path, compress):
    """The first line that was not read: at most a block before the damage."""
    num_lines, path = 500_000, tmp_path / "data"
    data = compress(b"%d 10 10\n" % num_lines + b"1 2:3\n" * num_lines)
    path.write_bytes(data[:-20])
    with pytest.raises(ValueError, match="a compressed file must be whole") as caught:
        read_xc(path)
    line = int(str(caught.value).split(":")[1])
    assert num_lines - 2 * line_blocks._BLOCK_BYTES // len("1 2:3\n") < line <= num_lines + 1


@pytest.mark.parametrize("block_bytes", [64, 1000])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_that_is_too_long(tmp_path, monkeypatch, block_bytes, end):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(line_blocks, "_MAX_LINE_BYTES", 1000)
    path, header, longest = tmp_path / "data", b"2 10 10\n1 2:3\n", b"1 2:3".ljust(1000)
    path.write_bytes(header + longest + end)
    assert rows_of(read_xc(path)) == [([1], {2: 3.0})] * 2
    too_long = longest + b" " * 2000
    rule = "a line must have at most 1000 bytes; got more"
    for content, line in [
        (header + too_long + end, 3),
        (header.strip() + too_long + end, 2),
        (too_long + end, 1),
        (header + longest + b"\n" + too_long + end, 4),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"data:{line}: {rule}: '.*\.\.\.'"):
            read_xc(path)


@pytest.mark.all_cases
@pytest.mark.parametrize("kind", ["one file", "labels", "svmlight"])
def test_both_parsers_agree_on_what_is_broken(tmp_path, monkeypatch, kind):
    """On files with a few bytes changed, put in or taken out."""
    rng, path = np.random.default_rng(0), tmp_path / "data.txt"
    alphabet = np.frombuffer(b"0123456789 ,:.+-eE\t\n\r\x00x\xff#", np.uint8)
    features = tmp_path / "features.txt"
    features.write_bytes(b"3 2\n\n\n\n")
    text, read = {
        "one file": (b"3 20 20\n1,12 3:1.5 14:-.5\n 9:1e-3 10:+2\n7,8,9 0:0\n", read_xc),
        "labels": (b"3 20\n1:1 12:1.0\n\n7:1 8:0 9:1\n", lambda path: read_xc(features, path)),
        "svmlight": (b"1,12 3:1.5 14:-.5\n 9:1e-3#a\n#\n7,8 0:0\n", read_svmlight),
    }[kind]

    def outcome():
        try:
            return rows_of(read(path))
        except ValueError as error:
            return str(error)

    num_read = 0
    for _ in range(500):
        changed = list(text)
        for _ in range(rng.integers(1, 4)):
            place = rng.integers(len(changed))
            changed[place : place + rng.integers(3)] = rng.choice(alphabet, rng.integers(3))
        path.write_bytes(bytes(changed))
        fast = outcome()
        with monkeypatch.context() as patch:
            patch.setattr(xc_format, "parse_fast", lambda block, header: None)
            assert outcome() == fast
        num_read += isinstance(fast, list)
    assert 30 < num_read < 470


def test_a_numpy_that_only_warns_of_what_is_no_number(tmp_path, monkeypatch):
    """As before 2.3: "1+4" is two numbers, and "e" ends them. As many as there are words."""

    def only_warns(*arguments, **options):
        warnings.warn("could not be read to its end", DeprecationWarning, stacklevel=2)
        return np.array([0.0, 2, 1, 4, 3])

    monkeypatch.setattr(np, "fromstring", only_warns)
    path = tmp_path / "data.txt"
    path.write_bytes(b"1 10 10\n 2:1+4 3:e\n")
    with pytest.raises(ValueError, match=rf"data\.txt:2: {VALUE}"):
        read_xc(path)


def asking_for_4_gib(content):
    """An xz file whose header requests a dictionary of 4 GiB."""
    data = bytearray(lzma.compress(content))
    begin, size = 12, (data[12] + 1) * 4
    assert data[begin + 2 : begin + 4] == b"\x21\x01"  # LZMA2, and one byte about it
    data[begin + 4] = 40
    data[begin + size - 4 : begin + size] = struct.pack(
        "<I", zlib.crc32(data[begin : begin + size - 4])
    )
    return bytes(data)


READ_ALL = """
import resource, sys
from tfx_largeout.datasets import read_xc
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    try:
        print(read_xc(path).num_examples)
    except ValueError as error:
        print(str(error).replace(" ", "_"))
"""


@pytest.mark.thorough
def test_memory_is_bounded(tmp_path):
    """A GiB is enough for all of these, for any header or unpacked size."""
    mib = 1 << 20
    contents = {
        "many_promised": (b"9" * 18 + b" 2147483647 2147483647\n1 2:3\n", ":2:.*got_1_before"),
        "wide": (b"1 2147483647 2147483647\n2147483646 2147483646:1\n", "^1$"),
        "long_line": (b"1 10 10\n1 2:3".ljust(48 * mib), ":2:_a_line_must_have_at_most"),
        "long_header": (b"1 10 10".ljust(48 * mib), ":1:_a_line_must_have_at_most"),
        "bomb": (
            gzip.compress(b"1 10 10\n") + gzip.compress(b" 2:3" * mib) * 12,
            ":2:_a_line_must_have_at_most",
        ),
        "bomb_of_blank_lines": (gzip.compress(b"0 1 1\n") + gzip.compress(b"\n" * mib) * 48, "^0$"),
        "hungry": (asking_for_4_gib(TEXT), ":1:.*at_most_268435456_bytes_of_memory"),
        "longest_line": (b"1 10 10\n1 2:3".ljust(16 * mib), "^1$"),
    }
    paths = [tmp_path / name for name in contents]
    for path, (content, _) in zip(paths, contents.values(), strict=True):
        path.write_bytes(content)
    outcomes = child.run_program(tmp_path, READ_ALL, *map(str, paths))
    for outcome, (_, expected) in zip(outcomes, contents.values(), strict=True):
        assert re.search(expected, outcome), outcome

"""The table under a checkpoint's index, its checksum and its numbers: read as they are written, or refused."""

from __future__ import annotations

import os
import random
import struct

import numpy as np
import pytest

from spacy_elmo.weights import crc32c as ours
from spacy_elmo.weights.files import DamagedError
from spacy_elmo.weights.protobuf import fields, signed, varint
from spacy_elmo.weights.sorted_table import entries

from . import writers

EMPTY = writers.block([])


def joined(*blocks: bytes, index: list[tuple[bytes, bytes]], metaindex: bytes = EMPTY) -> bytes:
    """A table of blocks that need not fit its index."""
    body = b"".join(blocks)
    listed = writers.block(index)
    footer = b"".join(
        writers.varint(at) + writers.varint(len(block) - 5)
        for at, block in ((len(body), metaindex), (len(body) + len(metaindex), listed))
    )
    return body + metaindex + listed + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def handle(offset: int, size: int) -> bytes:
    return writers.varint(offset) + writers.varint(size)


@pytest.mark.parametrize("n_rows", [0, 1, 19, 20, 21, 500])
def test_what_is_written_is_read(n_rows: int) -> None:
    rng = random.Random(n_rows)
    names = [f"lm/RNN_{i % 2}/cell_{i // 7}/{'x' * rng.randrange(30)}{i}" for i in range(n_rows)]
    rows = {name.encode(): os.urandom(rng.randrange(300)) for name in names}
    assert dict(entries(writers.table(rows))) == rows


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not end as a table"),
        (bytes(100), "does not end as a table"),
        (bytes(40) + struct.pack("<Q", 0xDB4775248B80FB57), "lies beyond its end"),
        (joined(index=[(b"a", handle(0, 10**15))]), "lies beyond its end"),
        (joined(index=[(b"a", b"\xff")]), "a number is cut short"),
        (joined(writers.block([(b"b", b""), (b"a", b"")]), index=[(b"b", handle(0, 16))]), "keys are not in order"),
        (joined(writers.block([(b"a", b""), (b"a", b"")]), index=[(b"b", handle(0, 15))]), "keys are not in order"),
        (joined(EMPTY, index=[(b"a", handle(0, 8)), (b"b", handle(0, 8))]), "blocks are not in order"),
        (joined(writers.block([(b"k" * 5000, b"")]), index=[(b"l", handle(0, 5012))]), "does not fit its block"),
        (joined(EMPTY, index=[(b"a", handle(0, 7))]), "does not have its checksum"),
    ],
)
def test_what_is_broken_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DamagedError, match=message):
        list(entries(data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\0", "too short"),
        (b"\0\0\0\0\xff\xff\xff\xff", "more restarts than bytes"),
        (b"\1\0\0\0\0\0\0\1\0\0\0", "does not fit its block"),  # shares a byte with no key
        (b"\0\5\0a\0\0\0\0\1\0\0\0", "does not fit its block"),
        (b"\0\1\5a\0\0\0\0\1\0\0\0", "does not fit its block"),
        (b"\0\1\x80\0\0\0\0\1\0\0\0", "does not fit its block|cut short"),
    ],
)
def test_blocks_that_are_broken(content: bytes, message: str) -> None:
    trailer = struct.pack("<I", writers.masked(writers.crc32c(content + b"\0")))
    data = joined(content + b"\0" + trailer, index=[(b"z", handle(0, len(content)))])
    with pytest.raises(DamagedError, match=message):
        list(entries(data))


def test_varints() -> None:
    for value in (0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1):
        data = writers.varint(value)
        assert varint(b"x" + data + b"y", 1) == (value, 1 + len(data))
    for data in (b"", b"\x80", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"):
        with pytest.raises(DamagedError):
            varint(data, 0)
    assert signed(2**64 - 1) == -1
    assert signed(2**63 - 1) == 2**63 - 1


def test_fields() -> None:
    data = writers.number(1, 300) + writers.message(2, b"abc") + b"\x35\x01\0\0\0" + b"\x39\x02\0\0\0\0\0\0\0"
    assert list(fields(data)) == [(1, 300), (2, b"abc"), (6, 1), (7, 2)]


def test_checksums_of_rfc_3720() -> None:
    for data, checksum in (
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ):
        assert ours.crc32c(data) == checksum == writers.crc32c(data)
        assert ours.unmasked(writers.masked(checksum)) == checksum


@pytest.mark.parametrize("size", [4095, 4096, 4097, 10_001, 2**21 - 1, 2**21, 2**21 + 5, 5 * 2**20 + 777])
def test_checksums_of_long_data_join(size: int) -> None:
    # Byte by byte is too slow here; but cut anywhere, the parts must give the same, and short data is proven above.
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    whole = ours.crc32c(data)
    for cut in (1, 255, 4096, size // 3, size - 1):
        assert ours.crc32c(data[cut:], ours.crc32c(data[:cut])) == whole
    by_pieces = 0
    for start in range(0, size, 3000):
        by_pieces = ours.crc32c(data[start : start + 3000], by_pieces)
    assert by_pieces == whole
    changed = bytearray(data)
    changed[size // 2] ^= 1
    assert ours.crc32c(bytes(changed)) != whole

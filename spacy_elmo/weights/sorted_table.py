"""A table of sorted keys and values in one file, as LevelDB defines it and TensorFlow uses it: read whole, and checked.

Format (LevelDB, doc/table_format.md): blocks, and at the end a footer of 48 bytes: the handles of the meta index and of
the index, padded to 40 bytes, and a magic number. A handle is an offset and a size, both varints. Behind each block
lie a byte that tells its compression and a masked CRC-32C of both. A block is entries, then the positions of its
restarts (uint32 each) and their number (uint32). An entry is three varints, how many bytes its key shares with the key
before it, how many it has of its own, and the size of its value; then those bytes of the key, and the value. The index
is a block whose values are the handles of the other blocks, in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from .crc32c import crc32c, unmasked
from .files import DamagedError
from .protobuf import varint

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_LONGEST_KEY = 4096  # bytes; also keeps the time of reading linear: a key costs its whole length


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in ascending order of distinct keys. DamagedError, saying why, if it is broken."""
    if len(data) < FOOTER_BYTES or not data.endswith(MAGIC):
        raise DamagedError("it does not end as a table does: cut short, or another kind of file")
    footer = data[-FOOTER_BYTES:]
    _, _, position = _handle(footer, 0)
    offset, size, _ = _handle(footer, position)
    body = data[:-FOOTER_BYTES]
    last: bytes | None = None
    end = 0
    for _, value in _block_entries(_block(body, offset, size)):
        offset, size, _ = _handle(value, 0)
        if offset < end:  # blocks that are listed again and again would never end
            raise DamagedError("its blocks are not in order")
        end = offset + size
        for key, value in _block_entries(_block(body, offset, size)):
            if last is not None and key <= last:
                raise DamagedError("its keys are not in order")
            last = key
            yield key, value


def _handle(data: bytes, position: int) -> tuple[int, int, int]:
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return offset, size, position


def _block(body: bytes, offset: int, size: int) -> bytes:
    """The content of a block, its checksum compared."""
    end = offset + size
    if end + _TRAILER_BYTES > len(body):
        raise DamagedError(f"a block of {size} bytes at {offset} lies beyond its end")
    compression = body[end]
    stored = int.from_bytes(body[end + 1 : end + _TRAILER_BYTES], "little")
    if crc32c(body[offset : end + 1]) != unmasked(stored):
        raise DamagedError(f"the block at {offset} does not have its checksum: it is damaged")
    if compression:
        kind = "Snappy" if compression == 1 else f"unknown (type {compression})"
        raise DamagedError(
            f"the block at {offset} is compressed ({kind}), which is not read: save the checkpoint with a current "
            "TensorFlow, which does not compress them"
        )
    return body[offset:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise DamagedError("a block is too short")
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise DamagedError("a block has more restarts than bytes")
    position = 0
    key = b""
    while position < end:
        shared, position = varint(block, position)
        own, position = varint(block, position)
        length, position = varint(block, position)
        if shared > len(key) or shared + own > _LONGEST_KEY or own + length > end - position:
            raise DamagedError("an entry does not fit its block")
        key = key[:shared] + block[position : position + own]
        position += own
        yield key, block[position : position + length]
        position += length

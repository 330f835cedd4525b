"""The wire format of Protocol Buffers, as far as the two small messages of a checkpoint's index need it.

Format: a message is a row of fields, each a varint `number << 3 | type` and a value by type: 0 a varint, 1 eight bytes,
2 a varint n and n bytes, 5 four bytes (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterator

from .files import DamagedError

_FIXED = {1: 8, 5: 4}  # bytes by wire type


def varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, seven a byte, the lowest first. RETURNS: it, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise DamagedError("a number is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte >= 0x80 or value >= 1 << 64:
        raise DamagedError("a number is longer than 64 bits")
    return value, position


def signed(value: int) -> int:
    """What an int64 field means: negative numbers are stored as their 64-bit complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an int for numbers, bytes for what has a length. DamagedError if it is broken."""
    position = 0
    while position < len(data):
        key, position = varint(data, position)
        kind = key & 7
        if kind == 0:
            number, position = varint(data, position)
            yield key >> 3, number
            continue
        if kind == 2:
            length, position = varint(data, position)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise DamagedError(f"a field has the unknown wire type {kind}")
        if length > len(data) - position:
            raise DamagedError("a field is cut short")
        value = data[position : position + length]
        position += length
        yield key >> 3, value if kind == 2 else int.from_bytes(value, "little")

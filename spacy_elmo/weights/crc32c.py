"""CRC-32C, the checksum of TensorFlow's checkpoints (RFC 3720, appendix B.4), fast enough in numpy for gigabytes.

A CRC is linear: the checksum of two strings in a row is that of the first, carried over as many zero bytes as the
second has, plus (XOR) that of the second. So long data is cut into thousands of lanes that advance together.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # reflected
_LANES, _LANE_BYTES = 8192, 256
_BLOCK = _LANES * _LANE_BYTES  # 2 MiB: stays in a processor's cache
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | memoryview | np.ndarray, crc: int = 0) -> int:
    """The checksum of `data`, or, with the checksum of what comes before it, that of both."""
    values = np.frombuffer(data, dtype=np.uint8)
    blocks = len(values) // _BLOCK * _BLOCK
    for start in range(0, blocks, _BLOCK):
        crc = _carried(crc, _BLOCK) ^ _of_block(values[start : start + _BLOCK])
    return _of_few(values[blocks:], crc)


def unmasked(stored: int) -> int:
    """The checksum that was stored rotated and shifted, as TensorFlow and LevelDB do."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17) | (rotated << 15) & 0xFFFFFFFF


def _of_few(values: np.ndarray, crc: int) -> int:
    """One lane by itself; lanes of some length, where there are enough of them, together."""
    if len(values) > 16 * _LANE_BYTES:
        lanes = len(values) // _LANE_BYTES
        cut = lanes * _LANE_BYTES
        crcs = _of_lanes(values[:cut].reshape(lanes, _LANE_BYTES))
        for lane in crcs.tolist():
            crc = _carried(crc, _LANE_BYTES) ^ lane
        values = values[cut:]
    table = _table()
    crc ^= 0xFFFFFFFF
    for value in values.tolist():
        crc = table[(crc ^ value) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _of_block(values: np.ndarray) -> int:
    """The checksum of _BLOCK bytes: those of its lanes, joined in pairs."""
    crcs = _of_lanes(values.reshape(_LANES, _LANE_BYTES))
    length = _LANE_BYTES
    while len(crcs) > 1:
        operator = _zeros_operator(length)
        crcs = _apply(operator, crcs[0::2]) ^ crcs[1::2]
        length *= 2
    return int(crcs[0])


def _of_lanes(lanes: np.ndarray) -> np.ndarray:
    """The checksum of each row (lanes, bytes), four bytes at a time."""
    low, high = _tables16()
    words = np.ascontiguousarray(lanes.view("<u4").T)
    crcs = np.full(len(lanes), 0xFFFFFFFF, dtype=np.uint32)
    for word in words:
        crcs ^= word
        crcs = low[crcs & 0xFFFF] ^ high[crcs >> 16]
    return crcs ^ np.uint32(0xFFFFFFFF)


@lru_cache(maxsize=1)
def _table() -> list[int]:
    """What a byte does to the checksum."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


@lru_cache(maxsize=1)
def _tables16() -> tuple[np.ndarray, np.ndarray]:
    """What the lower and the upper half of four bytes, already mixed into the checksum, leave of it."""
    table = np.array(_table(), dtype=np.uint32)

    def stepped(crcs: np.ndarray, n_bytes: int) -> np.ndarray:
        for _ in range(n_bytes):
            crcs = table[crcs & 0xFF] ^ (crcs >> np.uint32(8))
        return crcs

    halves = np.arange(1 << 16, dtype=np.uint32)
    return stepped(halves, 4), stepped(halves << np.uint32(16), 4)


def _carried(crc: int, n_zeros: int) -> int:
    """What is left of a checksum after so many zero bytes."""
    return int(_apply(_zeros_operator(n_zeros), np.array([crc], dtype=np.uint32))[0])


def _apply(operator: np.ndarray, crcs: np.ndarray) -> np.ndarray:
    """A linear map (4, 256) of each of a checksum's bytes, on checksums (n,)."""
    return (
        operator[0][crcs & 0xFF]
        ^ operator[1][crcs >> 8 & 0xFF]
        ^ operator[2][crcs >> 16 & 0xFF]
        ^ operator[3][crcs >> 24]
    )


@lru_cache(maxsize=64)
def _zeros_operator(n_bytes: int) -> np.ndarray:
    """The map that n_bytes zero bytes are: (4, 256) uint32. For a power of two: half of it twice."""
    if n_bytes == 1:
        table = np.array(_table(), dtype=np.uint32)
        places = np.arange(256, dtype=np.uint32)
        return np.stack([table, places, places << np.uint32(8), places << np.uint32(16)])
    half = _zeros_operator(n_bytes // 2)
    return np.stack([_apply(half, row) for row in half])

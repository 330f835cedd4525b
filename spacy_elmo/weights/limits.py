"""How much may come out of how little: the bound on everything here that is stored compressed.

Float weights shrink by a tenth, text by three quarters; a bomb grows a thousand times. In between there is room.
"""

from __future__ import annotations

_ROOM = 64 * 2**20  # bytes that are always allowed: whoever has torch in memory has them too
_GROWTH = 20


def most_bytes(stored: int) -> int:
    """How many bytes may be made of `stored` compressed ones: 20 times as many, and 64 MiB in any case."""
    return max(_ROOM, _GROWTH * stored)

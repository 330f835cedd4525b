"""Matrix products of training, in the precision that autocast asks for."""

from __future__ import annotations

import torch
from torch import Tensor


def product_dtype(like: Tensor) -> torch.dtype:
    """What matrix products are to read: autocast's dtype where it is on, else that of ``like``."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


def product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left right. Where the factors are narrower than ``out``, so is the product before it is written there."""
    if left.dtype == out.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(torch.mm(left, right))


def add_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out += left right, as ``product``."""
    if left.dtype == out.dtype:
        out.addmm_(left, right)
    else:
        out.add_(torch.mm(left, right))

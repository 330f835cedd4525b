"""State dicts that others wrote with `torch.save`: tensors by name, and nothing else of what a pickle can be."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import Tensor

from ..errors import WeightsError
from .files import ZIP_MAGIC, as_path, check_weights_file
from .limits import most_bytes

# How a file of torch before 1.6 begins: its magic number, pickled. (The older .tar files are not read: torch would
# unpack them to disk.)
_LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def read_state_dict(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a state dict, on the CPU, as they were stored.

    The pickle in it passes torch's `weights_only` unpickler, which knows tensors and containers and calls nothing else.
    Of a file in torch's zip format the values stay in the file until they are read, so a tensor that claims to be large
    takes no memory; of an older one, no more is read than the file holds. A tensor has values of its own: one that
    repeats a few of them at a stride of 0 could be of any size.
    Raises WeightsError if the file is missing, broken, or holds something else.
    """
    path = as_path(path)
    head = check_weights_file(path)
    zipped = head.startswith(ZIP_MAGIC)
    stored: list[int] = []
    if zipped:
        stored = _checked_archive(path)
    elif not head.startswith(_LEGACY_MAGIC):
        raise WeightsError(f"{path}: is not a file of PyTorch (torch.save), where one was expected")
    try:
        found = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipped)
    # On damaged files torch's reader fails in any way that a program can.
    except Exception as error:
        raise WeightsError(
            f"{path}: not a whole state dict of PyTorch (cut short, damaged, or with objects other than tensors, which "
            f"are never read): {_reason(error)}"
        ) from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path}: holds {type(found).__name__}, not a state dict: tensors by name")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise WeightsError(f"{path}: holds {type(tensor).__name__} under {name!r:.100}, not a tensor under a name")
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise WeightsError(f"{path}: '{name}' is not a plain tensor ({tensor.layout}, {tensor.device})")
        if not tensor.is_contiguous() or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise WeightsError(
                f"{path}: '{name}' of shape {tuple(tensor.shape)} does not have its values one after the other (its "
                f"strides are {tensor.stride()}): weights are never stored so"
            )
    total, size = sum(4 * tensor.numel() for tensor in found.values()), path.stat().st_size
    if total > most_bytes(size):
        raise WeightsError(f"{path}: its tensors make {total} bytes, but the file has {size}: they share their values")
    # Values that are read in their place in the file are not checked by torch: the next entry's would do for it.
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in found.values()}
    if zipped and sorted(filter(None, storages.values())) != stored:
        raise WeightsError(f"{path}: its values are not as many as its tensors have: it is damaged")
    return {name: tensor.detach() for name, tensor in found.items()}


def _checked_archive(path: Path) -> list[int]:
    """Sizes in bytes of the values in an archive, in ascending order, without empty ones.

    WeightsError for one that torch.save did not write: so nothing is decompressed, and no program run.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        size = path.stat().st_size
    # As above: zipfile too has many ways to fail.
    except Exception as error:
        raise WeightsError(f"{path}: not a whole zip archive of PyTorch (cut short, or damaged): {error}") from error
    names = [entry.filename for entry in entries]
    if not any(name.endswith("data.pkl") for name in names):
        raise WeightsError(f"{path}: is a zip archive, but not one of PyTorch (torch.save)")
    if any(name.endswith("constants.pkl") for name in names):
        raise WeightsError(f"{path}: is a TorchScript program, which is never run; weights are a state dict")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise WeightsError(f"{path}: its entries are compressed, those of torch.save never are")
    if sum(entry.file_size for entry in entries) > size:
        raise WeightsError(f"{path}: its entries claim to be larger than the file ({size} bytes): it is damaged")
    return sorted(entry.file_size for entry in entries if "/data/" in entry.filename and entry.file_size)


def _reason(error: Exception) -> str:
    """The heart of torch's message, without its advice to read the file in an unsafe way."""
    text = str(error).split("WeightsUnpickler error:")[-1].strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}".removesuffix(": ")

"""Sentences as a file that every peer reads: one a line, words between spaces. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path


def write_text(sentences: Iterable[Sequence[str]], path: Path) -> Path:
    """Write sentences whose words hold no white space."""
    path.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf8")
    return path


def read_texts(paths: Mapping[str, str]) -> dict[str, list[list[str]]]:
    """Read the files of several texts, by name."""
    return {
        name: [line.split(" ") for line in Path(path).read_text(encoding="utf8").split("\n") if line]
        for name, path in paths.items()
    }


def batches(sentences: Sequence[list[str]], size: int, *, by_length: bool) -> Iterator[list[list[str]]]:
    """Cut sentences into batches, as they come or in descending order of length."""
    ordered = sorted(sentences, key=len, reverse=True) if by_length else sentences
    for start in range(0, len(ordered), size):
        yield list(ordered[start : start + size])

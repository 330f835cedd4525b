"""Packages that offer built-in weights, as pip would have installed them."""

from __future__ import annotations

import importlib
from itertools import count
from pathlib import Path

import pytest

_numbers = count()

# What a package's function notes: how often it was asked for its weights.
FUNCTION = """
from pathlib import Path

calls = []

def weights():
    calls.append(1)
    return Path({path!r})
"""


class Offering:
    """An installed package. package: its distribution's name. module: its module's."""

    def __init__(self, package: str, module: str) -> None:
        self.package = package
        self.module = module

    @property
    def calls(self) -> int:
        """How often its function was asked where its weights are."""
        return len(importlib.import_module(self.module).calls)


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    weights: Path | str,
    *,
    package: str = "acme-elmo",
    code: str | None = None,
    value: str = "{module}:weights",
) -> Offering:
    """Put a package on the path that offers weights.

    code: of its module; None: a function `weights` that gives the path. value: of its entry point.
    """
    number = next(_numbers)
    module = f"acme_elmo_{number}"
    site = folder / f"site-{number}"
    (site / module).mkdir(parents=True)
    text = FUNCTION.format(path=str(weights)) if code is None else code
    (site / module / "__init__.py").write_text(text, encoding="utf8")
    about = site / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf8")
    line = f"{name} = {value.format(module=module)}"
    (about / "entry_points.txt").write_text(f"[spacy_elmo_weights]\n{line}\n", encoding="utf8")
    monkeypatch.syspath_prepend(str(site))
    return Offering(package, module)

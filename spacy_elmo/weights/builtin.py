"""Weights that come with installed packages, by name: what `load_bilm("en")` and an `elmo` without weights take.

A package offers weights by an entry point of the group `spacy_elmo_weights`. Its name is the code of the language whose
default they shall be, or any other name, by which they are then asked for. Its value is where they lie: a package whose
folder holds them, an absolute path, or a function without arguments that gives one of the two. Nothing is imported
before somebody asks for these weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from ..errors import WeightsError, shown
from .files import exists

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "spacy_elmo_weights"
_OURS = "spacy-elmo"


@dataclass(frozen=True, kw_only=True)
class BuiltinModel:
    """Weights that an installed package offers.

    name: the language whose default they are, or another name. package: the distribution that they come with.
    value: what its entry point names.
    """

    name: str
    package: str
    value: str
    _entry_point: EntryPoint = field(repr=False, compare=False)

    @property
    def full_name(self) -> str:
        """What they are asked for by where several packages offer the name."""
        return f"{self.name}@{self.package}"

    @property
    def version(self) -> str:
        """Of the package."""
        return _metadata(self._entry_point, "version") or "of unknown version"

    def path(self) -> Path:
        """Where they lie. Raises WeightsError, naming the package, where it does not say, or nothing is there."""
        with self.named_in_errors():
            try:
                offered = self._entry_point.load()
                if not isinstance(offered, ModuleType) and callable(offered):
                    offered = offered()
                path = Path(offered.__path__[0] if isinstance(offered, ModuleType) else offered)
            except (Exception, SystemExit) as error:  # it runs another package's code
                raise WeightsError(f"its entry point {self.value} gives no path: {shown(error, 500)}") from error
            if not path.is_absolute():
                raise WeightsError(f"its entry point {self.value} gives {shown(offered)}, which is no absolute path")
            if not exists(path):
                raise WeightsError(f"{path} is not there: install the package again")
            return path

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Say in a WeightsError whose weights are broken."""
        try:
            yield
        except WeightsError as error:
            raise WeightsError(f"built-in weights '{self.name}' of the package {self.package}: {error}") from error


def builtin_models() -> list[BuiltinModel]:
    """The weights that installed packages offer, by name and package. None of them is loaded.

    A package that was half removed, so that nothing says its name any more, offers none.
    """
    # Not needed by whoever brings weights.
    from importlib.metadata import entry_points

    found: set[BuiltinModel] = set()
    for entry in entry_points(group=GROUP):
        package = _metadata(entry, "name")
        if package is not None:
            found.add(BuiltinModel(name=entry.name, package=package, value=entry.value, _entry_point=entry))
    return sorted(found, key=lambda model: (model.name, model.package, model.value))


def _metadata(entry: EntryPoint, what: Literal["name", "version"]) -> str | None:
    """Of the distribution of an entry point; None where its metadata do not have it, or are gone."""
    value: object = None
    with suppress(Exception):  # whether it is None then, a warning or an error, is for each Python to say
        value = getattr(entry.dist, what, None)
    return value if isinstance(value, str) and value else None


def is_name(given: Path | str) -> bool:
    """Whether what stands in the place of a path may be a name of built-in weights: a string without a separator.

    A `pathlib.Path` is always a path: of "./en" and "en/" it keeps "en", so that nothing made of one can be a name.
    """
    return isinstance(given, str) and not any(mark in given for mark in ("/", os.sep))


def builtin_model(name: Path | str) -> BuiltinModel | None:
    """The built-in weights of a name, `language` or `language@package`; None for a path, or if no package offers it.

    Those of another package go before this package's own: whoever installs weights for a language wants them.
    Raises WeightsError where several others do, saying which, and how to choose.
    """
    if not is_name(name):
        return None
    found = [model for model in builtin_models() if name in (model.name, model.full_name)]
    others = [model for model in found if model.package != _OURS]
    chosen = others if len(others) == 1 else found
    if len(chosen) > 1:
        raise WeightsError(
            f"built-in weights '{name}' are offered by several packages: say which by one of "
            f"{', '.join(repr(model.full_name) for model in chosen)} in the place of a path, as in "
            f'load_weights("{chosen[0].full_name}")'
        )
    return chosen[0] if chosen else None


def same_name(path: Path) -> str:
    """What to add to the error about a path that is no biLM: how built-in weights of its name are called."""
    offered = [repr(model.full_name) for model in builtin_models() if model.name == str(path)]
    return f"; the built-in weights of that name are {' or '.join(offered)}" if offered else ""


def not_offered(name: str) -> str:
    """What to say of a name that nobody offers: which there are, and where the installation is older than the code."""
    there = ", ".join(dict.fromkeys(model.name for model in builtin_models())) or "none"
    if is_name(name) and exists(Path(__file__).parents[1] / "models" / name / "model.safetensors"):
        there += f"; this package has '{name}' since it was installed: install it again, `pip install -e .`"
    return f"there are: {there}"

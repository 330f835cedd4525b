"""Several sources of text in given shares."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
import spacy
from spacy.attrs import IS_SPACE  # type: ignore[import-not-found]
from spacy.language import Language
from spacy.tokens import Doc

from ..errors import CorpusError
from .notes import Notes
from .raw_text import checked_limit, limited

AtEnd = Literal["stop", "go_on", "repeat"]
Source = Callable[[Language], Iterator[Doc]]


@spacy.registry.readers("spacy-elmo.Mix.v1")
def mix(
    sources: dict[str, Any],  # of Source: when a config is filled, these are still blocks
    weights: dict[str, float],
    *,
    at_end: AtEnd = "stop",
    limit_words: int = 0,
) -> Mix:
    """Build a reader that interleaves the documents of several readers, so that each has its share of the words.

    The next document is always that of the source which is furthest behind: whose words so far, divided by its weight,
    are the fewest (the first of them in the config's order). So the order is the same in every run, and this holds at
    every moment until a source ends: words divided by weight differ between two sources by no more than the longest
    document's words divided by its source's weight. No document is cut, or left out in between.

    sources: readers by name.
    weights: shares of the words, by the same names; only their proportions count.
    at_end: when a source is due and has no more documents. "stop": so does the mix, the shares are kept and the rest of
        the others is not read. "go_on": with the others, all is read once and the shares hold up to there. "repeat": it
        begins again, until each source has been read once.
    limit_words: stop after so many words (white space not counted); 0: none. With "repeat" it may end it earlier.
    RETURNS: a callable ``nlp -> Iterator[Doc]``.
    RAISES: CorpusError for names that differ, weights that are not above 0, or another value of an argument.
    """
    return Mix(sources, weights, at_end=at_end, limit_words=limit_words)


class Mix:
    """Documents of several readers, interleaved: see `mix`.

    notes: what the last reading left out, those of the sources included.
    """

    def __init__(
        self, sources: dict[str, Source], weights: dict[str, float], *, at_end: AtEnd = "stop", limit_words: int = 0
    ) -> None:
        if not sources or set(sources) != set(weights):
            raise CorpusError(
                f"sources are {_names(sources)}, weights are {_names(weights)}: give each source a weight, by its name"
            )
        for name, weight in weights.items():
            if not (weight > 0 and math.isfinite(weight)):
                raise CorpusError(f"weights: {name} is {weight}: give a number above 0, or leave the source out")
        if at_end not in get_args(AtEnd):
            raise CorpusError(f"at_end is {at_end!r}: give one of {', '.join(map(repr, get_args(AtEnd)))}")
        checked_limit(limit_words)
        self.sources = sources
        self.weights = weights
        self.at_end = at_end
        self.limit_words = limit_words
        self._notes = Notes()
        if all(hasattr(source, "fingerprint") for source in sources.values()):
            # Without one of each the mix has none either: it is then known by its block of the config.
            self.fingerprint = self._fingerprint

    def __call__(self, nlp: Language) -> Iterator[Doc]:
        """Read the sources. RAISES: CorpusError, at once or while iterating, as they do; if one has no words."""
        self._notes = Notes()
        streams = {name: source(nlp) for name, source in self.sources.items()}
        docs = self._interleaved(streams, nlp)
        return limited(docs, self.limit_words) if self.limit_words else docs

    @property
    def notes(self) -> Notes:
        """What was left out: by the sources, each named, and by the mix."""
        notes = Notes(self._notes.found)
        for source in self.sources.values():
            if isinstance(found := getattr(source, "notes", None), Notes):
                notes.update(found)
        return notes

    def _fingerprint(self) -> str:
        about = [[name, self.weights[name], source.fingerprint()] for name, source in self.sources.items()]  # type: ignore[attr-defined]
        return json.dumps(["Mix", about, self.at_end, self.limit_words])

    def _interleaved(self, streams: dict[str, Iterator[Doc]], nlp: Language) -> Iterator[Doc]:
        n_words = dict.fromkeys(streams, 0)
        ended: set[str] = set()  # read to the end once
        while streams:
            name = min(streams, key=lambda name: n_words[name] / self.weights[name])  # the first of equals
            doc = next(streams[name], None)
            if doc is not None:
                n_words[name] += len(doc) - int(np.count_nonzero(doc.to_array([IS_SPACE])))
                yield doc
                continue
            if not n_words[name]:
                raise CorpusError(f"The source '{name}' of the mix has no words")
            ended.add(name)
            if self.at_end == "go_on":
                del streams[name]
            elif self.at_end == "repeat" and len(ended) < len(self.sources):
                streams[name] = self.sources[name](nlp)
            else:
                break
        if self.at_end == "stop":
            for name in streams.keys() - ended:
                if next(streams[name], None) is not None:
                    self._notes.add("sources not read to their end", f"{name}, when {', '.join(sorted(ended))} ended")


def _names(named: dict[str, object] | dict[str, Source] | dict[str, float]) -> str:
    return ", ".join(sorted(named)) or "none"

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import spacy
import sympy  # type: ignore[import-untyped]

from spacy_elmo.errors import CorpusError
from spacy_elmo.pretraining import installed_docs as module
from spacy_elmo.pretraining.config import load_config, resolve
from spacy_elmo.pretraining.installed_docs import installed_docs, installed_docs_versions, prose_paragraphs
from spacy_elmo.pretraining.prepare import prepare_corpora

DOCSTRING = """Return the *smallest* item of an iterable, see :func:`~heapq.nsmallest`.

    The optional ``key`` argument is called once for each item, and the results
    are compared `like numbers <https://example.org/numbers>`_ [1]_. For instance::

        smallest(items, key=lambda item: item.weight)

    smallest(iterable, *, key=None) -> object

    >>> smallest([3, 1, 2])
    1

    Parameters
    ----------
    iterable : iterable of objects
        Where the items come from; it is read to its end.
    key : callable
        Called with each item.

    ====== =======
    name   meaning
    ====== =======
    a      first
    ====== =======

    Args:
        default (object): what is given when there is no item at all,
            instead of an error.

    .. code-block:: python

        This would be a sentence if it were not code.

    Notes
    -----
    - Items that are equal keep their order, because the sort is stable
      and nothing else is compared.
    - $x_1 = 2$

    Let $n$ be the number of items that are read. Then
    the time is $O(n \\log n)$, as was shown before.
"""


def test_prose_is_kept_and_the_rest_is_not() -> None:
    assert prose_paragraphs(DOCSTRING) == [
        "Return the smallest item of an iterable, see heapq.nsmallest.",
        "The optional key argument is called once for each item, and the results are compared like numbers. "
        "For instance:",
        "Where the items come from; it is read to its end.",
        "what is given when there is no item at all, instead of an error.",
        "Items that are equal keep their order, because the sort is stable and nothing else is compared.",
    ]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two distributions of our own instead of the real ones."""
    files = {
        "one/a.py": '"""This module says a first thing."""\nraise SystemExit("imported")\n',
        "one/b.py": 'def f():\n    """This module says a first thing.\n\n    And then a second thing too."""\n',
        "one/tests/c.py": '"""No test is read by the reader."""\n',
        "one/broken.py": '"""This file does not parse at all."""\ndef (:\n',
        "one/nul.py": '"""This file has a NUL in it."""\0\n',
        "two/d.py": 'class A:\n    x = 1\n    """An attribute is described like this."""\n'
        'add_docstr(A, r"""\nWhat a compiled function says goes here.\n""".format(1))\n',
        "two/latin.py": '# coding: latin-1\n"""A café is no trouble for us."""\n',
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    monkeypatch.setattr(module, "DISTRIBUTIONS", ("one", "two", "not_there"))
    monkeypatch.setattr(module, "_folders", lambda name: [tmp_path / name] if (tmp_path / name).exists() else [])
    module._modules.cache_clear()
    yield tmp_path
    module._modules.cache_clear()


def test_modules_are_sorted_parsed_and_deduplicated(installed: Path) -> None:
    assert [(found.distribution, found.path, found.paragraphs) for found in module._modules()] == [
        ("one", "a.py", ("This module says a first thing.",)),
        ("one", "b.py", ("And then a second thing too.",)),
        ("two", "d.py", ("An attribute is described like this.", "What a compiled function says goes here.")),
        ("two", "latin.py", ("A café is no trouble for us.",)),
    ]


def test_no_sources_is_an_error(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISTRIBUTIONS", ("not_there",))
    with pytest.raises(CorpusError, match="No docstrings"):
        next(installed_docs()(spacy.blank("en")))
    with pytest.raises(CorpusError, match="split is 'test'"):
        installed_docs("test")


def test_a_long_module_is_several_texts(installed: Path) -> None:
    found = module._Module("one", "a.py", ("a" * 60, "b" * 30, "c" * 30))
    assert list(found.texts(100)) == ["a" * 60 + "\n" + "b" * 30, "c" * 30]


def test_versions_name_what_is_read() -> None:
    versions = installed_docs_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["sympy"] == version("sympy") == sympy.__version__
    assert set(versions) == set(module.DISTRIBUTIONS)


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Only the quick ones of the real distributions."""
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "DISTRIBUTIONS", ("networkx", "numpy", "spacy", "thinc"))
    module._modules.cache_clear()
    yield
    patch.undo()
    module._modules.cache_clear()


@pytest.mark.slow
def test_splits_are_disjoint_and_most_is_train(small: None) -> None:
    nlp = spacy.blank("en")
    train, dev = ({doc.text for doc in installed_docs(split)(nlp)} for split in ("train", "dev"))
    lines = [line for text in train | dev for line in text.split("\n")]
    assert len(set(lines)) == len(lines)  # no paragraph twice, so none in both
    assert 0 < len(dev) < 0.1 * len(train)
    assert sum(len(line.split()) for line in lines) > 100_000


@pytest.mark.slow
def test_text_is_prose(small: None) -> None:
    nlp = spacy.blank("en")
    docs = list(installed_docs("train", limit_words=50_000)(nlp))
    words = np.concatenate([doc.to_array(["IS_ALPHA", "IS_SPACE", "IS_PUNCT"]) for doc in docs])
    assert (words[:, 1] == 0).sum() == 50_000
    assert words[:, [0, 1, 2]].any(axis=1).mean() > 0.93
    text = "\n".join(doc.text for doc in docs)
    assert not any(sign in text for sign in (">>>", "::", ":class:", "----", "``"))


def test_reader_resolves_from_a_config(small: None) -> None:
    block = {"@readers": "spacy-elmo.InstalledDocs.v1", "split": "dev", "limit_words": 40}
    reader = spacy.registry.resolve({"corpus": block})["corpus"]
    nlp = spacy.blank("en")
    assert sum(not token.is_space for doc in reader(nlp) for token in doc) == 40
    assert reader.fingerprint() != installed_docs("train", limit_words=40).fingerprint()


def test_nothing_is_imported() -> None:
    code = (
        "import sys, json; from spacy_elmo.pretraining import installed_docs as m\n"
        "m.DISTRIBUTIONS = ('networkx', 'sympy'); m._source_files = lambda folder, f=m._source_files: f(folder)[:20]\n"
        "before = set(sys.modules); n = len(m._modules()); print(json.dumps([n, sorted(set(sys.modules) - before)]))"
    )
    n_modules, imported = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    )
    assert n_modules > 10
    assert not [name for name in imported if name.split(".")[0] in ("networkx", "sympy")]


def test_nothing_is_parsed_where_the_cache_has_it(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = load_config(
        Path(__file__).parents[2] / "configs" / "pretrain.cfg",
        {"paths.cache": str(tmp_path / "cache"), "vocabulary.min_count": 1},
    )
    settings, filled = resolve(config)
    monkeypatch.setattr(module._Module, "in_dev", property(lambda found: found.path == "d.py"))
    corpora = prepare_corpora(settings, filled)
    assert (corpora.train.n_documents, corpora.dev.n_documents) == (3, 1)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_modules", lambda: pytest.fail("parsed again"))
        assert prepare_corpora(*resolve(config)).hashes == corpora.hashes

"""A corpus that is always there: the prose of the docstrings of installed distributions.

Needs no download and no licence. It is the same for one environment only: other versions are another text, so
perplexities on it are never compared across machines; `installed_docs_versions` says what was read.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import platform
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import spacy
from spacy.language import Language
from spacy.tokens import Doc

from ..errors import CorpusError
from .raw_text import checked_limit, limited
from .texts import Text, made_doc

STANDARD_LIBRARY = "python"
# What spaCy and torch bring along. The first in this order keeps a paragraph that several have.
DISTRIBUTIONS = (STANDARD_LIBRARY, "networkx", "numpy", "spacy", "sympy", "thinc", "torch")
# Folders without prose of interest, or that are no part of the distribution.
_SKIPPED_FOLDERS = frozenset(
    ("__pycache__", "dist-packages", "idlelib", "lib2to3", "site-packages", "test", "testing", "tests", "turtledemo")
)
_DEV_PERCENT = 3
# Raised when the rules of what is prose change: another corpus.
_RULES = 1
_MIN_WORDS = 5
# Docstrings that are arguments: numpy and torch attach those of compiled functions.
_ATTACHING_FUNCTIONS = frozenset(("add_docstr", "add_newdoc", "add_docstr_all"))


@spacy.registry.readers("spacy-elmo.InstalledDocs.v1")
def installed_docs(split: Literal["train", "dev"] = "train", *, limit_words: int = 0) -> InstalledDocs:
    """Build a reader of the docstrings of installed distributions.

    split: "dev" is about 3% of the modules, by the hash of their paths; "train" is the rest.
    limit_words: stop after so many words (white space not counted); 0 reads everything.
    RETURNS: a callable ``nlp -> Iterator[Doc]``, one Doc a module.
    """
    return InstalledDocs(split, limit_words=limit_words)


class InstalledDocs:
    """Prose of docstrings, a Doc a module, a paragraph a line, sorted by distribution and path.

    Files are parsed, never imported. Code, doctests, tables, signatures and lists of parameters are left out. A
    paragraph that stands in several places is read at the first of them only.
    """

    def __init__(self, split: Literal["train", "dev"] = "train", *, limit_words: int = 0) -> None:
        if split not in ("train", "dev"):
            raise CorpusError(f"split is {split!r}: give 'train' or 'dev'")
        checked_limit(limit_words)
        self.split = split
        self.limit_words = limit_words

    def __call__(self, nlp: Language) -> Iterator[Doc]:
        """Tokenise the modules of the split. RAISES: CorpusError if there are no sources to read."""
        docs = (made_doc(text, nlp) for text in self._read(nlp))
        return limited(docs, self.limit_words) if self.limit_words else docs

    def texts(self, nlp: Language) -> Iterator[Text]:
        """The modules untokenised: what other processes turn into Docs; with ``limit_words`` Docs. See ``__call__``."""
        return self(nlp) if self.limit_words else self._read(nlp)

    def _read(self, nlp: Language) -> Iterator[str]:
        # A generator: where the cache has the corpus, nothing is parsed.
        modules = [module for module in _modules() if module.in_dev == (self.split == "dev")]
        if not modules:
            raise CorpusError(
                "No docstrings were found: the installed Python has no source files (.py) of its standard library or "
                "of spaCy. Give text of your own with spacy-elmo.RawText.v1"
            )
        for module in modules:
            yield from module.texts(nlp.max_length)

    def fingerprint(self) -> str:
        """Identify what is read, without reading it: split, limit and versions."""
        return json.dumps(["InstalledDocs", _RULES, self.split, self.limit_words, installed_docs_versions()])


def installed_docs_versions() -> dict[str, str]:
    """Version of each distribution that is read; absent ones are left out. Quick: no file is opened.

    The hash of the text that they gave is that of the encoded corpus (``meta["sha256"]``).
    """
    versions = {STANDARD_LIBRARY: platform.python_version()}
    for name in DISTRIBUTIONS:
        if name != STANDARD_LIBRARY and _folders(name):
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:  # a source tree on the path
                versions[name] = "unknown"
    return versions


@dataclass(frozen=True)
class _Module:
    distribution: str
    path: str  # relative to the distribution's folder, with "/"
    paragraphs: tuple[str, ...]

    @property
    def in_dev(self) -> bool:
        digest = hashlib.sha256(f"{self.distribution}/{self.path}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % 100 < _DEV_PERCENT

    def texts(self, longest: int) -> Iterator[str]:
        """The paragraphs as lines, in texts of at most `longest` characters."""
        lines: list[str] = []
        size = 0
        for paragraph in self.paragraphs:
            if lines and size + len(paragraph) > longest:
                yield "\n".join(lines)
                lines, size = [], 0
            lines.append(paragraph)
            size += len(paragraph) + 1
        yield "\n".join(lines)


@lru_cache(maxsize=1)
def _modules() -> tuple[_Module, ...]:
    """All modules with prose. Kept: train and dev are read by one process, and to parse all files takes seconds."""
    seen: set[str] = set()
    modules = []
    for distribution, path, docstrings in _sources():
        paragraphs = []
        for docstring in docstrings:
            for paragraph in prose_paragraphs(docstring):
                if paragraph not in seen:
                    seen.add(paragraph)
                    paragraphs.append(paragraph)
        if paragraphs:
            modules.append(_Module(distribution, path, tuple(paragraphs)))
    return tuple(modules)


def _sources() -> Iterator[tuple[str, str, list[str]]]:
    """Distribution, relative path and docstrings of each source file, sorted."""
    collecting = gc.isenabled()
    # Syntax trees hold no cycles, but so many objects that the collector takes two thirds of the time to parse.
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in others' code
            for distribution in DISTRIBUTIONS:
                for folder in _folders(distribution):
                    for path, file in _source_files(folder):
                        yield distribution, path, list(_docstrings(file))
    finally:
        if collecting:
            gc.enable()


def _folders(distribution: str) -> list[Path]:
    if distribution == STANDARD_LIBRARY:
        return [Path(sysconfig.get_path("stdlib"))]
    spec = importlib.util.find_spec(distribution)  # of a top-level name: imports nothing
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []


def _source_files(folder: Path) -> list[tuple[str, Path]]:
    found = [(file.relative_to(folder), file) for file in folder.rglob("*.py")]
    return sorted((path.as_posix(), file) for path, file in found if _SKIPPED_FOLDERS.isdisjoint(path.parts))


def _docstrings(file: Path) -> Iterator[str]:
    """Docstrings of a source file in order: every string that is a statement, and those given to numpy's and
    torch's functions that attach one. A file that does not parse has none.
    """
    try:
        with tokenize.open(file) as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in _walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
        elif isinstance(node, ast.Call) and _name(node.func) in _ATTACHING_FUNCTIONS:
            for argument in ast.walk(node):
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and "\n" in argument.value:
                    yield argument.value


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement and the calls that are statements, in the order of the source."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call):
                yield node.value
            continue
        stack.extend(child for child in reversed(list(ast.iter_child_nodes(node))) if isinstance(child, _BODIES))


_BODIES = (ast.stmt, ast.excepthandler, ast.match_case)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


# ------------------------------------------------------------------------------------------------------------ prose

_BULLET = re.compile(r"\A\s*(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
# ``name (type): text``, ``name : type``, ``name -- text`` and ``:param name: text``: heads of parameters.
_PARAMETER = re.compile(r"\A\s*(?:\*{0,2}`{0,2}[a-z_]\w*`{0,2}(?: ?\([^)]*\))?\s*(?::|--|–)|:\w[\w ,.*]*:)(?:\s+|\Z)")
_UNDERLINE = re.compile(r"\s*([-=~^\"'`#*+.:_])\1{2,}\s*")
# ``:class:`~a.b.Name` ``, ``:func:`text <target>` `` and the like.
_ROLE = re.compile(r":[a-zA-Z][\w:+-]*:`~?\.?([^`<]*?)\s*(?:<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}")
_REFERENCE = re.compile(r"\s*\[#?\w{0,12}\]_")
_LITERAL = re.compile(r"``(.+?)``|`([^`]+)`_{0,2}")
_SYMBOL = re.compile(r"\$(\w{1,12})\$")
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,2})(\S(?:[^*]*?\S)?)\1(?!\w)")
_NOT_PROSE = re.compile(r">>>|\.\. |::|[|{}\\$`]|->|==|[-=~+*_]{3,}|\.{4,}|\s=\s|%\(|https?:")
_FIRST = re.compile(r"[\"'(\[]?[A-Z]")
_LAST = re.compile(r"[.!?:][\"')\]]*$")
_PLAIN_WORD = re.compile(r"[\"'(\[]*[A-Za-z][A-Za-z'’-]*[\"')\].,;:!?]*$")


def prose_paragraphs(docstring: str) -> list[str]:
    """Take the paragraphs of prose out of a docstring, each joined to one line, Sphinx markup removed.

    A paragraph is lines of one indent without a blank line between; bullets and the heads of parameters (name and
    type) begin another and are cut off. It is prose if it begins with a capital, ends like a sentence (or is long, or
    plain words only), has five words or more, four of five of them plain, and no sign of code, a table or a formula.
    """
    paragraphs = []
    for block in _blocks(inspect.cleandoc(docstring)):
        text, n_heads = _PARAMETER.subn("", _BULLET.sub("", " ".join(line.strip() for line in block)))
        text = _without_markup(text[:-1] if text.endswith("::") else text)
        # What a parameter is may be said in lower case.
        if (n_heads or _FIRST.match(text)) and _is_prose(text):
            paragraphs.append(text)
    return paragraphs


def _blocks(docstring: str) -> Iterator[list[str]]:
    """Split a docstring into blocks of lines; doctests, and what is indented under ``::`` or a directive, left out."""
    block: list[str] = []
    depth = 0  # indent of the block's lines; of a hanging block those after the first
    hanging = False  # one line so far, whose next ones may be deeper
    code: int | None = None  # what is deeper than this is code
    in_doctest = False
    for line in [*docstring.expandtabs().split("\n"), ""]:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        begins = _BULLET.match(line) or _PARAMETER.match(line)
        if hanging and stripped and indent > depth and not begins:
            depth, hanging = indent, False
        elif block and (not stripped or indent != depth or begins or stripped.startswith(">>>")):
            directive = block[0].lstrip().startswith(".. ")
            if directive or block[-1].endswith("::"):
                code = len(block[0]) - len(block[0].lstrip())
            if not directive:
                yield block
            block = []
        if not stripped:
            in_doctest = False
            continue
        if _UNDERLINE.fullmatch(line):
            block = []  # was a heading
            continue
        in_doctest = in_doctest or stripped.startswith(">>>")
        if code is not None and indent <= code:
            code = None
        if in_doctest or code is not None:
            continue
        if not block:
            # numpydoc's ``name : type`` is a line of its own, what follows deeper is prose.
            depth, hanging = indent, begins is not None and " : " not in line
        block.append(line)


def _without_markup(text: str) -> str:
    text = _ROLE.sub(r"\1", text)
    text = _LINK.sub(r"\1", text)
    text = _REFERENCE.sub("", text)
    text = _LITERAL.sub(lambda match: match[1] or match[2], text)
    text = _SYMBOL.sub(r"\1", text)
    text = _EMPHASIS.sub(r"\2", text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    if _NOT_PROSE.search(text):
        return False
    words = text.split()
    if len(words) < _MIN_WORDS:
        return False
    n_plain = sum(_PLAIN_WORD.match(word) is not None for word in words)
    if n_plain < 0.8 * len(words):
        return False
    # Summaries often lack their full stop; short and full of names they are headings.
    return n_plain == len(words) or len(words) >= 2 * _MIN_WORDS or _LAST.search(text) is not None

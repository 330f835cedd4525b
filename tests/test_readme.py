"""Every fenced block of README.md, docs/ and the cards of built-in weights is run, or, where that would take long or
download, shown to be right.

A new block needs nothing where it is Python; a new command line needs an entry in COMMANDS, or its test fails.
A value behind a `print(...)`, such as `# 0.63` or `# (3, 256)`, is compared with what is printed.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
import spacy
import srsly
from packaging.requirements import Requirement
from spacy.cli._util import app
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_config_from_str, load_model_from_config
from typer.testing import CliRunner
from weasel.cli.document import project_document
from weasel.cli.run import project_run
from weasel.util import load_project_config, parse_config_overrides

from benchmarks import downstream, material
from spacy_elmo import load_bilm, save_bilm
from spacy_elmo.pipeline.saved_bilm import bilm_of_pipeline
from spacy_elmo.pretraining.config import load_config
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.weights import bilm_to_bytes

ROOT = Path(__file__).resolve().parents[1]
CARDS = (ROOT / "spacy_elmo" / "models").glob("*/README.md")
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *CARDS])
# Documents, so many that some are held out.
TEXT = "\n".join(f"The river bank was muddy. Bank number {i} lent us money.\nNobody swims there.\n" for i in range(300))


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    path: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def fenced_blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf8")
    return [
        Block(path, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
    ]


# A `print(...)` in a line of its own, and what the comment behind it says.
PRINT = re.compile(r"^( *)(print\(.*\)) +# (.+)$", re.MULTILINE)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
NEAR = 0.01


def is_value(comment: str) -> bool:
    """Whether a comment is something that may be printed: numbers, a word, a tuple, a list. All else explains."""
    try:
        ast.literal_eval(comment)
    except (SyntaxError, ValueError):
        return not re.search(r"\s", comment) or not re.search(r"[^\W\d]", NUMBER.sub("", comment))
    return True


def agree(printed: str, expected: str) -> bool:
    """Whether two lines are the same but for spaces and for numbers, which differ by `NEAR` at most."""
    texts = ["".join(NUMBER.sub("#", line).split()) for line in (printed, expected)]
    numbers = [[float(number) for number in NUMBER.findall(line)] for line in (printed, expected)]
    return texts[0] == texts[1] and all(abs(a - b) <= NEAR + 1e-9 for a, b in zip(*numbers, strict=True))


def run_blocks(blocks: list[Block], folder: Path) -> None:
    """Run Python blocks one after the other, and compare what they print with the values in their comments."""
    expected: list[tuple[str, str]] = []

    def marked(found: re.Match[str]) -> str:
        indent, statement, comment = found.groups()
        if not is_value(comment):
            return found[0]
        expected.append((statement, comment))
        return f"{indent}print('\\x1f{len(expected) - 1}\\x1f', end=''); {statement}"

    printed = run([sys.executable, "-c", "\n".join(PRINT.sub(marked, block.code) for block in blocks)], folder)
    lines = [(int(number), line) for number, line in re.findall("\x1f(\\d+)\x1f(.*)", printed)]
    assert {number for number, _ in lines} == set(range(len(expected))), "a line that prints was not reached"
    wrong = [f"{expected[number]} printed {line}" for number, line in lines if not agree(line, expected[number][1])]
    assert wrong == []


BLOCKS = [block for path in DOCUMENTS for block in fenced_blocks(path)]
COMMAND_LINES = [
    (str(block), line)
    for block in BLOCKS
    if block.language == "bash"
    for line in block.code.replace("\\\n", " ").splitlines()
    if line.strip()
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documents' examples speak of: the project's files, weights, texts and annotated data."""
    folder = tmp_path_factory.mktemp("workplace")
    for name in ("benchmarks", "configs", "docs", "scripts"):
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    for name in ("project.yml", "requirements.txt", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("my_text.txt", "my_held_out_text.txt"):
        (folder / name).write_text(TEXT, encoding="utf8")
    small = {
        "model.lstm_dim": 16,
        "model.projection_dim": 8,
        "model.filters": [[1, 8], [2, 8]],
        "training.max_steps": 2,
    }
    paths = {"paths.raw": str(folder / "my_text.txt"), "paths.cache": str(folder / "corpus")}
    pretrain(load_config(folder / "configs" / "pretrain.cfg", {**small, **paths}), folder / "training" / "bilm")
    # of a command that is not run in full
    (folder / "training" / "my_bilm").symlink_to("bilm", target_is_directory=True)
    save_bilm(load_bilm(folder / "training" / "bilm" / "model-best"), folder / "my_weights", "bilm-hdf5")
    nlp = spacy.blank("en")
    words, tags, deps = ["Ann", "swims", "."], ["NNP", "VBZ", "."], ["nsubj", "ROOT", "punct"]
    doc = Doc(nlp.vocab, words=words, tags=tags, heads=[1, 1, 1], deps=deps)
    doc.set_ents([Span(doc, 0, 1, label="PERSON")])
    for name in ("train.spacy", "dev.spacy"):
        # more than the parser's min_action_freq of each label
        DocBin(docs=[doc] * 40).to_disk(folder / name)
    return folder


def run(command: list[str], folder: Path, given: str | None = None) -> str:
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """That folder as the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_spacy(arguments: list[str], folder: Path, given: str | None = None) -> str:
    """`python -m spacy ...` in this process: a new one takes seconds to begin, and there are dozens."""
    spacy.registry.cli.get_all()  # `elmo` is a plug-in
    with inside(folder):
        result = CliRunner(env={"NO_COLOR": "1"}).invoke(app, arguments, input=given)
    assert result.exit_code == 0, f"{shlex.join(arguments)}\n{result.output}\n{result.exception!r}"
    return result.stdout


# How each command line is checked: it is run as it stands, or by the nearest thing that is quick and needs no network.


def as_it_stands(words: list[str], folder: Path) -> str:
    assert words[:3] == ["python", "-m", "spacy"]
    return run_spacy(words[3:], folder)


def piped(words: list[str], folder: Path) -> None:
    """`cat text | command`."""
    assert words[3:6] == ["python", "-m", "spacy"]
    run_spacy(words[6:], folder, (folder / words[1]).read_text(encoding="utf8"))


def with_dry_run(words: list[str], folder: Path) -> None:
    """`elmo pretrain`: reads the text and prints the plan."""
    dry = [] if "--dry-run" in words else ["--dry-run"]
    # the docstrings of all installed packages take a while to read
    text = [] if "--paths.raw" in words else ["--paths.raw", "my_text.txt"]
    assert "parameters" in as_it_stands([*words, *dry, *text], folder)


def on_ranks_with_dry_run(words: list[str], folder: Path) -> None:
    """`torchrun ... elmo pretrain`: as many processes read the text, and one prints the plan."""
    printed = run([sys.executable, "-m", "torch.distributed.run", *words[1:], "--dry-run"], folder)
    assert printed.count("2 processes, each with 32 rows") == 1


def trains(words: list[str], folder: Path, weights: str = "en") -> None:
    """`spacy train`: few steps. What it saves has the weights that the line names, or else those of the config."""
    if "--paths.elmo" in words:
        weights = str(folder / words[words.index("--paths.elmo") + 1])
    few = ["--training.max_steps", "2", "--training.eval_frequency", "1"]
    as_it_stands([*words, *few], folder)
    found = bilm_of_pipeline(folder / words[words.index("--output") + 1] / "model-last")
    assert bilm_to_bytes(found) == bilm_to_bytes(load_bilm(weights))


def makes_config(words: list[str], folder: Path) -> None:
    """`elmo init-config`: another document may have made one of the same name."""
    printed = as_it_stands([*words, "--force"], folder)
    config = printed if words[5] == "-" else (folder / words[5]).read_text(encoding="utf8")
    assert load_config_from_str(config)["nlp"]["pipeline"][0] == "elmo"


def trains_made_config(words: list[str], folder: Path) -> None:
    """`spacy train` with a config that `elmo init-config` makes in the same documents."""
    (made,) = {line for _, line in COMMAND_LINES if line.startswith(f"python -m spacy elmo init-config {words[4]} ")}
    makes_config(shlex.split(made), folder)
    trains(words, folder, str(folder / "training" / "bilm" / "model-best"))


def mixes(words: list[str], folder: Path) -> None:
    """`elmo mix`: in place of a pipeline that takes long to train, of one that was not."""
    if not (folder / words[5]).exists():
        code = (
            "import sys; from spacy.training.initialize import init_nlp; from spacy.util import load_config\n"
            "paths = {'train': 'train.spacy', 'dev': 'dev.spacy', 'elmo': sys.argv[1]}\n"
            "config = load_config('configs/ner_elmo.cfg', {f'paths.{name}': path for name, path in paths.items()})\n"
            "init_nlp(config).to_disk(sys.argv[2])"
        )
        (folder / words[5]).parent.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-c", code, "training/bilm/model-best", words[5]], folder)
    if "--plot" in words and importlib.util.find_spec("matplotlib") is None:
        words = words[: words.index("--plot")]
    assert "ner" in as_it_stands(words, folder)


def converts(words: list[str], folder: Path) -> None:
    """`elmo convert`: of what is there, or, in place of a pipeline that takes long to train, of one that was not."""
    source = folder / words[5]
    if not source.exists():
        save = "spacy_elmo.save_bilm(bilm, sys.argv[2], 'bilm-hdf5')"
        if words[5].startswith("training/"):
            save = "nlp = spacy.blank('en'); nlp.add_pipe('elmo').load_weights(bilm); nlp.to_disk(sys.argv[2])"
        code = f"import spacy, spacy_elmo, sys; bilm = spacy_elmo.load_bilm(sys.argv[1]); {save}"
        source.parent.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-c", code, "training/bilm/model-best", str(source)], folder)
    assert words[6] in as_it_stands(words, folder)


def project_steps(words: list[str], folder: Path) -> None:
    """`spacy project run`: the workflow or command and each variable exist; tests/test_project.py runs them."""
    name, *rest = words[5:]
    overrides = parse_config_overrides(rest[1:])
    known = srsly.read_yaml(folder / "project.yml")["vars"]
    assert all(key.removeprefix("vars.") in known for key in overrides)
    project_run(folder, name, overrides=overrides, dry=True)


def project_assets(words: list[str], folder: Path) -> None:
    """`spacy project assets --extra` clones repositories: that there are such assets, for both tasks."""
    extra = [asset for asset in load_project_config(folder)["assets"] if asset.get("extra")]
    assert {Path(asset["dest"]).parts[1] for asset in extra} == {"ner", "tagger_parser"}


def requirements_installed(words: list[str], folder: Path) -> None:
    """`pip install -r requirements.txt`: every line is a pin of an installed distribution, or this package."""
    lines = [line.split("#")[0].strip() for line in (folder / words[3]).read_text(encoding="utf8").splitlines()]
    pins = [Requirement(line) for line in lines if line and line != "-e ."]
    assert "-e ." in lines
    for pin in pins:
        assert str(pin.specifier).startswith("=="), pin
        distribution(pin.name)
    found = [Requirement(line) for line in requires("spacy-elmo") or []]
    needed = {need.name for need in found if need.marker is None or need.marker.evaluate({"extra": "dev"})}
    assert needed <= {pin.name for pin in pins}


def extra_exists(words: list[str], folder: Path) -> None:
    extra = words[3].removeprefix(".[").removesuffix("]")
    assert extra in (distribution("spacy-elmo").metadata.get_all("Provides-Extra") or [])


def makes_environment(words: list[str], folder: Path) -> None:
    # without pip, which takes a while; whether a Python brings it is its own affair
    run([sys.executable, *words[1:3], str(folder / "new-venv"), "--without-pip"], folder)
    assert (folder / "new-venv" / "pyvenv.cfg").is_file()


def this_runs_it(words: list[str], folder: Path) -> None:
    """`python -m pytest` is what runs this test; CI runs the same line."""
    assert shlex.join(words) in (ROOT / ".ci" / "run").read_text(encoding="utf8").splitlines()


def lists_runs(words: list[str], folder: Path) -> None:
    """The grid of downstream tasks: it would take hours, and data."""
    printed = io.StringIO()
    with inside(folder), redirect_stdout(printed):
        downstream.main([*words[3:], "--dry-run"])
    assert "conll-0.1-elmo-0\n" in printed.getvalue()


def reports(words: list[str], folder: Path) -> None:
    """The grid's tables of runs that are there."""
    printed = io.StringIO()
    with inside(folder), redirect_stdout(printed):
        downstream.main(words[3:])
    assert re.search(r"^\| 10% \| elmo \| 5 \|", printed.getvalue(), re.MULTILINE)


def has_such_options(words: list[str], folder: Path) -> None:
    """`benchmarks.material`: tests/benchmarks/test_downstream.py runs each of its commands."""
    assert material.options().parse_args(words[3:]).command == words[3]


def draws(words: list[str], folder: Path) -> None:
    """`elmo curve`: where matplotlib is missing, an error that says so."""
    if importlib.util.find_spec("matplotlib") is not None:
        assert (folder / as_it_stands(words, folder).split()[0]).is_file()
        return
    done = subprocess.run([sys.executable, *words[1:]], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert "spacy-elmo[plot]" in done.stdout


def probes(words: list[str], folder: Path) -> None:
    """`benchmarks.probes`: of a few sentences."""
    rows = {"the": "the\tDET\tDT", "saw": "saw\tNOUN\tNN", "we": "we\tPRON\tPRP", "Saw": "see\tVERB\tVBD"}
    for name in ("train", "test"):
        with open(folder / f"{name}.conllu", "w", encoding="utf8") as file:
            for number, row in list(zip((1, 2, 1, 2), rows.items(), strict=True)) * 10:
                end = "\n" * number  # a sentence has two words
                file.write(f"{number}\t{row[0].lower()}\t{row[1]}\t_\t0\t_\t_\t_{end}")
        (folder / f"{name}.conll").write_text("Mr O\nLee B-PER\n\nin O\nLee B-LOC\n\n" * 10, encoding="utf8")
    printed = run([sys.executable, *words[1:]], folder)
    assert all(f"| {name} |" in printed for name in ("layer 2", "UPOS", "lemma", "entity type", "sense"))


COMMANDS: list[tuple[str, Callable[[list[str], Path], object]]] = [
    (r'pip install -e "\.\[\w+\]"', extra_exists),
    (r"python -m venv \.venv && \. \.venv/bin/activate", makes_environment),
    (r"pip install -r requirements\.txt", requirements_installed),
    (r"python -m pytest", this_runs_it),
    (r"python -m spacy project run \S+( \. .*)?", project_steps),
    (r"python -m spacy project assets --extra", project_assets),
    (r"python -m spacy train [^/ ]+\.cfg .*", trains_made_config),
    (r"python -m spacy train .*", trains),
    (r"python -m spacy elmo pretrain .*", with_dry_run),
    (r"torchrun .* -m spacy elmo pretrain .*", on_ranks_with_dry_run),
    (r"python -m spacy elmo (corpus|debug-data) .*", as_it_stands),
    (r"cat my_text\.txt \| python -m spacy elmo corpus .*", piped),
    (r"python -m spacy elmo (perplexity|info|embed|neighbors) .*", as_it_stands),
    (r"python -m spacy elmo init-config .*", makes_config),
    (r"python -m spacy elmo mix .*", mixes),
    (r"python -m spacy elmo info", as_it_stands),
    (r"python -m spacy elmo convert .*", converts),
    (r"python -m spacy elmo curve .*", draws),
    (r"python -m benchmarks\.probes .*", probes),
    (r"python -m benchmarks\.downstream --report .*", reports),
    (r"python -m benchmarks\.downstream .*", lists_runs),
    (r"python -m benchmarks\.material .*", has_such_options),
]


def test_documents_have_blocks_of_known_languages() -> None:
    assert {block.language for block in BLOCKS} == {"python", "bash", "ini", "json"}


@pytest.mark.parametrize(("where", "line"), COMMAND_LINES, ids=[where for where, _ in COMMAND_LINES])
def test_command_lines(where: str, line: str, workplace: Path) -> None:
    checks = [check for pattern, check in COMMANDS if re.fullmatch(pattern, line)]
    assert checks, f"{where}: no check for `{line}`: add one to COMMANDS"
    checks[0](shlex.split(line), workplace)


@pytest.mark.parametrize(
    "path", sorted({block.path for block in BLOCKS if block.language == "python"}), ids=lambda path: path.name
)
def test_python_blocks_run(path: Path, workplace: Path) -> None:
    # One process for a document: a later block may go on where an earlier one stopped.
    run_blocks([block for block in BLOCKS if block.path == path and block.language == "python"], workplace)


@pytest.mark.parametrize(
    "comment", ["0.63", "0.63 0.41", "(3, 13, 256)", "-1", "bank", "['bank', 'river']", "True", "3%"]
)
def test_values_are_compared(comment: str) -> None:
    assert is_value(comment)
    assert agree(comment, comment)
    assert not agree(f"{comment} 2", comment)


@pytest.mark.parametrize(
    "comment", ["(tokens, width)", "(width,) of a token, and of a span", "s_j and γ: see tools.md", "0.63 or so"]
)
def test_explanations_are_left(comment: str) -> None:
    assert not is_value(comment)


def test_what_is_printed_is_what_the_comment_says(tmp_path: Path) -> None:
    right = (
        "for i in (1, 2):\n    print(i / 2, f'{i:.2f}')  # {} {}\nprint((1, 2))  # (1,2)\nprint('x')  # not a value\n"
    )
    code = right.replace("{} {}", "0.5 1.00").replace("(1, 2):", "(1,):")
    run_blocks([Block(ROOT / "README.md", 1, "python", code)], tmp_path)
    run_blocks([Block(ROOT / "README.md", 1, "python", code.replace("0.5 1.00", "0.509 0.995"))], tmp_path)
    for old, new in (("0.5 1.00", "0.52 1.00"), ("0.5 1.00", "0.5"), ("(1,2)", "[1, 2]"), ("(1,):", "(1, 2):")):
        with pytest.raises(AssertionError, match="printed"):
            run_blocks([Block(ROOT / "README.md", 1, "python", code.replace(old, new))], tmp_path)
    with pytest.raises(AssertionError, match="not reached"):
        run_blocks([Block(ROOT / "README.md", 1, "python", code.replace("(1,):", "():"))], tmp_path)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "ini"], ids=str)
def test_config_fragments_build_a_pipeline(block: Block) -> None:
    # A fragment stands in a config that has the sections around its own and the language; all else it brings itself.
    pieces = re.split(r"^\[(.+)\]\n", block.code, flags=re.MULTILINE)
    chunks = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    for name in list(chunks):
        for depth in range(1, name.count(".") + 1):
            chunks.setdefault(name.rsplit(".", depth)[0], "")
    chunks["nlp"] = 'lang = "en"\n' + chunks.get("nlp", "")
    code = "".join(f"[{name}]\n{chunks[name]}\n" for name in sorted(chunks))
    config = load_config_from_str(code)
    nlp = load_model_from_config(config, auto_fill=True)
    assert nlp.pipe_names == config["nlp"].get("pipeline", [])
    if "elmo" in config.get("initialize", {}).get("components", {}):
        settings = nlp.config.interpolate()["initialize"]["components"]["elmo"]
        assert set(settings) == {"weights"}
        spacy.registry.resolve({"settings": settings})


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_json_lines_are_a_plan(block: Block, workplace: Path) -> None:
    (workplace / "plan.jsonl").write_text(block.code, encoding="utf8")
    code = "from benchmarks.grid.arms import *; print(len(read_plan(Path('plan.jsonl'))))"
    assert int(run([sys.executable, "-c", code], workplace)) == len(block.code.splitlines())


def test_spacy_project_document_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "project.yml").symlink_to(ROOT / "project.yml")
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    (tmp_path / "README.md").write_text(readme, encoding="utf8")
    project_document(tmp_path, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text(encoding="utf8") == readme


def test_links_lead_somewhere() -> None:
    broken = [
        f"{path.name}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf8"))
        if not target.startswith("http") and not (path.parent / target).exists()
    ]
    assert broken == []

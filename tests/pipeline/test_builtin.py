"""The first use of an `elmo` without weights takes the built-in ones of its language; nothing else ever loads them."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.cli import app
from spacy.tokens import DocBin, Span
from spacy.training import Example
from thinc.api import CupyOps
from typer.testing import CliRunner

from spacy_elmo import BiLM, ElmoError, load_bilm, save_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.bilm_model import on_gpu, random_bilm
from spacy_elmo.layers.config_error import ElmoConfigError
from tests.pipeline.toys import blank, examples, getter, listener, ner_config, tagger_config, with_elmo
from tests.weights.offering import Offering, install

LANG = "xx"  # no installed package has weights for it, and its tokenizer is the plain one
TEXT = "Ann went to Rome . Paris saw Bob !"


@pytest.fixture
def folder(bilm: BiLM, tmp_path: Path) -> Path:
    save_bilm(bilm, tmp_path / "weights", dtype="float16")
    return tmp_path / "weights"


@pytest.fixture
def offering(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offering:
    """An installed package with weights for the language."""
    return install(tmp_path, monkeypatch, LANG, folder)


def expected(folder: Path, text: str = TEXT) -> np.ndarray:
    nlp = blank(LANG)
    nlp.add_pipe("elmo").load_weights(folder)
    return nlp(text)._.elmo.layers


@pytest.mark.parametrize(
    "use",
    [
        lambda nlp: nlp(TEXT),
        lambda nlp: next(nlp.pipe([TEXT])),
        lambda nlp: (nlp.initialize(), nlp(TEXT))[1],
        lambda nlp: (nlp.get_pipe("elmo").load_weights(LANG), nlp(TEXT))[1],
    ],
    ids=["one text", "stream", "initialize", "by its name"],
)
def test_the_first_use_takes_them(offering: Offering, folder: Path, use: Callable[[Any], Any]) -> None:
    nlp = blank(LANG)
    elmo = nlp.add_pipe("elmo")
    assert elmo.bilm is None
    assert offering.calls == 0
    np.testing.assert_array_equal(use(nlp)._.elmo.layers, expected(folder))
    assert offering.calls == 1
    nlp(TEXT)
    nlp.initialize()
    assert offering.calls == 1


def test_by_their_name_in_the_config(offering: Offering, folder: Path) -> None:
    nlp = blank("sv")
    nlp.add_pipe("elmo")
    nlp.config["initialize"]["components"]["elmo"] = {"weights": f"{LANG}@acme-elmo"}
    nlp.initialize()
    assert offering.calls == 1
    np.testing.assert_array_equal(nlp(TEXT)._.elmo.layers, expected(folder))


def test_weights_of_ones_own_go_first(offering: Offering, bilm: BiLM, tmp_path: Path) -> None:
    own = random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2)
    nlp = blank(LANG)
    nlp.add_pipe("elmo").load_weights(own)
    nlp.initialize()
    assert nlp(TEXT)._.elmo.layers.shape == (3, 9, 8)
    nlp.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    assert again(TEXT)._.elmo.layers.shape == (3, 9, 8)
    from_bytes = blank(LANG)
    from_bytes.add_pipe("elmo")
    assert from_bytes.from_bytes(nlp.to_bytes())(TEXT)._.elmo.layers.shape == (3, 9, 8)
    by_config = blank(LANG)
    by_config.add_pipe("elmo")
    save_bilm(own, tmp_path / "own")
    by_config.config["initialize"]["components"]["elmo"] = {"weights": str(tmp_path / "own")}
    by_config.initialize()
    assert by_config(TEXT)._.elmo.layers.shape == (3, 9, 8)
    assert offering.calls == 0


def test_only_use_loads_them(offering: Offering, folder: Path, tmp_path: Path) -> None:
    nlp = blank(LANG)
    nlp.add_pipe("elmo")
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.analyze_pipes()
    copies = [copy.deepcopy(nlp.get_pipe("elmo")), pickle.loads(pickle.dumps(nlp)).get_pipe("elmo")]
    nlp.to_disk(tmp_path / "pipeline")
    again: Any = spacy.load(tmp_path / "pipeline")
    copies.append(again.get_pipe("elmo"))
    nlp.select_pipes(disable=["tagger"])
    assert [pipe.bilm for pipe in copies] == [None, None, None]
    assert offering.calls == 0
    for number, pipe in enumerate(copies, start=1):
        (layers,) = pipe.predict([nlp.make_doc(TEXT)])
        np.testing.assert_array_equal(layers, expected(folder))
        assert offering.calls == number


def test_what_was_taken_is_saved(offering: Offering, folder: Path, tmp_path: Path) -> None:
    nlp = blank(LANG)
    nlp.add_pipe("elmo")
    nlp(TEXT)
    nlp.to_disk(tmp_path / "pipeline")
    # no larger than they came
    extra = (tmp_path / "pipeline" / "elmo" / "model").stat().st_size - (folder / "model.safetensors").stat().st_size
    assert 0 < extra < 1000
    again: Any = spacy.load(tmp_path / "pipeline")
    assert again.get_pipe("elmo").bilm is not None
    np.testing.assert_array_equal(again(TEXT)._.elmo.layers, expected(folder))
    assert offering.calls == 1


@pytest.mark.parametrize("config", [tagger_config(listener()), tagger_config(with_elmo())], ids=["listener", "tok2vec"])
def test_listeners_take_the_widths_in_initialize(offering: Offering, bilm: BiLM, config: dict[str, Any]) -> None:
    nlp = blank(LANG)
    elmo = nlp.add_pipe("elmo")
    nlp.add_pipe("tagger", config=config)
    (inner,) = elmo.listeners
    assert not inner.has_dim("nO")
    optimizer = nlp.initialize(getter(nlp))
    assert inner.get_dim("nO") == bilm.config.width
    losses = [nlp.update(examples(nlp), sgd=optimizer)["tagger"] for _ in range(20)]
    assert losses[-1] < losses[0]
    assert offering.calls == 1


def test_a_listener_that_is_initialized_alone(offering: Offering, bilm: BiLM) -> None:
    nlp = blank(LANG)
    elmo = nlp.add_pipe("elmo")
    nlp.add_pipe("ner", config=ner_config(listener()))
    nlp.get_pipe("ner").initialize(getter(nlp), nlp=nlp)
    assert elmo.listeners[0].get_dim("nO") == bilm.config.width
    assert offering.calls == 1


def without_its_weights(tmp_path: Path) -> Any:
    """A pipeline whose tagger was made for other weights than the built-in ones, and has lost them."""
    nlp = blank(LANG)
    nlp.add_pipe("elmo").load_weights(random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2))
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.initialize(getter(nlp))
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "pipeline" / "elmo" / "model").write_bytes(blank_model())
    return spacy.load(tmp_path / "pipeline")


def test_a_listener_made_for_another_shape(folder: Path, offering: Offering, tmp_path: Path) -> None:
    again = without_its_weights(tmp_path)
    with pytest.raises(ElmoError, match="'tagger' was initialized for ELMo weights with 3 layers of width 8; these"):
        again(TEXT)
    assert again.get_pipe("elmo").bilm is None


def blank_model() -> bytes:
    """What an `elmo` without weights is saved as."""
    nlp = blank(LANG)
    return nlp.add_pipe("elmo").model.to_bytes()


def test_listeners_can_be_replaced_at_once(offering: Offering, folder: Path) -> None:
    nlp = blank(LANG)
    nlp.add_pipe("elmo")
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    nlp.initialize(getter(nlp))
    nlp.update([Example.from_dict(nlp.make_doc("Ann"), {"tags": ["NOUN"]})])
    assert nlp("Ann went")[0].tag_
    kernels = [
        value
        for node in nlp.get_pipe("tagger").model.walk()
        for shim in node.shims
        for name, value in shim.bilm.state_dict().items()
        if name == "forward_lstm.layers.0.kernel"
    ]
    assert len(kernels) == 1
    assert torch.equal(kernels[0], load_bilm(folder).state_dict()["forward_lstm.layers.0.kernel"])
    assert offering.calls == 1


def test_threads_that_come_together_load_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""
import time
calls = []

def weights():
    calls.append(1)
    time.sleep(0.2)  # the others come meanwhile
    return {str(folder)!r}
"""
    offering = install(tmp_path, monkeypatch, LANG, folder, code=code)
    nlp = blank(LANG)
    elmo = nlp.add_pipe("elmo")
    docs = [nlp.make_doc(TEXT) for _ in range(4)]
    barrier, found, bilms = threading.Barrier(len(docs)), {}, set()

    def run(number: int) -> None:
        barrier.wait()
        (found[number],) = elmo.predict([docs[number]])
        bilms.add(id(elmo.bilm))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(docs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert offering.calls == 1
    assert len(bilms) == 1
    assert len(found) == len(docs)
    for layers in found.values():
        np.testing.assert_array_equal(layers, expected(folder))


def test_a_new_thread_loads_them_where_the_pipeline_runs(offering: Offering, monkeypatch: pytest.MonkeyPatch) -> None:
    """thinc's device is a thread's own: in another than the one that chose a GPU, weights went to the CPU."""
    monkeypatch.setattr(
        "spacy_elmo.layers.bilm_model.get_torch_default_device",
        lambda: torch.device("meta" if on_gpu() else "cpu"),  # a device that is everywhere
    )
    devices = []
    for ops in (None, CupyOps()):
        nlp = blank(LANG)
        elmo = nlp.add_pipe("elmo")
        elmo.model.ops = ops or elmo.model.ops

        def run(elmo: Any = elmo) -> None:
            devices.extend([elmo.loaded_bilm.device.type, "GPU" if on_gpu() else "CPU"])

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert devices == ["cpu", "CPU", "meta", "CPU"]  # the thread's own device stays


FORKED_MEANWHILE = """
import importlib, os, signal, sys, threading
import spacy

sys.path.insert(0, sys.argv[1])
offering = importlib.import_module(sys.argv[2])
elmo = spacy.blank("xx").add_pipe("elmo")
thread = threading.Thread(target=lambda: elmo.loaded_bilm)
thread.start()
assert offering.inside.wait(60)
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(7 if elmo.loaded_bilm is not None else 1)
_, status = os.waitpid(child, 0)
offering.go_on.set()
thread.join()
print(os.waitstatus_to_exitcode(status), elmo.bilm is not None)
"""


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="fork is not to be used on this platform")
def test_a_process_that_is_forked_while_a_thread_loads_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever for that thread, which the child does not have."""
    code = f"""
import os, threading
parent, inside, go_on = os.getpid(), threading.Event(), threading.Event()

def weights():
    inside.set()
    if os.getpid() == parent:
        go_on.wait(60)
    return {str(folder)!r}
"""
    offering = install(tmp_path, monkeypatch, LANG, folder, code=code)
    (site,) = tmp_path.glob("site-*")
    script = tmp_path / "script.py"
    script.write_text(FORKED_MEANWHILE, encoding="utf8")
    command = [sys.executable, str(script), str(site), offering.module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["7", "True"]


def test_the_log_says_which_ones_were_taken(offering: Offering, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An English `spacy train` that forgot `--paths.elmo` trained on something, and nothing said on what."""
    with caplog.at_level(logging.INFO, logger="spacy"):
        nlp = blank(LANG)
        nlp.add_pipe("elmo", name="mine")
        for _ in range(2):
            nlp(TEXT)
        for weights in (folder, LANG, load_bilm(folder)):  # whoever names weights knows
            nlp = blank(LANG)
            nlp.add_pipe("elmo").load_weights(weights)
            nlp(TEXT)
    said = [record.getMessage() for record in caplog.records if record.name == "spacy"]
    assert said == [f"Component 'mine' takes the built-in weights '{LANG}' of acme-elmo 1.0 ({folder})"]


def test_processes_that_start_without_weights(offering: Offering, folder: Path) -> None:
    nlp = blank(LANG)
    nlp.add_pipe("elmo")
    for doc in nlp.pipe([TEXT] * 4, n_process=2, batch_size=1):
        np.testing.assert_allclose(doc._.elmo.layers, expected(folder), atol=1e-6)


WARM_PARENT = """
import multiprocessing, sys
import spacy, torch

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    multiprocessing.set_start_method("fork")
    torch.set_num_threads(2)
    for _ in range(10):
        torch.ones(2_000_000).half().float().sum()  # torch's threads have run
    nlp = spacy.blank("xx")
    nlp.add_pipe("elmo")
    docs = list(nlp.pipe([f"Text number {i} ." for i in range(8)], n_process=2, batch_size=2))
    print([doc._.elmo.layers.shape == (3, 4, 128) for doc in docs].count(True), nlp.get_pipe("elmo").bilm)
"""


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="fork is not to be used on this platform")
def test_a_child_of_a_warm_parent_loads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for ever for the threads of its parent, before it had computed anything."""
    large = random_bilm(lstm_dim=512, projection_dim=64)  # loading it takes several threads where there are some
    save_bilm(large, tmp_path / "large", dtype="float16")
    install(tmp_path, monkeypatch, LANG, tmp_path / "large")
    (site,) = tmp_path.glob("site-*")
    script = tmp_path / "script.py"
    script.write_text(WARM_PARENT, encoding="utf8")
    command = [sys.executable, str(script), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["8", "None"]


def test_a_child_process_takes_none_to_a_gpu(offering: Offering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    monkeypatch.setattr("spacy_elmo.pipeline.elmo.on_gpu", lambda: True)
    nlp = blank(LANG)
    nlp.add_pipe("elmo")
    with pytest.raises(ElmoError, match="one process only"):
        nlp(TEXT)
    assert offering.calls == 0


def test_other_languages_say_which_there_are(offering: Offering) -> None:
    nlp = blank("sv")
    nlp.add_pipe("elmo", name="mine")
    with pytest.raises(
        ElmoError,
        match=rf"(?s)'mine' has no ELMo weights, and none are built in for the language 'sv' \(there are: .*{LANG}.*\)"
        r".*load_weights.*initialize\.components\.mine",
    ):
        nlp(TEXT)
    assert offering.calls == 0


def test_two_packages_of_one_language(
    offering: Offering, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, LANG, folder, package="other-elmo")
    nlp = blank(LANG)
    elmo = nlp.add_pipe("elmo")
    with pytest.raises(
        WeightsError,
        match=rf"several packages.*'{LANG}@acme-elmo', '{LANG}@other-elmo'.*load_weights\(\"{LANG}@acme-elmo\"\)$",
    ):
        nlp(TEXT)
    elmo.load_weights(f"{LANG}@acme-elmo")
    np.testing.assert_array_equal(nlp(TEXT)._.elmo.layers, expected(folder))


def test_a_broken_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, LANG, "", code="import no_such_module")
    nlp = blank(LANG)
    nlp.add_pipe("elmo")
    with pytest.raises(WeightsError, match=rf"^built-in weights '{LANG}' of the package acme-elmo: .*no_such_module"):
        nlp(TEXT)


def test_what_is_wrong_with_them_is_an_error_of_the_config(
    offering: Offering, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such errors are one message of `spacy train`, others a traceback."""
    again = without_its_weights(tmp_path)
    with pytest.raises(ElmoConfigError, match=r"^component 'tagger' was initialized for"):
        again.initialize(getter(again))
    install(tmp_path, monkeypatch, LANG, folder, package="other-elmo")
    with pytest.raises(ElmoConfigError, match=f"^built-in weights '{LANG}' are offered by several packages"):
        again.initialize(getter(again))


def test_spacy_train_says_in_one_message_that_a_package_is_broken(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, LANG, "", code="import no_such_module")
    doc = blank(LANG).make_doc("Ann sees us .")
    doc.ents = [Span(doc, 0, 1, "PER")]
    DocBin(docs=[doc]).to_disk(tmp_path / "train.spacy")
    paths = [f"--paths.{name}={tmp_path / 'train.spacy'}" for name in ("train", "dev")]
    result = CliRunner().invoke(app, ["train", str(root / "configs" / "ner_elmo.cfg"), *paths, "--nlp.lang", LANG])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    said = " ".join(result.output.split())
    assert "The weights of ELMo" in said
    assert said.count("of the package acme-elmo: ") == 1

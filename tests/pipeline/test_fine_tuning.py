"""How the biLM and the mix learn: the learning-rate factor, the step of unfreezing, the two kinds of L2."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as run_training
from spacy.util import load_config_from_str
from thinc.api import SGD, Adam, Optimizer, RAdam

from spacy_elmo import BiLM, ElmoError
from spacy_elmo.layers.bilm_model import BiLM_v1, random_bilm
from spacy_elmo.layers.listener import ElmoTok2Vec_v1
from spacy_elmo.layers.scalar_mix import ScalarMix_v1
from spacy_elmo.pipeline.unfreezing import unfreeze_at
from tests.pipeline.toys import blank, examples, getter, listener, tagger_config

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "component.md"


def tagger(bilm: BiLM, **elmo: Any) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo", config=elmo).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("tagger", config=tagger_config(listener(elmo_dropout=0.0)))
    spacy.util.fix_random_seed(0)
    nlp.initialize(getter(nlp))
    return nlp


def step(nlp: Any, optimizer: Optimizer) -> None:
    """One step as `spacy train` does it: update everything, then let the optimizer change everything."""
    nlp.update(examples(nlp), sgd=False, losses={})
    for _, pipe in nlp.pipeline:
        pipe.finish_update(optimizer)


def weights(nlp: Any, component: str = "elmo") -> dict[str, torch.Tensor]:
    pipe = nlp.get_pipe(component)
    shims = [shim for node in pipe.model.walk() for shim in node.shims]
    return {name: value.detach().clone() for name, value in shims[0].bilm.named_parameters()}


def moves(nlp: Any, optimizer: Optimizer, component: str = "elmo") -> dict[str, torch.Tensor]:
    """By how much each parameter moves in one step."""
    before = weights(nlp, component)
    step(nlp, optimizer)
    return {name: value - before[name] for name, value in weights(nlp, component).items()}


# The learning-rate factor


def adam(**settings: Any) -> Optimizer:
    return Adam(0.01, **{"L2": 0.0, "use_averages": False, **settings})


def untouched_by_sgd() -> Optimizer:
    return SGD(0.01, L2=0.0, use_averages=False)


def learned_a_little(bilm: BiLM, **elmo: Any) -> Any:
    """A tagger after a few steps without the biLM: at first its output layer is zeros, which pass no gradient."""
    nlp = tagger(bilm, **elmo)
    optimizer = adam()
    for _ in range(3):
        nlp.update(examples(nlp), sgd=False, losses={}, exclude=["elmo"])
        nlp.get_pipe("tagger").finish_update(optimizer)
    return nlp


@pytest.mark.parametrize(
    "make",
    [
        adam,
        lambda: adam(L2=0.1),
        lambda: adam(L2=0.1, L2_is_weight_decay=False),
        lambda: adam(grad_clip=0.5),
        lambda: RAdam(0.01, L2=0.0, use_averages=False),
        untouched_by_sgd,
    ],
    ids=["adam", "weight decay", "l2", "clip", "radam", "sgd"],
)
def test_the_first_step_is_scaled_by_the_factor_whatever_the_optimizer(bilm: BiLM, make: Any) -> None:
    results = {}
    for factor in (1.0, 0.1):
        nlp = learned_a_little(bilm, frozen=False, lr_factor=factor)
        optimizer = make()
        results[factor] = moves(nlp, optimizer)
        assert optimizer.learn_rate == 0.01
    for name, whole in results[1.0].items():
        assert float(whole.abs().max()) > 0.0, name
        # moves are differences of float32 weights of a size up to ten
        torch.testing.assert_close(results[0.1][name], 0.1 * whole, atol=2e-6, rtol=1e-2)


def test_the_tagger_itself_learns_at_the_whole_rate(bilm: BiLM) -> None:
    taggers = {}
    for factor in (1.0, 0.1):
        nlp = learned_a_little(bilm, frozen=False, lr_factor=factor)
        step(nlp, adam())
        taggers[factor] = nlp.get_pipe("tagger").model.get_ref("softmax").get_param("W").copy()
    np.testing.assert_array_equal(taggers[1.0], taggers[0.1])


def test_a_factor_of_nothing_moves_nothing(bilm: BiLM) -> None:
    nlp = learned_a_little(bilm, frozen=False, lr_factor=0.0)
    assert all(float(move.abs().max()) == 0.0 for move in moves(nlp, adam(L2=0.1)).values())


def test_the_loss_is_what_was_passed_back_since_the_last_update(bilm: BiLM) -> None:
    """`spacy train` lets gradients wait until all components are updated: `finish_update` is what passes them back."""
    nlp = learned_a_little(bilm, frozen=False)
    optimizer = adam()
    told: list[float] = []
    for parts in (1, 1, 2, 1):
        losses: dict[str, float] = {}
        for _ in range(parts):
            nlp.update(examples(nlp), sgd=False, losses=losses)
        told.append(losses["elmo"])
        for _, pipe in nlp.pipeline:
            pipe.finish_update(optimizer)
    assert told[0] == 0.0
    assert min(told[1:]) > 0.0
    frozen = learned_a_little(bilm, frozen=True)
    for _ in range(2):
        assert frozen.update(examples(frozen), sgd=False, losses={})["elmo"] == 0.0
        for _, pipe in frozen.pipeline:
            pipe.finish_update(optimizer)


def test_the_factor_lives_in_the_config_and_can_be_changed_at_load(bilm: BiLM, tmp_path: Path) -> None:
    nlp = learned_a_little(bilm, frozen=False, lr_factor=0.1)
    nlp.to_disk(tmp_path)

    def factor(nlp: Any, component: str = "elmo") -> float:
        shims = [shim for node in nlp.get_pipe(component).model.walk() for shim in node.shims]
        return shims[0].lr_factor

    assert factor(spacy.load(tmp_path)) == 0.1
    assert factor(copy.deepcopy(nlp)) == 0.1
    assert factor(spacy.load(tmp_path, config={"components": {"elmo": {"lr_factor": 0.5}}})) == 0.5
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    nlp.to_disk(tmp_path)
    for other in (nlp, spacy.load(tmp_path)):
        assert factor(other, "tagger") == 0.1
    small = moves(nlp, adam(), "tagger")
    nlp = learned_a_little(bilm, frozen=False, lr_factor=1.0)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    for name, whole in moves(nlp, adam(), "tagger").items():
        torch.testing.assert_close(small[name], 0.1 * whole, atol=2e-6, rtol=1e-2)


@pytest.mark.parametrize("factor", [-0.1, float("inf"), float("nan")])
def test_factors_that_are_none_are_refused(factor: float) -> None:
    with pytest.raises(ElmoError, match="lr_factor is a multiple of the learning rate"):
        ElmoTok2Vec_v1(bilm=BiLM_v1(), lr_factor=factor)
    if factor < 0:  # (spaCy's own check of configs refuses the others)
        with pytest.raises(ElmoError, match="lr_factor is a multiple of the learning rate"):
            blank().add_pipe("elmo", config={"lr_factor": factor})


# The step of unfreezing


def moved(nlp: Any, before: dict[str, torch.Tensor], component: str = "elmo") -> bool:
    return any(not torch.equal(value, before[name]) for name, value in weights(nlp, component).items())


@pytest.mark.parametrize("standalone", [False, True])
@pytest.mark.parametrize("frozen", [True, False])
def test_the_bilm_moves_from_the_step_on(bilm: BiLM, frozen: bool, standalone: bool) -> None:
    nlp = learned_a_little(bilm, frozen=frozen)
    component = "elmo"
    if standalone:
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
        nlp.remove_pipe("elmo")
        component = "tagger"
    callback = unfreeze_at(step=3, component=component)
    optimizer = adam()
    found = []
    for number in range(6):
        before = weights(nlp, component)
        callback(nlp, {"step": number, "epoch": 0})
        step(nlp, optimizer)
        found.append(moved(nlp, before, component))
    assert found == [False, False, False, True, True, True]
    # what the config says stays, whatever the course of the training was
    config = nlp.config["components"]
    assert (config["tagger"]["model"]["tok2vec"] if standalone else config["elmo"])["frozen"] is frozen
    # another training begins anew
    before = weights(nlp, component)
    callback(nlp, {"step": 0, "epoch": 0})
    step(nlp, optimizer)
    assert not moved(nlp, before, component)


def test_until_the_step_texts_are_read_once(bilm: BiLM, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    encode = BiLM.encode

    def counting(self: BiLM, sentences: Any, *args: Any, **kwargs: Any) -> Any:
        read.extend(sentences)
        return encode(self, sentences, *args, **kwargs)

    monkeypatch.setattr(BiLM, "encode", counting)
    nlp = tagger(bilm, frozen=False)
    callback, optimizer = unfreeze_at(step=4), adam()
    for number in range(4):
        callback(nlp, {"step": number, "epoch": number})
        step(nlp, optimizer)
    assert len(read) == 3


def test_gradients_that_wait_are_dropped_by_freezing(bilm: BiLM) -> None:
    nlp = learned_a_little(bilm, frozen=False)
    nlp.update(examples(nlp), sgd=False, losses={})
    before = weights(nlp)
    nlp.get_pipe("elmo").set_frozen(True)
    nlp.get_pipe("elmo").finish_update(adam())
    nlp.get_pipe("elmo").set_frozen(False)
    nlp.get_pipe("elmo").finish_update(adam())
    assert not moved(nlp, before)


@pytest.mark.parametrize("standalone", [False, True])
def test_gradients_that_were_passed_back_are_dropped_by_freezing(bilm: BiLM, standalone: bool) -> None:
    """They waited in the parameters, and moved the weights as soon as these learned again."""
    nlp, component = learned_a_little(bilm, frozen=False), "elmo"
    if standalone:
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
        nlp.remove_pipe("elmo")
        component = "tagger"
    for _ in range(2):
        nlp.update(examples(nlp), sgd=False, losses={})
    before, callback = weights(nlp, component), unfreeze_at(step=1, component=component)
    for number in range(2):
        callback(nlp, {"step": number, "epoch": 0})
    nlp.get_pipe(component).finish_update(adam())
    assert not moved(nlp, before, component)
    nlp.update(examples(nlp), sgd=False, losses={})
    nlp.get_pipe(component).finish_update(adam())
    assert moved(nlp, before, component)


def test_the_documented_config_trains(bilm: BiLM, tmp_path: Path) -> None:
    """The snippet of docs/component.md: after the last frozen step nothing has moved, after the next it has."""
    blocks = re.findall(r"```ini\n(.*?)```", DOCUMENT.read_text(encoding="utf8"), re.DOTALL)
    (snippet,) = [block for block in blocks if "unfreeze_at" in block]
    documented = load_config_from_str(f"[components]\n\n[training]\n\n{snippet}")
    assert documented["training"]["before_update"]["@callbacks"] == "spacy-elmo.unfreeze_at.v1"
    nlp = tagger(bilm)
    DocBin(docs=[example.reference for example in examples(nlp)]).to_disk(tmp_path / "data.spacy")
    config = nlp.config
    config["paths"] |= {"train": str(tmp_path / "data.spacy"), "dev": str(tmp_path / "data.spacy")}
    config["corpora"] = {
        name: {"@readers": "spacy.Corpus.v1", "path": "${paths." + name + "}"} for name in ("train", "dev")
    }
    config["initialize"]["components"] = {
        "elmo": {"weights": {"@misc": "spacy-elmo.random_bilm.v1", "lstm_dim": 8, "projection_dim": 4}}
    }
    config["components"]["elmo"] |= {
        name: value for name, value in documented["components"]["elmo"].items() if name != "factory"
    }
    assert config["components"]["elmo"]["lr_factor"] < 1.0
    for last, expected in ((2, False), (3, True)):
        config["training"] |= {
            "max_steps": last,
            "eval_frequency": 1,
            "before_update": documented["training"]["before_update"] | {"step": 3},
        }
        (tmp_path / str(last)).mkdir()
        trained, _ = run_training(init_nlp(config), tmp_path / str(last))
        start = random_bilm(lstm_dim=8, projection_dim=4).state_dict()
        changed = any(not torch.equal(value, start[name]) for name, value in weights(trained).items())
        assert changed is expected
        again = spacy.load(tmp_path / str(last) / "model-last")
        assert [token.tag_ for token in again("Ann went to Rome .")]


def test_wrong_uses_of_unfreezing_say_so(bilm: BiLM) -> None:
    nlp = tagger(bilm)
    start = {"step": 0, "epoch": 0}
    with pytest.raises(ElmoError, match="step is at least 0, not -1"):
        unfreeze_at(step=-1)
    with pytest.raises(ElmoError, match=r"no component 'elmoo' in the pipeline \(elmo, tagger\)"):
        unfreeze_at(step=1, component="elmoo")(nlp, start)
    with pytest.raises(ElmoError, match="'tagger' has no biLM"):
        unfreeze_at(step=1, component="tagger")(nlp, start)
    nlp.add_pipe("sentencizer")
    with pytest.raises(ElmoError, match="'sentencizer' has no biLM"):
        unfreeze_at(step=1, component="sentencizer")(nlp, start)
    nlp.config["training"]["frozen_components"] = ["elmo"]
    with pytest.raises(ElmoError, match="is in frozen_components"):
        unfreeze_at(step=1)(nlp, start)


# The two kinds of L2


def mix_after(l2: float, optimizer: Optimizer, *, steps: int, gradient: float = 0.0) -> np.ndarray:
    """Raw weights, from (1, -2, 0.5) on, after steps with the same gradient from above (in the last layer's favour)."""
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(3, 4, 6)).astype("f")]
    mix = ScalarMix_v1(l2=l2)
    mix.initialize(X=layers)
    mix.set_param("scalars", np.array([1.0, -2.0, 0.5], dtype="f"))
    for _ in range(steps):
        _, backprop = mix.begin_update(layers)
        backprop([-gradient * layers[0][2]])
        mix.finish_update(optimizer)
    return np.asarray(mix.get_param("scalars"))


START = np.array([1.0, -2.0, 0.5])


def test_the_mixs_own_l2_is_a_gradient_of_2_lambda_w() -> None:
    """With plain gradient descent: w <- w - rate * 2 λ w."""
    sgd = SGD(0.1, L2=0.0, grad_clip=0.0, use_averages=False)
    np.testing.assert_allclose(mix_after(0.5, sgd, steps=3), START * (1 - 0.1 * 2 * 0.5) ** 3, rtol=1e-5)
    np.testing.assert_array_equal(mix_after(0.0, sgd, steps=3), START)


def test_spacys_own_l2_shrinks_the_raw_weights_too_but_by_the_rate_alone() -> None:
    """Adam's L2 as weight decay: w <- w - rate * L2 * w, whatever the gradients; in spaCy's configs 0.001 * 0.01."""
    for rate, l2 in ((0.1, 0.3), (0.001, 0.01)):
        found = mix_after(0.0, Adam(rate, L2=l2, use_averages=False), steps=5)
        np.testing.assert_allclose(found, START * (1 - rate * l2) ** 5, rtol=1e-5)


def test_under_adam_only_the_balance_of_lambda_and_the_tasks_gradient_counts() -> None:
    """Without a gradient of the task any λ moves each weight by the rate, since Adam divides by the gradient's size.

    With one, a larger λ keeps the weights nearer to 0.
    """

    def adam() -> Optimizer:
        return Adam(0.01, L2=0.0, grad_clip=0.0, use_averages=False)

    for l2 in (0.001, 1.0):
        np.testing.assert_allclose(mix_after(l2, adam(), steps=1), START - 0.01 * np.sign(START), atol=1e-5)
    sizes = [float(np.abs(mix_after(l2, adam(), steps=1500, gradient=1.0)).max()) for l2 in (0.0, 1.0, 10.0)]
    assert sizes[0] > 1.5 * sizes[1]
    assert sizes[1] > 1.5 * sizes[2]


@pytest.mark.parametrize("l2", [0.0, 10.0])
def test_l2_decays_the_raw_weights_in_spacys_training(bilm: BiLM, l2: float) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    mix = {"@architectures": "spacy-elmo.ScalarMix.v1", "l2": l2}
    nlp.add_pipe("tagger", config=tagger_config(listener(mix=mix)))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))  # spaCy's default: Adam with L2 = 0.01 as weight decay
    optimizer.learn_rate = 0.01
    (one,) = nlp.get_pipe("elmo").listeners
    one.layers[0].set_param("scalars", np.array([1.0, -2.0, 0.5], dtype="f"))
    for _ in range(200):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    size = np.abs(one.layers[0].get_param("scalars")).max()
    assert size < 0.4 if l2 else size > 1.5
    assert one.layers[0].get_param("gamma")[0] > 0.5

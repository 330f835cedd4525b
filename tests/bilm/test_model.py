from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import encode
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM, BiLMState
from spacy_elmo.bilm.token_encoder import CharacterEncoder, Highway, WordEncoder
from spacy_elmo.errors import ElmoError

from .twins import SMALL, VOCABULARY, WORDS, make_bilm, make_word_bilm, numpy_twin

SENTENCES: list[list[str]] = [
    ["The", "cat", "sat", "on", "the", "mat"],
    [],
    ["naïve", "", "x" * 60],
    ["no", "no"],
    ["The", "cat", "sat", "down"],
]
START_BUFFERS = [f"start_{d}_{part}" for d in ("forward", "backward") for part in ("hidden", "cell")]


def warm_bilm(seed: int = 0, **options: Any) -> BiLM:
    bilm = make_bilm(seed, state="warm", **options)
    generator = torch.Generator().manual_seed(seed)
    for name in START_BUFFERS:
        getattr(bilm, name).normal_(0.0, 0.4, generator=generator)
    return bilm


def assert_layers(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    assert len(found) == len(expected)
    for tensor, reference in zip(found, expected, strict=True):
        assert tensor.shape == reference.shape
        torch.testing.assert_close(tensor.detach(), reference.detach(), rtol=0, atol=tolerance)


# What it is made of


def test_parameters_are_named_and_shaped_as_in_the_weight_files() -> None:
    config = BiLMConfig(**{**SMALL, "n_highway": 2, "filters": ((1, 3), (2, 4))})
    cells = {
        f"{direction}_lstm.layers.{layer}.{name}": shape
        for direction in ("forward", "backward")
        for layer in range(2)
        for name, shape in (("kernel", (10, 28)), ("bias", (28,)), ("projection", (7, 5)))
    }
    highways = {
        f"token_encoder.highways.{k}.{name}": shape
        for k in range(2)
        for name, shape in (("W_carry", (7, 7)), ("b_carry", (7,)), ("W_transform", (7, 7)), ("b_transform", (7,)))
    }
    expected: dict[str, tuple[int, ...]] = {
        "token_encoder.char_embed": (261, 3),
        "token_encoder.conv_weights.0": (1, 3, 3),
        "token_encoder.conv_weights.1": (2, 3, 4),
        "token_encoder.conv_biases.0": (3,),
        "token_encoder.conv_biases.1": (4,),
        **highways,
        "token_encoder.W_proj": (7, 5),
        "token_encoder.b_proj": (5,),
        **cells,
    }
    assert {name: tuple(value.shape) for name, value in BiLM(config).state_dict().items()} == expected


def test_what_a_model_does_not_need_it_does_not_have() -> None:
    square = BiLM(BiLMConfig(lstm_dim=7, projection_dim=7, filters=((1, 3), (2, 4)), n_highway=0)).state_dict()
    assert not any("proj" in name or "highways" in name or "start" in name for name in square)
    words = BiLM(BiLMConfig(**WORDS), vocabulary=VOCABULARY)
    assert isinstance(words.token_encoder, WordEncoder)
    in_encoder = {name: tuple(p.shape) for name, p in words.named_parameters() if name.startswith("token_encoder")}
    assert in_encoder == {"token_encoder.embedding": (len(VOCABULARY), 5)}


def test_a_start_state_lies_with_the_weights_only_under_the_warm_policy() -> None:
    warm = BiLM(BiLMConfig(**SMALL, state="warm"))
    assert {name: tuple(buffer.shape) for name, buffer in warm.named_buffers()} == {
        "start_forward_hidden": (2, 5),
        "start_forward_cell": (2, 7),
        "start_backward_hidden": (2, 5),
        "start_backward_cell": (2, 7),
    }
    assert set(START_BUFFERS) <= warm.state_dict().keys()
    zero = BiLM(BiLMConfig(**SMALL))
    assert not set(START_BUFFERS) & zero.state_dict().keys()


def test_weights_are_zeros_until_they_are_drawn_or_loaded() -> None:
    bilm = BiLM(BiLMConfig(**SMALL))
    assert all((parameter == 0).all() for parameter in bilm.parameters())
    assert bilm.encode([["finite"]])[0].isfinite().all()
    other = make_bilm(1)
    bilm.load_state_dict(other.state_dict())
    assert_layers(bilm.encode(SENTENCES), other.encode(SENTENCES), 0.0)


# Initial values


@pytest.fixture(scope="module")
def published() -> BiLM:
    """The published widths with fewer filters: large enough for the distributions to show."""
    filters = ((1, 16), (2, 32), (3, 64), (5, 144))
    config = BiLMConfig(lstm_dim=96, projection_dim=32, filters=filters, char_dim=16, n_highway=2)
    return BiLM(config).initialize(3)


def assert_uniform(values: Tensor, limit: float) -> None:
    values = values.detach()
    assert values.abs().max() <= limit
    assert values.abs().max() > 0.97 * limit
    assert float(values.std()) == pytest.approx(limit / math.sqrt(3), rel=0.06)
    assert abs(float(values.mean())) < 0.1 * limit


def assert_normal(values: Tensor, std: float) -> None:
    values = values.detach()
    assert float(values.std()) == pytest.approx(std, rel=0.06)
    assert abs(float(values.mean())) < 0.1 * std
    # A normal law has a tail and most of its mass in the middle; a uniform one has neither.
    assert float((values.abs() < std).double().mean()) == pytest.approx(0.683, abs=0.03)
    assert values.abs().max() > 2.5 * std


def test_initial_values_of_the_token_encoder(published: BiLM) -> None:
    encoder = published.token_encoder
    assert isinstance(encoder, CharacterEncoder)
    assert_uniform(encoder.char_embed, 1.0)
    assert_uniform(torch.cat([weight.flatten() for weight in encoder.conv_weights]), 0.05)
    assert all((bias == 0).all() for bias in encoder.conv_biases)
    n_filters = published.config.n_filters
    for highway in encoder.highways:
        assert isinstance(highway, Highway)
        assert_normal(highway.W_carry, n_filters**-0.5)
        assert_normal(highway.W_transform, n_filters**-0.5)
        assert (highway.b_carry == -2).all()
        assert (highway.b_transform == 0).all()
    assert encoder.W_proj is not None
    assert encoder.b_proj is not None
    assert_normal(encoder.W_proj, n_filters**-0.5)
    assert (encoder.b_proj == 0).all()


def test_initial_values_of_tanh_filters() -> None:
    config = BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 400), (4, 300)), activation="tanh", n_highway=0)
    encoder = BiLM(config).initialize(0).token_encoder
    assert isinstance(encoder, CharacterEncoder)
    for weight, width in zip(encoder.conv_weights, (1, 4), strict=True):
        assert_normal(weight, (width * 16) ** -0.5)


def test_initial_values_of_the_lstms(published: BiLM) -> None:
    for stack in (published.forward_lstm, published.backward_lstm):
        for layer in stack.layers:
            values: Any = layer
            assert_uniform(values.kernel, math.sqrt(6 / (64 + 4 * 96)))
            assert_uniform(values.projection, math.sqrt(6 / (96 + 32)))
            assert (values.bias == 0).all()  # the forget gate's +1 is in the formula


def test_initial_values_of_a_word_table() -> None:
    vocabulary = ["<S>", "</S>", *(f"w{i}" for i in range(398))]
    config = BiLMConfig(lstm_dim=8, projection_dim=8, filters=None, n_words=400)
    encoder = BiLM(config, vocabulary=vocabulary).initialize(1).token_encoder
    assert isinstance(encoder, WordEncoder)
    assert_uniform(encoder.embedding, math.sqrt(6 / 408))


def test_no_two_parts_are_drawn_alike(published: BiLM) -> None:
    drawn = [p.flatten()[:32] for p in published.parameters() if p.std() > 0]
    assert len(drawn) > 15
    assert all(not torch.allclose(a / a.norm(), b / b.norm()) for a, b in itertools.combinations(drawn, 2))


def test_a_seed_decides_the_weights_and_nothing_else_does() -> None:
    config = BiLMConfig(**SMALL)
    torch.manual_seed(1)
    first = BiLM(config).initialize(7)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = BiLM(config).initialize(7)
    assert torch.equal(torch.get_rng_state(), before)
    again = first.initialize(7)  # on top of drawn weights
    assert again is first
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name
    other = BiLM(config).initialize(8)
    assert all(
        not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True) if a.std() > 0
    )


# Versions, copies


def test_a_version_belongs_to_one_set_of_weights() -> None:
    bilm, other = make_bilm(0), make_bilm(0)
    seen = {bilm.version, other.version, copy.deepcopy(bilm).version, pickle.loads(pickle.dumps(bilm)).version}
    assert len(seen) == 4
    before = bilm.version
    bilm.encode(SENTENCES, "carry")
    bilm.reset_state()
    assert bilm.version == before
    bilm.invalidate()
    assert bilm.version not in seen
    seen.add(bilm.version)
    bilm.initialize(0)
    assert bilm.version not in seen


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda bilm: pickle.loads(pickle.dumps(bilm)),
}


@pytest.mark.parametrize("how", list(COPIES))
@pytest.mark.parametrize("kind", ["characters", "words", "warm"])
def test_a_copy_gives_equal_vectors_and_has_no_carried_state(how: str, kind: str) -> None:
    bilm = {"characters": make_bilm, "words": make_word_bilm, "warm": warm_bilm}[kind](2)
    first = bilm.encode(SENTENCES, "carry")
    second = bilm.encode(SENTENCES, "carry")
    bilm.reset_state()
    bilm.encode(SENTENCES, "carry")
    other = COPIES[how](bilm)
    assert other.config == bilm.config
    assert other.vocabulary == bilm.vocabulary
    assert_layers(other.encode(SENTENCES), bilm.encode(SENTENCES), 0.0)
    assert_layers(other.encode(SENTENCES, "carry"), first, 0.0)
    # The one that was copied goes on where it was.
    assert_layers(bilm.encode(SENTENCES, "carry"), second, 0.0)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_has_weights_of_its_own(how: str) -> None:
    bilm = warm_bilm(3)
    before = bilm.encode(SENTENCES)
    other = COPIES[how](bilm)
    for tensor in other.state_dict().values():
        tensor.zero_()
    assert_layers(bilm.encode(SENTENCES), before, 0.0)


def test_changing_the_weights_by_name_forgets_the_carried_state() -> None:
    bilm = make_bilm(4)
    first = bilm.encode(SENTENCES, "carry")
    bilm.invalidate()
    assert_layers(bilm.encode(SENTENCES, "carry"), first, 0.0)


# Words to what the encoder reads


def test_token_ids_of_characters() -> None:
    ids = make_bilm().token_ids(["The", "<S>", ""])
    assert ids.dtype == torch.int64
    assert ids.shape == (3, 12)
    assert ids[:, :5].tolist() == [[258, 84, 104, 101, 259], [258, 256, 259, 260, 260], [258, 259, 260, 260, 260]]
    assert make_bilm().token_ids([]).shape == (0, 12)


def test_token_ids_of_words() -> None:
    bilm = make_word_bilm()
    words = ["<S>", "cat", "unheard", "", "</S>", "<UNK>"]
    assert bilm.token_ids(words).tolist() == [0, 5, 2, 8, 1, 2]
    assert bilm.token_ids(words).dtype == torch.int64
    assert bilm.token_ids([]).tolist() == []


def test_a_repeated_word_has_its_last_row() -> None:
    bilm = make_word_bilm(vocabulary=["<S>", "cat", "</S>", "cat", "<UNK>"])
    assert bilm.token_ids(["cat", "dog"]).tolist() == [3, 4]


def test_a_vocabulary_that_does_not_fit_is_an_error() -> None:
    config = BiLMConfig(**WORDS)
    with pytest.raises(ElmoError, match="needs the vocabulary"):
        BiLM(config)
    with pytest.raises(ElmoError, match=r"9 words.*10 rows"):
        BiLM(config, vocabulary=VOCABULARY[:-1])
    for missing in ("<S>", "</S>"):
        with pytest.raises(ElmoError, match=missing):
            BiLM(config, vocabulary=[word if word != missing else "x" for word in VOCABULARY])


# Where the LSTMs start


def test_start_states() -> None:
    bilm = warm_bilm(5)
    zero, warm = bilm.start_state(3, "zero"), bilm.start_state(3, "warm")
    sizes = {"forward_hidden": 5, "forward_cell": 7, "backward_hidden": 5, "backward_cell": 7}
    for name, tensor in zero.tensors().items():
        assert tuple(tensor.shape) == (2, 3, sizes[name])
        assert (tensor == 0).all()
    for name, tensor in warm.tensors().items():
        kept = getattr(bilm, f"start_{name}")
        assert torch.equal(tensor, kept[:, None].repeat(1, 3, 1))
        tensor.zero_()  # a copy: who runs on it does not change the weights
        assert kept.abs().max() > 0
    for name, tensor in bilm.start_state(2).tensors().items():
        assert torch.equal(tensor[:, 1], getattr(bilm, f"start_{name}"))
    assert all((tensor == 0).all() for tensor in make_bilm().start_state(2).tensors().values())
    assert all((tensor == 0).all() for tensor in bilm.zero_state(2).tensors().values())


def test_a_state_of_the_models_precision() -> None:
    for state in ("zero", "warm"):
        tensors = warm_bilm(5).double().start_state(2, state).tensors()
        assert all(tensor.dtype == torch.float64 for tensor in tensors.values())


def test_a_state_survives_as_named_tensors() -> None:
    state = warm_bilm(6).start_state(2)
    tensors = state.tensors()
    assert list(tensors) == ["forward_hidden", "forward_cell", "backward_hidden", "backward_cell"]
    again = BiLMState.from_tensors(tensors)
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in tensors.items())


def test_warm_without_a_start_state_is_an_error() -> None:
    bilm = make_bilm()
    for call in (lambda: bilm.start_state(1, "warm"), lambda: bilm(SENTENCES, "warm")):
        with pytest.raises(ElmoError, match=r"no start state.*'warm'"):
            call()


@pytest.mark.parametrize("state", ["carry", "cold"])
@pytest.mark.parametrize("policy", ["zero", "warm"])
def test_forward_knows_no_other_policies(state: Any, policy: Any) -> None:
    # "carry" is for encode alone. It must not pass for "warm", nor be blamed on a missing start state.
    bilm = make_bilm(state=policy)
    with pytest.raises(ElmoError, match=f"{state!r}"):
        bilm(SENTENCES, state)


# Differentiably


@pytest.mark.parametrize("max_length", [1, 3, 512])
@pytest.mark.parametrize("state", ["zero", "warm", None])
@pytest.mark.parametrize("training", [True, False])
def test_forward_gives_what_encode_gives(max_length: int, state: Any, training: bool) -> None:
    bilm = warm_bilm(7).train(training)
    expected = bilm.encode(SENTENCES, state)
    assert_layers(bilm(SENTENCES, state, max_length=max_length), expected, 1e-6)
    double = bilm.double()
    assert_layers(double(SENTENCES, state, max_length=max_length), double.encode(SENTENCES, state), 1e-12)


@given(sentences=st.lists(st.lists(st.text(max_size=3), max_size=6), max_size=6), max_length=st.integers(1, 9))
@settings(deadline=None, max_examples=20)
def test_forward_of_any_sentences_gives_what_encode_gives(sentences: list[list[str]], max_length: int) -> None:
    for bilm in (make_bilm(8).double(), make_word_bilm(8).double()):
        assert_layers(bilm(sentences, max_length=max_length), bilm.encode(sentences), 1e-12)


def test_forward_of_more_sentences_than_run_together() -> None:
    bilm = make_bilm(8).double()
    many = [[f"w{i % 7}"] * (i % 4) for i in range(encode.ROWS_PER_BATCH + 15)]
    assert_layers(bilm(many), bilm.encode(many), 1e-12)


def gradients(bilm: BiLM, sentences: list[list[str]], weights: list[Tensor], **options: Any) -> dict[str, Tensor]:
    bilm.zero_grad()
    results = bilm(sentences, **options)
    torch.stack([(w * r).sum() for w, r in zip(weights, results, strict=True)]).sum().backward()
    return {name: p.grad.clone() for name, p in bilm.named_parameters() if p.grad is not None}


def weights_for(bilm: BiLM, sentences: list[list[str]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = bilm.config.n_layers + 1, bilm.config.width
    return [torch.randn(shape[0], len(s), shape[1], generator=generator, dtype=torch.float64) for s in sentences]


@pytest.mark.parametrize("kind", ["characters", "words", "warm"])
def test_forward_gives_gradients_to_every_parameter(kind: str) -> None:
    bilm = {"characters": make_bilm, "words": make_word_bilm, "warm": warm_bilm}[kind](9).double()
    weights = weights_for(bilm, SENTENCES)
    found = gradients(bilm, SENTENCES, weights)
    for name, parameter in bilm.named_parameters():
        assert found[name].abs().max() > 0, name
        # Along a random direction, against a difference quotient.
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6, 1e-6):
                parameter.add_(step * direction)
                results = bilm(SENTENCES)
                values.append(sum(float((w * r).sum()) for w, r in zip(weights, results, strict=True)))
        expected = (values[0] - values[1]) / 2e-6
        assert float((found[name] * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6), name


def test_gradients_of_a_batch_are_the_sum_over_its_sentences() -> None:
    bilm = make_bilm(10).double()
    weights = weights_for(bilm, SENTENCES)
    together = gradients(bilm, SENTENCES, weights)
    alone = [gradients(bilm, [s], [w]) for s, w in zip(SENTENCES, weights, strict=True) if s]
    for name, found in together.items():
        torch.testing.assert_close(found, torch.stack([g[name] for g in alone]).sum(0), rtol=0, atol=1e-10)


def test_gradients_stop_at_the_end_of_a_window() -> None:
    bilm = make_word_bilm(11)
    sentence = ["cat", "the", ".", "no"]
    assert isinstance(bilm.token_encoder, WordEncoder)
    for max_length, reaches in ((512, True), (6, True), (2, False), (1, False)):
        bilm.zero_grad()
        (layers,) = bilm([sentence], max_length=max_length)
        layers[-1, -1, :5].sum().backward()  # forward half of the last word
        gradient = bilm.token_encoder.embedding.grad
        assert gradient is not None
        assert (gradient[VOCABULARY.index("cat")].abs().max() > 0) == reaches
        assert gradient[VOCABULARY.index("no")].abs().max() > 0


def test_forward_of_nothing() -> None:
    bilm = make_bilm(12)
    assert bilm([]) == []
    assert [tuple(layers.shape) for layers in bilm([[], []])] == [(3, 0, 10), (3, 0, 10)]


@pytest.mark.parametrize("sentences", ["The cat", ["The cat"], [["The"], "cat"]])
def test_forward_refuses_strings_as_encode_does(sentences: Any) -> None:
    with pytest.raises(ElmoError, match="lists of words"):
        make_bilm()(sentences)


@pytest.mark.parametrize("max_length", [0, -1])
def test_forward_refuses_windows_without_steps_as_encode_does(max_length: int) -> None:
    with pytest.raises(ElmoError, match="max_length"):
        make_bilm()(SENTENCES, max_length=max_length)


# Packed text, for training

TYPES = ["<S>", "</S>", "the", "cat", "naïve", "."]


def steps_of(bilm: BiLM, rows: int, steps: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Types, and steps of text for both directions."""
    generator = torch.Generator().manual_seed(seed)
    forward = torch.randint(0, len(TYPES), (rows, steps), generator=generator)
    backward = torch.randint(0, len(TYPES), (rows, steps), generator=generator)
    return bilm.token_ids(TYPES), forward, backward


@pytest.mark.parametrize(
    "options", [{}, {"lstm_dim": 5}, {"n_layers": 1}, {"n_layers": 3, "use_skip_connections": False}]
)
def test_hidden_is_the_top_of_each_stack_over_the_steps(options: dict[str, Any]) -> None:
    bilm = make_bilm(13, **options).double()
    ids, forward, backward = steps_of(bilm, 3, 7)
    top, bottom, state = bilm.hidden(ids, forward, backward, bilm.zero_state(3))
    assert top.shape == bottom.shape == (3, 7, 5)
    twin = numpy_twin(bilm)
    for row in range(3):
        for direction, steps, found in ((0, forward, top), (1, backward, bottom)):
            y = twin.token_vectors([TYPES[i] for i in steps[row].tolist()])
            for layer in range(bilm.config.n_layers):
                v = twin.run_layer(y, direction, layer, row)
                y = v + y if bilm.config.use_skip_connections and layer else v
                cell, hidden = twin.state[direction, layer, row]
                name = ("forward", "backward")[direction]
                np.testing.assert_allclose(state.tensors()[f"{name}_hidden"][layer, row].numpy(), hidden, atol=1e-12)
                np.testing.assert_allclose(state.tensors()[f"{name}_cell"][layer, row].numpy(), cell, atol=1e-12)
            np.testing.assert_allclose(found[row].detach().numpy(), y, rtol=0, atol=1e-12)


def test_hidden_of_a_sentence_is_what_encode_gives_of_it() -> None:
    bilm = make_bilm(14)
    sentence = ["the", "cat", "the", "."]
    words = [TYPES.index(word) for word in sentence]
    forward = torch.tensor([[0, *words]])
    backward = torch.tensor([[1, *words[::-1]]])
    top, bottom, _ = bilm.hidden(bilm.token_ids(TYPES), forward, backward, bilm.zero_state(1))
    (layers,) = bilm.encode([sentence])
    torch.testing.assert_close(top[0, 1:].detach(), layers[-1, :, :5], rtol=0, atol=1e-6)
    torch.testing.assert_close(bottom[0, 1:].flip(0).detach(), layers[-1, :, 5:], rtol=0, atol=1e-6)


@given(cut=st.integers(1, 8), rows=st.integers(1, 4), seed=st.integers(0, 50))
@settings(deadline=None, max_examples=20)
def test_two_windows_with_carried_state_are_one_long_window(cut: int, rows: int, seed: int) -> None:
    bilm = make_bilm(15).double()
    ids, forward, backward = steps_of(bilm, rows, 9, seed)
    start = bilm.zero_state(rows)
    whole = bilm.hidden(ids, forward, backward, start)
    first = bilm.hidden(ids, forward[:, :cut], backward[:, :cut], start)
    kept = BiLMState.from_tensors({name: tensor.clone() for name, tensor in first[2].tensors().items()})
    second = bilm.hidden(ids, forward[:, cut:], backward[:, cut:], kept)
    for one, two, both in zip(first[:2], second[:2], whole[:2], strict=True):
        torch.testing.assert_close(torch.cat([one, two], dim=1), both, rtol=0, atol=1e-12)
    for name, tensor in whole[2].tensors().items():
        torch.testing.assert_close(second[2].tensors()[name], tensor, rtol=0, atol=1e-12)
    assert all((tensor == 0).all() for tensor in start.tensors().values())  # the given state is not written on


def test_sentences_of_a_window_with_starts_are_those_by_themselves() -> None:
    bilm = make_bilm(15).double()
    ids, forward, backward = steps_of(bilm, 1, 9)
    state = BiLMState.from_tensors({name: torch.ones_like(t) for name, t in bilm.zero_state(1).tensors().items()})
    starts = torch.zeros(1, 9, dtype=torch.bool)
    starts[0, [0, 4]] = True
    together = bilm.hidden(ids, forward, backward, state, 0.0, starts)
    for part in (slice(0, 4), slice(4, 9)):
        alone = bilm.hidden(ids, forward[:, part], backward[:, part], bilm.zero_state(1))
        for one, other in zip(together[:2], alone[:2], strict=True):
            torch.testing.assert_close(one[:, part], other, rtol=0, atol=1e-12)


def test_rows_of_a_window_do_not_see_each_other() -> None:
    bilm = make_bilm(16).double()
    ids, forward, backward = steps_of(bilm, 4, 6)
    state = BiLMState.from_tensors(
        {name: torch.randn_like(tensor) * 0.3 for name, tensor in bilm.zero_state(4).tensors().items()}
    )
    together = bilm.hidden(ids, forward, backward, state)
    for row in range(4):
        own = BiLMState.from_tensors({name: tensor[:, [row]] for name, tensor in state.tensors().items()})
        alone = bilm.hidden(ids, forward[[row]], backward[[row]], own)
        torch.testing.assert_close(alone[0][0], together[0][row], rtol=0, atol=1e-12)
        torch.testing.assert_close(alone[1][0], together[1][row], rtol=0, atol=1e-12)


def test_hidden_gives_gradients_to_every_parameter_and_none_to_the_next_window() -> None:
    bilm = make_bilm(17)
    ids, forward, backward = steps_of(bilm, 3, 6)
    top, bottom, state = bilm.hidden(ids, forward, backward, bilm.zero_state(3), 0.2)
    assert not any(tensor.requires_grad for tensor in state.tensors().values())
    (top.square().sum() + bottom.square().sum()).backward()
    for name, parameter in bilm.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_drawn_from_torchs_generator(training: bool) -> None:
    bilm = make_bilm(18).train(training)
    ids, forward, backward = steps_of(bilm, 3, 6)
    start = bilm.zero_state(3)
    before = torch.get_rng_state()
    plain = bilm.hidden(ids, forward, backward, start)
    assert torch.equal(torch.get_rng_state(), before)  # without dropout nothing is drawn
    first = bilm.hidden(ids, forward, backward, start, 0.3)
    second = bilm.hidden(ids, forward, backward, start, 0.3)
    torch.set_rng_state(before)
    again = bilm.hidden(ids, forward, backward, start, 0.3)
    for one, same, other, without in zip(first[:2], again[:2], second[:2], plain[:2], strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert not torch.equal(one, without)
    for name, tensor in first[2].tensors().items():
        assert torch.equal(tensor, again[2].tensors()[name])


def test_dropout_is_on_the_result_too() -> None:
    bilm = make_bilm(19)
    ids, forward, backward = steps_of(bilm, 30, 10)
    torch.manual_seed(0)
    top, bottom, _ = bilm.hidden(ids, forward, backward, bilm.zero_state(30), 0.4)
    for found in (top, bottom):
        # An LSTM's outputs are not zero by themselves, and not above clip and skip.
        assert float((found == 0).double().mean()) == pytest.approx(0.4, abs=0.05)

"""ELMo's biLM in plain numpy, float64, one token and one step at a time: slow, and short enough to be checked by eye.

It is the yardstick of the tests, so it shares no code with the package: it imports neither `spacy_elmo` nor torch.
Weights are a mapping from the dataset names of bilm-tf's HDF5 file to arrays, options are the structure of its
options.json. The formulas are those of Peters et al., NAACL 2018 (arXiv 1802.05365), as bilm-tf and AllenNLP run them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 256, 257, 258, 259, 260
# One (c, h) for each (direction, layer, batch row); a missing key is a row of zeros.
State = dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]


def char_ids(word: str, n_columns: int) -> list[int]:
    """Unshifted ids of one word: begin-of-word, its UTF-8 bytes (cut by byte), end-of-word, padding."""
    if word == "<S>":
        body = [BEGIN_SENTENCE]
    elif word == "</S>":
        body = [END_SENTENCE]
    else:
        body = list(word.encode("utf-8", "ignore")[: n_columns - 2])
    ids = [BEGIN_WORD, *body, END_WORD]
    return ids + [PADDING] * (n_columns - len(ids))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


class NumpyBiLM:
    """The biLM of one options.json and one set of weights.

    `clip_hits` counts how often each of the two clips changed a value, over all calls.
    """

    def __init__(
        self, options: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, vocabulary: Sequence[str] | None = None
    ) -> None:
        lstm = options["lstm"]
        self.char_cnn = options.get("char_cnn")
        self.n_layers: int = lstm["n_layers"]
        self.lstm_dim: int = lstm["dim"]
        self.width: int = lstm["projection_dim"]
        self.cell_clip: float | None = lstm.get("cell_clip")
        self.proj_clip: float | None = lstm.get("proj_clip")
        self.skip: bool = lstm["use_skip_connections"]
        self.weights = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
        self.rows = {word: row for row, word in enumerate(vocabulary or ())}
        self.state: State = {}
        self.clip_hits = {"cell": 0, "proj": 0}

    def token_vector(self, word: str) -> np.ndarray:
        """Context-independent vector (P,) of one word."""
        if self.char_cnn is None:
            return self.weights["embedding"][self.rows.get(word, self.rows["<UNK>"])]
        columns = self.char_cnn["max_characters_per_token"]
        x = self.weights["char_embed"][char_ids(word, columns)]  # (C, char_dim)
        features = []
        for i, (width, _) in enumerate(self.char_cnn["filters"]):
            kernel = self.weights[f"CNN/W_cnn_{i}"][0]  # (width, char_dim, n)
            windows = [np.einsum("wd,wdn->n", x[q : q + width], kernel) for q in range(columns - width + 1)]
            features.append(np.max(windows, axis=0) + self.weights[f"CNN/b_cnn_{i}"])
        h = np.concatenate(features)
        h = np.tanh(h) if self.char_cnn["activation"] == "tanh" else np.maximum(h, 0.0)
        for k in range(self.char_cnn.get("n_highway") or 0):
            layer = f"CNN_high_{k}"
            gate = sigmoid(h @ self.weights[f"{layer}/W_carry"] + self.weights[f"{layer}/b_carry"])
            transformed = h @ self.weights[f"{layer}/W_transform"] + self.weights[f"{layer}/b_transform"]
            h = gate * np.maximum(transformed, 0.0) + (1.0 - gate) * h
        if len(h) != self.width:
            h = h @ self.weights["CNN_proj/W_proj"] + self.weights["CNN_proj/b_proj"]
        return h

    def token_vectors(self, words: Sequence[str]) -> np.ndarray:
        """Vectors (n, P) of words."""
        return np.array([self.token_vector(word) for word in words]).reshape(len(words), self.width)

    def clip(self, x: np.ndarray, limit: float | None, which: str) -> np.ndarray:
        if not limit:
            return x
        self.clip_hits[which] += int((np.abs(x) > limit).sum())
        return np.clip(x, -limit, limit)

    def run_layer(self, x: np.ndarray, direction: int, layer: int, row: int) -> np.ndarray:
        """One LSTM over the steps of x (T, P): outputs (T, P). Starts from, and leaves, the state of that row."""
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        kernel, bias = self.weights[f"{cell}/W_0"], self.weights[f"{cell}/B"]
        start = (np.zeros(self.lstm_dim), np.zeros(self.width))
        c, h = self.state.get((direction, layer, row), start)
        outputs = []
        for step in x:
            i, j, f, o = np.split(np.concatenate([step, h]) @ kernel + bias, 4)
            c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
            c = self.clip(c, self.cell_clip, "cell")
            h = sigmoid(o) * np.tanh(c)
            if self.width < self.lstm_dim:
                h = self.clip(h @ self.weights[f"{cell}/W_P_0"], self.proj_clip, "proj")
            outputs.append(h)
        self.state[direction, layer, row] = (c, h)
        return np.array(outputs)

    def layers(self, words: Sequence[str], row: int = 0) -> np.ndarray:
        """The L+1 layers (L+1, n, 2P) of one sentence, run in batch row `row`: boundaries added, then removed."""
        tokens = self.token_vectors(["<S>", *words, "</S>"])
        stacks = []
        for direction in (0, 1):
            y = tokens[::-1] if direction else tokens
            stack = [y]
            for layer in range(self.n_layers):
                v = self.run_layer(y, direction, layer, row)
                y = v + y if self.skip and layer else v
                stack.append(y)
            stacks.append(np.array([layer[::-1] if direction else layer for layer in stack]))
        return np.concatenate(stacks, axis=2)[:, 1:-1]

    def nlls(
        self, words: Sequence[str], softmax: Mapping[str, np.ndarray], vocabulary: Sequence[str]
    ) -> tuple[float, float]:
        """Negative log-likelihood (nats) of one sentence by each direction, from the zero state.

        softmax: W (V, P), b (V,); row v is word v of the vocabulary. Words that it lacks are predicted as `<UNK>`.
        """
        rows = {word: row for row, word in enumerate(vocabulary)}
        sums = []
        for direction, text in enumerate((["<S>", *words, "</S>"], ["</S>", *reversed(words), "<S>"])):
            self.state = {}
            y = self.token_vectors(text[:-1])
            for layer in range(self.n_layers):
                v = self.run_layer(y, direction, layer, 0)
                y = v + y if self.skip and layer else v
            logits = y @ softmax["W"].astype(np.float64).T + softmax["b"].astype(np.float64)
            highest = logits.max(axis=1)
            total = np.log(np.exp(logits - highest[:, None]).sum(axis=1)) + highest
            targets = [rows.get(word, rows["<UNK>"]) for word in text[1:]]
            sums.append(float((total - logits[np.arange(len(targets)), targets]).sum()))
        self.state = {}
        return sums[0], sums[1]

    def encode(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Layers of each sentence, every one from the zero state; the carried state is dropped."""
        result = []
        for words in sentences:
            self.state = {}
            result.append(self.layers(words))
        self.state = {}
        return result

    def encode_carried(self, batches: Sequence[Sequence[Sequence[str]]]) -> list[list[np.ndarray]]:
        """Layers of batches, row r starting where the last batch that had a row r left it; zeros at the start."""
        self.state = {}
        return [[self.layers(words, row) for row, words in enumerate(batch)] for batch in batches]

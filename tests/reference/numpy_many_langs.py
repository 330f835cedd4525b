"""ELMoForManyLangs in plain numpy, float64, one token and one step at a time: the yardstick for weights of that family.

Like `numpy_bilm.py` it shares no code with the package. It reads the tensors under the names, in the orientation and
with the gate order that the program's own files have: nothing is converted. LSTMs are AllenNLP's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


class NumpyManyLangs:
    """The model of one config, two state dicts and two dictionaries (token to row).

    `clip_hits` counts how often each of the two clips changed a value, over all calls.
    """

    def __init__(
        self,
        sizes: Mapping[str, Any],
        token_embedder: Mapping[str, np.ndarray],
        encoder: Mapping[str, np.ndarray],
        characters: Mapping[str, int],
        words: Mapping[str, int],
    ) -> None:
        self.encoder_sizes, self.embedder_sizes = sizes["encoder"], sizes["token_embedder"]
        self.embedder = {name: np.asarray(value, dtype=np.float64) for name, value in token_embedder.items()}
        self.encoder = {name: np.asarray(value, dtype=np.float64) for name, value in encoder.items()}
        self.characters, self.words = characters, words
        self.clip_hits = {"cell": 0, "proj": 0}

    def character_row(self, word: str) -> list[int]:
        """Ids of one word. The begin of a word is marked by `<eow>` and its end by `<bow>`."""
        columns: int = self.embedder_sizes["max_characters_per_token"]
        if word in ("<bos>", "<eos>"):
            body = [self.characters[word]]
        else:
            body = [self.characters.get(character, self.characters["<oov>"]) for character in word[: columns - 2]]
        ids = [self.characters["<eow>"], *body, self.characters["<bow>"]]
        return ids + [self.characters["<pad>"]] * (columns - len(ids))

    def character_features(self, word: str) -> np.ndarray:
        """What the highways give for one word."""
        x = self.embedder["char_emb_layer.embedding.weight"][self.character_row(word)]  # (C, char_dim)
        features = []
        for i, (width, _) in enumerate(self.embedder_sizes["filters"]):
            kernel = self.embedder[f"convolutions.{i}.weight"]  # (n, char_dim, width)
            windows = [np.einsum("wd,ndw->n", x[q : q + width], kernel) for q in range(len(x) - width + 1)]
            features.append(np.max(windows, axis=0) + self.embedder[f"convolutions.{i}.bias"])
        h = np.concatenate(features)
        h = np.tanh(h) if self.embedder_sizes["activation"] == "tanh" else np.maximum(h, 0.0)
        for k in range(self.embedder_sizes["n_highway"]):
            layer = f"highways._layers.{k}"
            both = self.embedder[f"{layer}.weight"] @ h + self.embedder[f"{layer}.bias"]
            transformed, gate = both[: len(h)], sigmoid(both[len(h) :])
            h = gate * h + (1.0 - gate) * np.maximum(transformed, 0.0)
        return h

    def token_vector(self, word: str) -> np.ndarray:
        """Context-independent vector (P,) of one word: word vector, then character features, projected."""
        parts = []
        if self.embedder_sizes["word_dim"]:
            cut = word if word in ("<bos>", "<eos>") else word[: self.embedder_sizes["max_characters_per_token"] - 2]
            row = self.words.get(cut, self.words["<oov>"])
            parts.append(self.embedder["word_emb_layer.embedding.weight"][row])
        if self.embedder_sizes["char_dim"]:
            parts.append(self.character_features(word))
        return self.embedder["projection.weight"] @ np.concatenate(parts) + self.embedder["projection.bias"]

    def clip(self, x: np.ndarray, limit: float | None, which: str) -> np.ndarray:
        if not limit:
            return x
        self.clip_hits[which] += int((np.abs(x) > limit).sum())
        return np.clip(x, -limit, limit)

    def run_layer(self, x: np.ndarray, stem: str) -> np.ndarray:
        """One LSTM over the steps of x (T, P), from zeros: outputs (T, P)."""
        input_weight, state_weight, bias, projection = (
            self.encoder[f"{stem}.{name}"]
            for name in (
                "input_linearity.weight",
                "state_linearity.weight",
                "state_linearity.bias",
                "state_projection.weight",
            )
        )
        c, h = np.zeros(self.encoder_sizes["dim"]), np.zeros(self.encoder_sizes["projection_dim"])
        outputs = []
        for step in x:
            i, f, j, o = np.split(input_weight @ step + state_weight @ h + bias, 4)
            c = sigmoid(i) * np.tanh(j) + sigmoid(f) * c
            c = self.clip(c, self.encoder_sizes["cell_clip"], "cell")
            h = self.clip(projection @ (sigmoid(o) * np.tanh(c)), self.encoder_sizes["proj_clip"], "proj")
            outputs.append(h)
        return np.array(outputs)

    def layers(self, words: Sequence[str]) -> np.ndarray:
        """The layers (L+1, n, 2P) of one sentence, boundaries added, then removed."""
        tokens = np.array([self.token_vector(word) for word in ["<bos>", *words, "<eos>"]])
        directions = []
        for direction in ("forward", "backward"):
            y = tokens[::-1] if direction == "backward" else tokens
            stack = [y]
            for layer in range(self.encoder_sizes["n_layers"]):
                v = self.run_layer(y, f"{direction}_layer_{layer}")
                y = v + y if layer else v
                stack.append(y)
            directions.append(np.array([layer[::-1] if direction == "backward" else layer for layer in stack]))
        return np.concatenate(directions, axis=2)[:, 1:-1]

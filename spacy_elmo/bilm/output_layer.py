"""What an output layer of pretraining is: what the loop, evaluation, checkpoints and files ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn


class OutputLayer(Protocol):
    """Turns the top layer's vectors into a loss. One serves both directions. It is an ``nn.Module``.

    kind: its name in files. With it, ``settings()`` and ``stored()`` a file is read back: ``settings()`` are arguments
        of the constructor, as JSON knows them, and ``stored()`` the tensors by name, all that is written.
    has_perplexity: whether ``target_losses`` are negative log-likelihoods over a whole vocabulary. If not, there is no
        perplexity: evaluation reports their mean, over the targets that are not 0.
    n_words: words that are predicted, None where this is no fixed number. width: P of the vectors that are read.
    """

    kind: ClassVar[str]
    has_perplexity: ClassVar[bool]
    n_words: int | None
    width: int

    def initialize(self, seed: int = 0) -> OutputLayer:
        """Draw the weights, the same for the same seed, with a generator of its own."""
        ...

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        """The mean loss to be trained on, differentiable, of no dimension.

        hidden: (N, P). targets: (N,) int64. seed: of what is drawn: the same number of every rank and device.
        """
        ...

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """What evaluation adds up: each target's loss, exact, without gradient. (N,); 0 for one that does not count."""
        ...

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor that make a layer which takes ``stored()``."""
        ...

    def stored(self) -> Mapping[str, Tensor]:
        """The tensors that a file holds, by name: the weights themselves, to be written to when they are read back."""
        ...

    # What nn.Module has.
    def parameters(self) -> Iterator[nn.Parameter]: ...  # noqa: D102
    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...  # noqa: D102
    def to(self, device: Any) -> Any: ...  # noqa: D102
    def to_empty(self, *, device: Any) -> Any: ...  # noqa: D102

"""The mixes as a picture, after the paper's figure 2: what each layer weighs, by task and place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ElmoError
from ..figures import new_figure, picture
from ..weights.files import replacing
from .mixes import Mix, labels

SUFFIXES = (".svg", ".png")


def draw_mixes(mixes: Sequence[Mix], path: Path | str) -> Path:
    """Draw a bar for each mix, divided by the softmax-normalised weights of its layers.

    path: to write, .svg or .png. RETURNS: it.
    Raises ElmoError where there is nothing to draw, for another suffix, where matplotlib is missing, and WeightsError
    where the file cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ElmoError(f"{path}: a picture is named {' or '.join(SUFFIXES)}")
    if not mixes:
        raise ElmoError("there are no mixes to draw")
    figure = new_figure(7, 1.6 + 0.45 * len(mixes), what="the picture of the mixes")
    axes = figure.subplots()
    names = [f"{label}\nγ = {mix.gamma:.2f}" for label, mix in zip(labels(mixes), mixes, strict=True)]
    for layer in range(max(len(mix.weights) for mix in mixes)):
        having = [row for row, mix in enumerate(mixes) if layer < len(mix.weights)]
        starts = [sum(mixes[row].weights[:layer]) for row in having]
        widths = [mixes[row].weights[layer] for row in having]
        bars = axes.barh(having, widths, left=starts, height=0.7, color=_colour(layer), label=f"layer {layer}")
        axes.bar_label(bars, [f"{width:.2f}" if width >= 0.06 else "" for width in widths], label_type="center")
    axes.set_yticks(range(len(mixes)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("weight of the layer, softmax-normalised")
    # Layers of a biLM are few; more than fit above the bars go into several rows.
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    with replacing(path.resolve()) as new:  # a link stays
        new.write_bytes(picture(figure, kind[1:]))
    return path


def _colour(layer: int) -> str:
    # matplotlib's own cycle, light enough for the numbers on it.
    return ("#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc", "#fdd0a2", "#c7e9c0")[layer % 6]

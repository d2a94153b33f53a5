"""Held-out samples with what the model makes of them, for people to look at while it trains. Imports torch."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch.utils._pytree import tree_leaves

from trainer4090 import tokenizer
from trainer4090.build import Run
from trainer4090.errors import ConfigError, Problem
from trainer4090.generation import Sampling, continuation
from trainer4090.item_format import TokenFormat
from trainer4090.outputs import Row, Wish, names_of, read_outputs
from trainer4090.records import Batch, Model, Stage
from trainer4090.report.exhibit import Exhibit, Passage, Picture

KEY = "train.log_samples"
SMALLEST_SIDE = 112
"""Pixels of a picture's shorter side, which smaller images are enlarged to by whole factors."""
CAPTION_PIXELS = 12
LONGEST_PASSAGE = 200
"""Tokens that a text is continued by."""
_SAMPLING = Sampling(temperature=0.8, top_k=None, top_p=None, seed=0)
_SHOWN_WISH = Wish(top=1, threshold=0.5)

Show = Callable[[], list[Exhibit]]


def showing(run: Run) -> Show | None:
    """A function that shows what the model makes of the first held-out samples now, None when none are asked for.

    It leaves the run as it was: mode, parameters and random state.

    Raises:
        ConfigError: the data has nothing that could be shown.
    """
    number = min(run.plan.spec.train.log_samples, len(run.data.evaluation))
    if not number:
        return None
    inputs, targets = run.data.evaluation.fetch(torch.arange(number), -1)
    if run.plan.evidence.data.kind == "tokens":
        token_format = _token_format(run)
        return lambda: list(_passages(run, inputs.cpu(), token_format))
    images = _images(run, inputs)
    return lambda: list(_pictures(run, Batch(inputs, targets, number), images))


def _token_format(run: Run) -> TokenFormat:
    if isinstance(run.data.format, TokenFormat):
        return run.data.format
    given = f"data={run.plan.spec.data.name} does not say which text its tokens are"
    raise ConfigError(Problem(KEY, given, "give 0, or make the files with: trainer4090 data prepare"))


def _images(run: Run, inputs: Any) -> torch.Tensor:
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.uint8 and leaf.ndim == 4 and leaf.shape[1] in (1, 3):
            return leaf.cpu()
    given = f"samples of data={run.plan.spec.data.name} are no images of 8 bits"
    raise ConfigError(Problem(KEY, given, "give 0: there is nothing to show"))


def _pictures(run: Run, batch: Batch, images: torch.Tensor) -> Iterator[Picture]:
    with run.executor.evaluating():
        inputs, targets = run.executor.forward.place(batch)
        outputs = run.executor.forward(inputs).double().cpu()
    data = run.plan.evidence.data
    kind = run.plan.loss.outputs
    names = names_of(data, kind)
    rows = read_outputs(outputs, kind, names, _SHOWN_WISH)
    for number, (image, target, row) in enumerate(zip(images, targets.cpu(), rows, strict=True)):
        caption = f"is {_truth(target, names)}\n{_words(row)}"
        yield _picture(f"samples/{number}", image, caption)


def _truth(target: torch.Tensor, names: Sequence[str]) -> str:
    """What is right of a sample, in words."""
    if target.is_floating_point():
        if target.ndim == 1 and names:
            return (
                ", ".join(name for name, value in zip(names, target.tolist(), strict=False) if value > 0) or "nothing"
            )
        return ", ".join(f"{value:.4g}" for value in target.flatten().tolist())
    index = int(target)
    return names[index] if 0 <= index < len(names) else str(index)


def _words(row: Row) -> str:
    """What the model says of a sample, in words."""
    if "classes" in row:
        return f"said {', '.join(row['classes']) or 'nothing'}"
    return "said " + " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())


def _picture(tag: str, pixels: torch.Tensor, caption: str) -> Picture:
    """`pixels`, uint8 (1 or 3, height, width) on the host, above the caption."""
    image = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    factor = max(1, -(-SMALLEST_SIDE // min(image.size)))
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    canvas = Image.new("RGB", (image.width, image.height + 3 * CAPTION_PIXELS), "white")
    canvas.paste(image, (0, 0))
    font = ImageFont.load_default(CAPTION_PIXELS)
    ImageDraw.Draw(canvas).multiline_text((2, image.height + 1), caption, "black", font, spacing=2)
    content = io.BytesIO()
    canvas.save(content, "PNG")
    return Picture(tag, content.getvalue(), canvas.height, canvas.width)


def _passages(run: Run, inputs: torch.Tensor, token_format: TokenFormat) -> Iterator[Passage]:
    """The first half of each held-out sequence, and how the model goes on."""
    length = inputs.shape[1]
    vocab_size = min(run.plan.evidence.data.num_classes, tokenizer.vocab_size(token_format))
    model = Model(run.executor.forward.module, ())
    with run.executor.evaluating(), _uncompiled(run):
        for number, tokens in enumerate(inputs.tolist()):
            prompt = tokens[: max(1, length // 2)]
            new = continuation(model, prompt, length, vocab_size, _SAMPLING, run.device)
            said = list(islice(new, min(length, LONGEST_PASSAGE)))
            text = f"{_text(prompt, token_format)}\n--- goes on ---\n{_text(said, token_format)}"
            yield Passage(f"samples/{number}", text)


def _uncompiled(run: Run) -> AbstractContextManager[Any]:
    """Every token makes a new length, each of which would be compiled anew."""
    compiled = any(transform.stage is Stage.COMPILE for transform in run.plan.transforms)
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _text(tokens: Sequence[int], token_format: TokenFormat) -> str:
    decoder = tokenizer.decoder(token_format)
    return "".join(map(decoder.feed, tokens)) + decoder.flush()

"""Verbs: what the first word of a command line does. One file a verb; `run(words)` returns the exit code."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verb:
    """A verb and its line in the help."""

    name: str
    usage: str
    help: str
    has_options: bool = False
    """Its words are keys of its own, a record `Options` in its module, instead of overrides of a run."""

    section: str = ""
    """Section of the configuration whose keys belong to the verb."""

    @property
    def has_keys(self) -> bool:
        """Whether it has a help of its own."""
        return self.has_options or bool(self.section)

    def run(self, words: Sequence[str]) -> int:
        """Do it with the words that follow; the exit code."""
        return self._module().run(list(words))

    def options(self) -> type:
        """The record of its own keys."""
        return self._module().Options

    def _module(self) -> Any:
        return importlib.import_module(f"trainer4090.verbs.{self.name.replace(' ', '_')}_verb")


VERBS = {
    verb.name: verb
    for verb in (
        Verb("train", "[key=value ...] [-m]", "train a model (the verb when none is given)"),
        Verb("plan", "[key=value ...] [-m]", "print what a run would do on a card, without a GPU: plan card=rtx4090"),
        Verb(
            "ablate",
            "[key=value ...] [ablate.axes=memory] [ablate.rows=[a,b]]",
            "compare options, each in processes of its own: ablate recipe=resnet50",
            section="ablate",
        ),
        Verb(
            "evaluate",
            "run=PATH|latest [checkpoint=last|best|PATH] [split=evaluation|train] [metrics=[a,b]]",
            "evaluate a finished or interrupted run",
        ),
        Verb(
            "predict",
            "input=PATH [run=PATH] [checkpoint=PATH] [out=FILE.csv]",
            "classify an image, or a folder of images",
            has_options=True,
        ),
        Verb(
            "generate",
            "[run=PATH] [checkpoint=PATH] [prompt=TEXT] [tokens=N]",
            "continue a text with a trained model",
            has_options=True,
        ),
        Verb(
            "data prepare",
            "[source=TEXT] out=FOLDER [tokenizer=bpe]",
            "make token files for data=tokens from a text",
            has_options=True,
        ),
        Verb("list", "[GROUP]", "list the groups, or the options of one with a line of help each"),
    )
}

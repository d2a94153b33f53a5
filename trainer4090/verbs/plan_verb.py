"""`plan`: what a run would do on a card, on any machine."""

from __future__ import annotations

from collections.abc import Sequence

from trainer4090 import worker
from trainer4090.composition import compose
from trainer4090.parse import parse
from trainer4090.verbs.settling import settled


def run(words: Sequence[str]) -> int:
    """Print the plan of what `words` say.

    Raises:
        TrainerError: no such run is possible.
    """
    print(settled(worker.planned(parse(compose(words).tree)), words).describe())
    return 0

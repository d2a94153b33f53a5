"""`plan`: what a run would do on a card, on any machine."""

from __future__ import annotations

from collections.abc import Sequence

from trainer4090 import device, plan, rules
from trainer4090.compose import compose
from trainer4090.parse import parse
from trainer4090.spec import RunSpec


def run(words: Sequence[str]) -> int:
    """Print the plan of what `words` say.

    Raises:
        TrainerError: no such run is possible.
    """
    print(planned(parse(compose(words).tree)).describe())
    return 0


def planned(spec: RunSpec) -> plan.Plan:
    """The checked plan of `spec` on its card; the card need not be in this machine."""
    card = spec.card if spec.card is not None else device.choose(spec.root.device, None).card
    made = plan.make(spec, card, plan.gather(spec))
    rules.check(made)
    return made

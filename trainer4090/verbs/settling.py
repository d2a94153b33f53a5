"""A plan whose keys that say `measure` are measured, before anything else is done with it."""

from __future__ import annotations

from collections.abc import Sequence

from trainer4090 import timings
from trainer4090.composition import plugin_words
from trainer4090.plan import Plan
from trainer4090.signals import handed_to
from trainer4090.timings import Timing


def settled(made: Plan, words: Sequence[str], recorded: Sequence[Timing] = ()) -> Plan:
    """The plan of the command line `words` with what is fastest; `recorded`: by an earlier start of the run.

    Raises:
        TrainerError: no value of a key can be run, or a signal came.
    """
    if not timings.wanted(made.spec):
        return made
    from trainer4090.ablation import choosing  # the command line needs it for such a word only
    from trainer4090.sweeps.child import Child

    child = Child()
    with handed_to(child.interrupt):
        return choosing.settled(made, choosing.Bench(plugin_words.split(words)[0], child), recorded)

"""A plan whose keys that say `measure` are measured, before anything else is done with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer4090 import timings
from trainer4090.composition import plugin_words
from trainer4090.plan import Plan
from trainer4090.signals import handed_to
from trainer4090.sweeps.child import Child
from trainer4090.timings import Timing


def settled(made: Plan, words: Sequence[str], folder: Path | None = None) -> Plan:
    """The plan of the command line `words` with what is fastest; `folder`: of the run, where an earlier start counts.

    Raises:
        TrainerError: no value of a key can be run, or a signal came.
    """
    if not timings.wanted(made.spec):
        return made
    child, recorded = Child(), () if folder is None else timings.of_folder(folder)
    with handed_to(child.interrupt):
        return settle(made, plugin_words.split(words)[0], child, recorded)


def settle(made: Plan, plugins: Sequence[str], child: Child, recorded: Sequence[Timing] = ()) -> Plan:
    """The same, where the caller passes signals on to `child`."""
    from trainer4090.ablation import choosing  # only such a word needs it

    return choosing.settled(made, choosing.Bench(plugins, child), recorded)

"""Knowledge across axes: small functions over a plan's facts, each yielding the problems that it sees.

Rules ask for facts, never for option names, so an option added later is covered as soon as it states its facts.
"""

from __future__ import annotations

from trainer4090.errors import ConfigError, DataError
from trainer4090.plan import Plan
from trainer4090.rules import attention, compilation, data, kernels, memory, model, precision, ranks, run

RULES = (
    *run.RULES,
    *model.RULES,
    *memory.RULES,
    *precision.RULES,
    *kernels.RULES,
    *attention.RULES,
    *compilation.RULES,
    *ranks.RULES,
)
DATA_RULES = data.RULES


def check(plan: Plan) -> None:
    """Raise unless `plan` can be run.

    Raises:
        ConfigError: with all problems of the configuration.
        DataError: the configuration is sound but the data set is too small for it, or has targets that are none.
    """
    problems = [problem for rule in RULES for problem in rule(plan)]
    if problems:
        raise ConfigError(*problems)
    faults = [fault for rule in DATA_RULES for fault in rule(plan)]
    if faults:
        raise DataError(*faults)

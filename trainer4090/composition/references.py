"""References: `${optimizer.lr}` takes the value of another key. Nothing else in `${...}` is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from trainer4090.errors import Problem
from trainer4090.schema import ALL_KEYS, nearest
from trainer4090.spec import flatten

_RESOLVER = re.compile(r"\$\{[^}]*:")
ONLY_KEYS = "only references to keys are read, like ${optimizer.lr}"


def runs_code(text: str) -> bool:
    """Whether a text holds a resolver (`${oc.env:HOME}`), which would be a function call at this place and moment."""
    return _RESOLVER.search(text) is not None


def unresolved(config: DictConfig) -> Iterator[Problem]:
    """A problem for every key whose value holds a reference that cannot be followed, or that is no reference."""
    tree: Any = OmegaConf.to_container(config, resolve=False)
    flat = flatten(tree)
    for key, value in flat.items():
        if "${" not in str(value):
            continue
        if runs_code(str(value)) or "\\${" in str(value):
            yield Problem(key, f"{value!r} is no reference to a key", ONLY_KEYS)
            continue
        try:
            chosen = OmegaConf.select(config, key, throw_on_missing=True)
            OmegaConf.to_container(chosen, resolve=True) if OmegaConf.is_config(chosen) else chosen
        except InterpolationKeyError:
            yield Problem(key, f"the reference {value!r} leads nowhere", _remedy(value, flat))
        except (OmegaConfBaseException, RecursionError):
            yield Problem(key, f"the reference {value!r} leads back to itself", "give one of its keys a value")


def _remedy(value: object, flat: dict[str, Any]) -> str:
    targets = re.findall(r"\$\{([^}]*)\}", str(value))
    close = [f"${{{name}}}" for target in targets for name in nearest(target, flat)[:1]]
    return f"did you mean {' and '.join(close)}? all keys: {ALL_KEYS}" if close else f"all keys: {ALL_KEYS}"

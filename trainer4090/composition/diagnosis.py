"""What is wrong with a command line that does not compose: every problem of it, each in our own words.

Hydra stops at the first problem, and for a typing error it advises `+`, which would hide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from trainer4090 import paths
from trainer4090.composition import overrides, references
from trainer4090.composition.hydra_compose import REFUSALS, compose_raw
from trainer4090.composition.vocabulary import KEYS, translated_key
from trainer4090.errors import ConfigError, Problem
from trainer4090.parse import REGISTRIES, parse
from trainer4090.plugins.recorded import recorded
from trainer4090.schema import ALL_KEYS, field_types, suggestion
from trainer4090.spec import LIST_AXES, flatten


def problems_of(words: Sequence[str]) -> list[Problem]:
    """All problems of `words`; one without a key of its own when the reason stays unknown."""
    plain = [overrides.without_sign(word) for word in words]
    problems = _problems(plain)
    known = {problem.key for problem in problems}
    _, signs = overrides.read([word for word in words if word not in plain and overrides.key_of(word) not in known])
    return [*problems, *signs] or [_unexplained("does not compose")]


def _problems(words: Sequence[str]) -> list[Problem]:
    sound, problems = overrides.read(words)
    groups = set(paths.groups())
    doubtful = {overrides.key_of(word) for word in words} - {override.get_key_element() for override in sound}
    chosen = [override for override in sound if override.get_key_element() in groups]
    config = _composed(chosen, problems)
    if config is None:
        doubtful.add("recipe")
        chosen = [override for override in chosen if override.get_key_element() != "recipe"]
        config = _composed(chosen, [])
    if config is None:
        return problems
    if "recipe" in doubtful:
        doubtful |= groups  # which options it would have chosen is not known, so neither are their keys
    unsure = {section for section in doubtful if section in groups}
    valued = [override for override in sound if override.get_key_element() not in groups]
    valued = [override for override in valued if override.get_key_element().split(".")[0] not in unsure]
    tree = _own_tree(config)
    fitting = [override for override in valued if not _found(_key_problems(override, tree), problems)]
    problems += _value_problems(config, chosen, fitting, unsure)
    return problems


def _value_problems(
    config: DictConfig, chosen: Sequence[Override], fitting: Sequence[Override], unsure: set[str]
) -> Iterator[Problem]:
    """Problems of the values, once everything that is wrong with the keys is left out. `config`: of `chosen` alone."""
    try:
        config = compose_raw([word_of(override) for override in (*chosen, *fitting)]) if fitting else config
    except REFUSALS:
        yield from _misfits(chosen, fitting)
        return
    own = own_part(config)
    dangling = list(references.unresolved(own))
    yield from dangling
    for problem in dangling:
        OmegaConf.update(own, problem.key, None, merge=False)
    tree: Any = OmegaConf.to_container(own, resolve=True)
    try:
        parse({**tree, "plugin": recorded(tree)})
    except ConfigError as error:
        named = {problem.key for problem in dangling}
        for problem in error.problems:
            if problem.key not in named and problem.key.split(".")[0] not in unsure:
                yield problem


def _misfits(chosen: Sequence[Override], fitting: Sequence[Override]) -> Iterator[Problem]:
    """Problems of the overrides that Hydra refuses although their keys exist: a section in a value's place, say."""
    words = [word_of(override) for override in chosen]
    for override in fitting:
        try:
            compose_raw([*words, word_of(override)])
        except REFUSALS:
            key, value = override.get_key_element(), overrides.key_value(override)
            yield Problem(key, f"{value!r} does not fit there", f"its present value: {ALL_KEYS}")


def _composed(chosen: Sequence[Override], problems: list[Problem]) -> DictConfig | None:
    try:
        return compose_raw([word_of(override) for override in chosen])
    except ConfigError as error:
        problems.extend(error.problems)
    except REFUSALS as error:
        problems.append(_unexplained(" ".join(str(error).split())))
    return None


def _found(found: Iterator[Problem], problems: list[Problem]) -> bool:
    before = len(problems)
    problems.extend(found)
    return len(problems) > before


def word_of(override: Override) -> str:
    """The override as it was typed."""
    return override.input_line or ""


def own_part(config: DictConfig) -> DictConfig:
    """A composition without Hydra's own section."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def _own_tree(config: DictConfig) -> dict[str, Any]:
    tree: Any = OmegaConf.to_container(own_part(config), resolve=False)
    return tree


def _key_problems(override: Override, tree: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with a key in the tree of the chosen options."""
    key, flat = override.get_key_element(), flatten(tree)
    sections = {prefix for name in flat for prefix in _prefixes(name)}
    if key not in flat and key not in sections:
        ours = KEYS.get(key)
        options = paths.options(ours) if ours in paths.groups() else ()
        translated = translated_key(key, overrides.key_value(override), list(options))
        yield translated or Problem(key, *_unknown(key, tree, flat))


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _unknown(key: str, tree: dict[str, Any], flat: dict[str, Any]) -> tuple[str, str]:
    """What an unknown key is, and what to type instead."""
    group, *inner = key.split(".")
    leaf = inner[-1] if inner else group
    if group in LIST_AXES and len(inner) > 1 and inner[0] in REGISTRIES[group].names():
        return f"{group}={inner[0]} is not chosen", f"type {group}={inner[0]} beside it"
    if group == "card" and tree["card"] == {"name": "auto"}:
        return "unknown key of card=auto", f"choose the card beside it: card={' or card='.join(_cards())}"
    siblings = [name for name in flat if name.rpartition(".")[0] == key.rpartition(".")[0]] if inner else []
    present = f" of {group}={tree[group].get('name')}" if group in REGISTRIES and "name" in tree[group] else ""
    others = [] if group in LIST_AXES or group not in REGISTRIES else _owners(group, leaf)
    if others:
        return f"unknown key{present}", f"it belongs to {' and '.join(f'{group}={name}' for name in others)}"
    if siblings:
        return f"unknown key{present}", suggestion(key, siblings, "keys here", ALL_KEYS)
    chosen_by_word = {f"{group}.name" for group in paths.groups()}
    known = [name for name in flat if not name.startswith("card.") and name not in chosen_by_word]
    return "unknown key", suggestion(key, [*paths.groups(), *known], "keys", ALL_KEYS)


def _cards() -> list[str]:
    return [name for name in paths.options("card") if name != "auto"]


def _owners(group: str, leaf: str) -> list[str]:
    registry = REGISTRIES[group]
    return [name for name in registry.names() if leaf in field_types(registry.get(name).config)]


def _unexplained(reason: str) -> Problem:
    return Problem("command line", reason, "see 'trainer4090 --help' and 'trainer4090 list'")

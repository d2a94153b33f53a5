"""Parts of a model that are not trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from trainer4090.errors import ConfigError, Problem
from trainer4090.finetune.depth import covers, depths
from trainer4090.schema import LONGEST_LISTING, nearest

STEM = "stem"
"""What comes before the first block; where nothing does, the first block."""


def freeze(
    module: nn.Module, blocks: Sequence[str], words: Sequence[str], notice: Callable[[str], None]
) -> tuple[nn.Module, ...]:
    """Submodules of `module` that stay in eval mode, after nothing in them requires a gradient any more.

    `words`: names of submodules, and `stem`.

    Raises:
        ConfigError: a word names nothing that has parameters, or nothing is left to train.
    """
    if not words:
        return ()
    problems: list[Problem] = []
    roots = [root for word in words for root in _roots(word, module, blocks, problems)]
    if problems:
        raise ConfigError(*problems)
    named = dict(module.named_parameters(remove_duplicate=False))
    frozen = {id(named[name]) for name in named if _covered(name, roots)}
    if len(frozen) == len(set(map(id, named.values()))):
        left = f"leave one of {', '.join(words)} out, or measure without training: trainer4090 evaluate"
        raise ConfigError(Problem("model.freeze", f"[{', '.join(words)}] freezes every parameter", left))
    for parameter in named.values():
        parameter.requires_grad_(parameter.requires_grad and id(parameter) not in frozen)
    _describe(module, roots, notice)
    return tuple(child for name, child in module.named_modules() if _covered(name, roots))


def _covered(name: str, roots: Sequence[str]) -> bool:
    return any(covers(root, name) for root in roots)


def _roots(word: str, module: nn.Module, blocks: Sequence[str], problems: list[Problem]) -> list[str]:
    """Names of the submodules and parameters at the top of what `word` means."""
    children = [name for name, _ in module.named_modules() if name]
    parameters = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    if word == STEM and (blocks or STEM not in children):
        found = _stem(children, parameters, blocks)
    else:
        found = [word] if word in children else []
    if not any(_covered(name, found) for name in parameters):
        given = f"{word!r} holds no parameters" if found else f"{word!r} names no part of the model"
        if word == STEM:
            given = "'stem' is what comes before the first block, and this model has no blocks"
        problems.append(Problem("model.freeze", given, _remedy(word, children, blocks)))
    return found


def _stem(children: Sequence[str], parameters: Sequence[str], blocks: Sequence[str]) -> list[str]:
    if not blocks:
        return []
    before = [name for name, depth in depths(parameters, blocks).items() if depth == 0]
    return before + [name for name, depth in depths(children, blocks).items() if depth == 0] if before else [blocks[0]]


def _remedy(word: str, children: Sequence[str], blocks: Sequence[str]) -> str:
    names = list(blocks) or [name for name in children if "." not in name]
    listing = ", ".join(names if len(names) <= LONGEST_LISTING else [*names[:3], "...", names[-1]])
    close = nearest(word, [STEM, *children])
    hint = f"did you mean {close[0]}? " if close and word != STEM else ""
    return f"{hint}{'blocks' if blocks else 'parts'}: {listing}{f' and {STEM}' if blocks else ''}"


def _describe(module: nn.Module, roots: Sequence[str], notice: Callable[[str], None]) -> None:
    parameters = list(module.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    notice(f"model.freeze: {total - trained:,} of {total:,} parameters are frozen, {trained:,} are trained")
    named = module.named_parameters(remove_duplicate=False)
    tied = [name for name, parameter in named if not parameter.requires_grad and not _covered(name, roots)]
    if tied:
        notice(f"model.freeze: {', '.join(tied)} is frozen too, being one parameter with a frozen one")

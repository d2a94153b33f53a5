"""Optimizer states that are kept in 8 bits and widened for one parameter at a time, while it is stepped.

The arithmetic stays that of the optimizer, its fused kernels included: an update that fp16 skips on the device moves
no state, because what was widened and not changed is narrowed to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import torch

from trainer4090.executors.codes import Kind, decoded, encoded

LARGEST = "largest"
"""Suffix of the blocks' largest magnitudes; the codes have their kind as a suffix."""
State = dict[str, Any]


def hold_in_8_bits(optimizer: torch.optim.Optimizer, kinds: Mapping[str, Kind], min_elements: int) -> None:
    """Let `optimizer` keep the states named in `kinds` in 8 bits, for parameters of at least `min_elements`.

    Its `step` is replaced, and what it saves are plain tensors. A state that was saved wide is narrowed when it is
    loaded.
    """
    states = _NarrowStates(optimizer, kinds, min_elements)
    optimizer.step = states.step  # type: ignore[method-assign]
    optimizer.register_load_state_dict_pre_hook(states.before_loading)
    optimizer.register_load_state_dict_post_hook(states.after_loading)
    for parameter in states.parameters():
        states.narrow(parameter)


def read_8_bits(optimizer: torch.optim.Optimizer) -> None:
    """Let `optimizer`, which keeps its states wide, also load those that were saved in 8 bits."""
    optimizer.register_load_state_dict_pre_hook(_widen_all)


def _widen_all(optimizer: torch.optim.Optimizer, saved: State) -> State:
    return {**saved, "state": {index: widened(state) for index, state in saved["state"].items()}}


def codes_of(state: State) -> State:
    """What of a parameter's state is in 8 bits."""
    return {name: value for name, value in state.items() if name.rpartition(".")[2] in (*get_args(Kind), LARGEST)}


def widened(state: State) -> State:
    """A parameter's saved state without codes: what any other run goes on with."""
    wide = {name: value for name, value in state.items() if name not in codes_of(state)}
    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        for name in [name for name in state if name.endswith(f".{kind}")]:
            bare = name.removesuffix(f".{kind}")
            wide[bare] = decoded(state[name], state[f"{bare}.{LARGEST}"], kind)
    return wide


class _NarrowStates:
    def __init__(self, optimizer: torch.optim.Optimizer, kinds: Mapping[str, Kind], min_elements: int) -> None:
        self._optimizer = optimizer
        self._step = optimizer.step
        self._kinds = kinds
        self._min_elements = min_elements
        self._saved: list[tuple[torch.Tensor, State]] = []
        self._places: dict[tuple[torch.Tensor, str], tuple[torch.Tensor, torch.Tensor]] = {}
        """Where the codes of a state that is wide at the moment lay: a captured update finds them there again."""

    def parameters(self) -> Iterator[torch.Tensor]:
        """Those whose states are kept in 8 bits."""
        for group in self._optimizer.param_groups:
            yield from filter(self._is_narrow, group["params"])

    def _is_narrow(self, parameter: torch.Tensor) -> bool:
        return parameter.numel() >= self._min_elements

    @torch.no_grad()
    def step(self) -> None:
        """Step every parameter that has a gradient, those in 8 bits one by one."""
        whole = self._optimizer.param_groups
        try:
            wide = [[each for each in group["params"] if not self._is_narrow(each)] for group in whole]
            pairs = zip(whole, wide, strict=True)
            self._optimizer.param_groups = [{**group, "params": those} for group, those in pairs if those]
            if self._optimizer.param_groups:
                self._step()
            for group in whole:
                for parameter in group["params"]:
                    if parameter.grad is not None and self._is_narrow(parameter):
                        self._optimizer.param_groups = [{**group, "params": [parameter]}]
                        self._widen(parameter)
                        self._step()
                        self.narrow(parameter)
        finally:
            self._optimizer.param_groups = whole

    def narrow(self, parameter: torch.Tensor) -> None:
        """Encode what is there of the parameter's states."""
        state = self._optimizer.state[parameter]
        for name, kind in self._kinds.items():
            value = state.pop(name, None)
            if value is not None:
                new = encoded(value, kind)
                place = self._places.pop((parameter, name), new)
                for old, codes in zip(place, new, strict=True):
                    if old is not codes:
                        old.copy_(codes)
                state[f"{name}.{kind}"], state[f"{name}.{LARGEST}"] = place

    def _widen(self, parameter: torch.Tensor) -> None:
        state = self._optimizer.state[parameter]
        for name, kind in self._kinds.items():
            codes = state.pop(f"{name}.{kind}", None)
            if codes is not None:
                largest = state.pop(f"{name}.{LARGEST}")
                self._places[parameter, name] = codes, largest
                value = decoded(codes, largest, kind)
                # Fused kernels go through memory as it lies, so a channels_last parameter needs a state of its layout.
                same = value.stride() == parameter.stride()
                state[name] = value if same else torch.empty_like(parameter).copy_(value)

    def before_loading(self, optimizer: torch.optim.Optimizer, saved: State) -> State:
        """`saved` without codes, which torch would load as fp32."""
        self._saved = []
        states = dict(saved["state"])
        for old, own in zip(saved["param_groups"], optimizer.param_groups, strict=True):
            for index, parameter in zip(old["params"], own["params"], strict=True):
                state = states.get(index, {})
                codes = codes_of(state)
                if codes and self._is_narrow(parameter):
                    self._saved.append((parameter, codes))
                    states[index] = {name: value for name, value in state.items() if name not in codes}
                elif codes:
                    states[index] = widened(state)
        return {**saved, "state": states}

    def after_loading(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the codes back, and narrow what was saved wide."""
        for parameter, codes in self._saved:
            optimizer.state[parameter].update({name: value.to(parameter.device) for name, value in codes.items()})
        self._saved = []
        for parameter in self.parameters():
            self.narrow(parameter)

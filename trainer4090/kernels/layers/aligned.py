"""Layers whose parameters are stored with zeros up to a multiple, and that compute what they did before.

A layer pads its input with zeros and cuts its output, so nothing around it, no normalisation for one, meets the
padding. What is padded is worth nothing and stays zero: its output is cut away and its input is zero, so its gradient
is exactly zero, and neither weight decay nor an element-wise optimizer nor an average moves a zero without a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional

from trainer4090.records import NameMap

Slots = dict[int, list[tuple[nn.Module, str]]]
"""Identity of a parameter -> who holds it, under which name."""


@dataclass(frozen=True)
class Padding:
    """What became of the layers of a module."""

    padded: tuple[str, ...]
    fitting: tuple[str, ...]
    """Their sizes are multiples already."""
    left: tuple[str, ...]
    """Linear layers and convolutions that cannot be padded: grouped or transposed, of a class of its own, or with a
    parameter that is used elsewhere too."""


def align(module: nn.Module, multiple: int) -> Padding:
    """Pad the parameters of linear layers, of convolutions and of embeddings tied to them, in place; what was done.

    Parameters keep their names; `weight` and `bias` of a layer stay what they were, as views of what is stored.
    """
    slots: Slots = {}
    for child in module.modules():
        for key, parameter in child._parameters.items():
            if parameter is not None:
                slots.setdefault(id(parameter), []).append((child, key))
    padded, fitting, left = [], [], []
    for name, layer in module.named_modules():
        if not isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
            continue
        if all(size % multiple == 0 for size in _sizes(layer)):
            fitting.append(name)
            continue
        if type(layer) in _ALIGNED.values():  # tied to one that came before
            padded.append(name)
            continue
        tied = _tied(layer, slots)
        if not all(map(_is_known, tied)):
            left.append(name)
            continue
        for member in tied:
            _pad(member, multiple, slots)
        padded.append(name)
    return Padding(tuple(padded), tuple(fitting), tuple(left))


def file_map(module: nn.Module) -> NameMap:
    """How parameters of `module`, averages and optimizer state of their shape become those of the unpadded model."""
    shapes = {
        f"{name}.{key}" if name else key: (parameter.shape, true_shape(layer, key))
        for name, layer in module.named_modules(remove_duplicate=False)
        if type(layer) in _ALIGNED.values()
        for key, parameter in layer._parameters.items()
        if parameter is not None
    }

    def to_file(name: str, tensor: torch.Tensor) -> torch.Tensor:
        stored, true = shapes.get(name, (None, None))
        # A copy: a view would write the padding with it.
        return tensor if tensor.shape != stored or true is None else _cut(tensor, true).clone()

    def from_file(name: str, tensor: torch.Tensor) -> torch.Tensor:
        stored, true = shapes.get(name, (None, None))
        return tensor if stored is None or tensor.shape != true else _grown(tensor, stored)

    return NameMap(to_file, from_file)


def true_shape(layer: nn.Module, key: str) -> torch.Size:
    """Shape of a parameter of an aligned layer without its padding."""
    sizes = _sizes(layer)
    return torch.Size(sizes[:1] if key == "bias" else (*sizes, *_kernel(layer)))


def _sizes(layer: Any) -> tuple[int, int]:
    """(outputs, inputs) of a layer; (rows, width) of an embedding."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    if isinstance(layer, nn.Embedding):
        return layer.num_embeddings, layer.embedding_dim
    return layer.out_channels, layer.in_channels


def _kernel(layer: Any) -> tuple[int, ...]:
    return () if isinstance(layer, (nn.Linear, nn.Embedding)) else tuple(layer.kernel_size)


def _tied(layer: nn.Module, slots: Slots) -> list[nn.Module]:
    """`layer` and everyone whose parameters are shared with it, or with one of them."""
    found = [layer]
    for member in found:  # grows meanwhile
        for parameter in member._parameters.values():
            holders = slots[id(parameter)] if parameter is not None else []
            found += [holder for holder, _ in holders if holder not in found]
    return found


def _is_known(layer: Any) -> bool:
    # A subclass may use its weight otherwise, as the output projection of torch's MultiheadAttention does; so may a
    # forward of the instance's own. A weight that is made anew in every forward is no parameter.
    if type(layer) not in _ALIGNED or "forward" in vars(layer) or layer._parameters.get("weight") is None:
        return False
    if isinstance(layer, nn.Embedding):
        return not layer.sparse
    return isinstance(layer, nn.Linear) or layer.groups == 1


def _pad(layer: nn.Module, multiple: int, slots: Slots) -> None:
    """Pad the parameters of `layer` that are not yet padded, wherever they are held."""
    layer.__class__ = _ALIGNED.get(type(layer), type(layer))
    for key, parameter in list(layer._parameters.items()):
        if parameter is None or parameter.shape != true_shape(layer, key):
            continue
        sizes = true_shape(layer, key)
        stored = torch.Size((*(-(-size // multiple) * multiple for size in sizes[:2]), *sizes[2:]))
        if stored == sizes:
            continue
        grown = nn.Parameter(_grown(parameter.detach(), stored), requires_grad=parameter.requires_grad)
        for holder, name in slots.pop(id(parameter)):
            holder._parameters[name] = grown
            slots.setdefault(id(grown), []).append((holder, name))


def _grown(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """`tensor` with zeros after its values, in its memory format."""
    differences = [after - before for after, before in zip(shape, tensor.shape, strict=True)]
    return functional.pad(tensor, [number for difference in reversed(differences) for number in (0, difference)])


def _cut(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return tensor[tuple(slice(size) for size in shape)]


def _weight(layer: nn.Module) -> torch.Tensor:
    """The weight without its padding, a view: for code that reads it past the layer."""
    stored = layer._parameters["weight"]
    assert stored is not None
    return _cut(stored, true_shape(layer, "weight"))


def _bias(layer: nn.Module) -> torch.Tensor | None:
    stored = layer._parameters["bias"]
    return None if stored is None else _cut(stored, true_shape(layer, "bias"))


def _convolved(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]
    channels = inputs.ndim - 1 - len(layer.kernel_size)  # with or without a batch before it
    extra = weight.shape[1] - layer.in_channels
    if extra:
        inputs = functional.pad(inputs, [0, 0] * len(layer.kernel_size) + [0, extra])
    outputs = layer._conv_forward(inputs, weight, bias)
    return outputs if weight.shape[0] == layer.out_channels else outputs.narrow(channels, 0, layer.out_channels)


@final
class AlignedLinear(nn.Linear):
    """A linear layer whose stored sizes are multiples."""

    weight = property(_weight)  # type: ignore[assignment]
    bias = property(_bias)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Outputs (..., out_features) of `input` (..., in_features)."""
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None
        extra = weight.shape[1] - self.in_features
        outputs = functional.linear(functional.pad(input, [0, extra]) if extra else input, weight, bias)
        return outputs if weight.shape[0] == self.out_features else outputs[..., : self.out_features]


@final
class AlignedEmbedding(nn.Embedding):
    """An embedding whose weight is that of an aligned linear layer."""

    weight = property(_weight)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows (..., embedding_dim) of `input` (...), integers."""
        weight = self._parameters["weight"]
        assert weight is not None
        rows = functional.embedding(
            input, weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq
        )
        return rows if weight.shape[1] == self.embedding_dim else rows[..., : self.embedding_dim]


@final
class AlignedConv1d(nn.Conv1d):
    """A convolution over one dimension whose stored channels are multiples."""

    weight, bias, forward = property(_weight), property(_bias), _convolved  # type: ignore[assignment]


@final
class AlignedConv2d(nn.Conv2d):
    """A convolution over two dimensions whose stored channels are multiples."""

    weight, bias, forward = property(_weight), property(_bias), _convolved  # type: ignore[assignment]


@final
class AlignedConv3d(nn.Conv3d):
    """A convolution over three dimensions whose stored channels are multiples."""

    weight, bias, forward = property(_weight), property(_bias), _convolved  # type: ignore[assignment]


_ALIGNED: dict[type, type] = {
    nn.Linear: AlignedLinear,
    nn.Embedding: AlignedEmbedding,
    nn.Conv1d: AlignedConv1d,
    nn.Conv2d: AlignedConv2d,
    nn.Conv3d: AlignedConv3d,
}

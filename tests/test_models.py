"""Models: shapes, names, counts and blocks of every entry, and the own networks against references."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.models
from omegaconf import OmegaConf
from torch import nn
from torch.overrides import TorchFunctionMode
from torchvision.ops import StochasticDepth

from trainer4090.errors import ConfigError
from trainer4090.models import MODELS, nearest_multiples
from trainer4090.models.networks.chain import find_chain
from trainer4090.models.networks.input_channels import set_input_channels
from trainer4090.models.torchvision import families
from trainer4090.records import Model
from trainer4090.schema import read
from trainer4090.traits import DataTraits, ModelTraits

YAMLS = sorted((Path(__file__).parents[1] / "conf" / "model").glob("*.yaml"))
ONE_PER_FAMILY = sorted({family: arch for arch, family in reversed(families().items())}.values())
REST = sorted(set(families()) - set(ONE_PER_FAMILY))
ARCHITECTURES = [*ONE_PER_FAMILY, *(pytest.param(arch, marks=pytest.mark.full) for arch in REST)]
OWN = {
    "mlp": {"hidden": (16, 12)},
    "cnn": {"width": 4},
    "gpt": {"num_layers": 2, "num_heads": 2, "width": 16},
    "char_lstm": {"num_layers": 2, "width": 12},
}
"""Small enough for a forward pass in milliseconds."""


def images(*shape: int, num_classes: int = 10) -> DataTraits:
    return DataTraits("images", shape, num_classes, 100, 10, 1, in_memory=True)


def tokens(length: int = 16, vocab_size: int = 11) -> DataTraits:
    return DataTraits("tokens", (length,), vocab_size, 100, 10, length, in_memory=True)


def build(name: str, data: DataTraits, **fields: Any) -> Model:
    entry = MODELS.get(name)
    return entry.build(entry.config(**fields), data)


def traits(name: str, **fields: Any) -> ModelTraits:
    entry = MODELS.get(name)
    assert entry.traits is not None
    return entry.traits(entry.config(**fields))


def own(name: str, **fields: Any) -> tuple[Model, torch.Tensor]:
    """A small network of ours, from seed 0, and an input for it."""
    data = tokens() if traits(name).kind == "tokens" else images(2, 8, 8)
    torch.manual_seed(0)
    model = build(name, data, **(OWN[name] | fields))
    inputs = torch.randint(11, (3, 16)) if data.kind == "tokens" else torch.randn(3, 2, 8, 8)
    return model, inputs


class WithoutMemory(TorchFunctionMode):
    """Parameters made inside are on the meta device. `torch.device("meta")` would take RegNet's arithmetic along."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **((kwargs or {}) | ({"device": "meta"} if func is torch.empty else {})))


def on_meta(arch: str, num_channels: int = 3) -> Model:
    with WithoutMemory():
        model = build("torchvision", images(num_channels, 224, 224), arch=arch)
    return replace(model, module=model.module.to("meta"))


def assert_chain(model: Model, inputs: torch.Tensor) -> None:
    """Each block runs once, on the very tensor that the one before returned, and leaves that tensor as it is."""
    calls: list[tuple[str, Any, Any]] = []
    versions: dict[str, int] = {}

    def before(name: str, args: Any, kwargs: Any) -> None:
        assert not kwargs and len(args) == 1, name
        versions[name] = args[0]._version

    def after(name: str, args: Any, output: Any) -> None:
        assert args[0]._version == versions[name], f"{name} changes its input in place"
        calls.append((name, args[0], output))

    for name in model.blocks:
        block = model.module.get_submodule(name)
        block.register_forward_pre_hook(lambda _, args, kwargs, name=name: before(name, args, kwargs), with_kwargs=True)
        block.register_forward_hook(lambda _, args, output, name=name: after(name, args, output))
    model.module(inputs)
    assert tuple(name for name, _, _ in calls) == model.blocks
    for (first, _, output), (second, following, _) in pairwise(calls):
        assert output is following, f"{second} does not take the output of {first}"


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_yaml_lists_every_field_of_its_config(path: Path) -> None:
    tree: Any = OmegaConf.to_container(OmegaConf.load(path))
    entry = MODELS.get(tree.pop("name"))
    problems: list[Any] = []
    config = read(entry.config, tree, "model", problems)
    assert problems == [] and entry.traits is not None
    assert entry.traits(config).kind in ("images", "tokens")
    assert path.read_text().startswith("# ")
    if path.stem == entry.name:
        assert config == entry.config()


def test_every_model_has_a_yaml() -> None:
    assert set(MODELS.names()) <= {path.stem for path in YAMLS}


def test_looking_up_and_refusing_imports_no_torch() -> None:
    code = (
        "import sys; from trainer4090.models import MODELS\n"
        "for name in MODELS.names(): entry = MODELS.get(name); entry.traits(entry.config())\n"
        "sys.exit(sorted({'torch', 'torchvision'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


ERRORS = {
    "arch": ("torchvision", {"arch": "resnet5O"}, images(3, 32, 32), "model.arch: unknown architecture 'resnet5O'; did "
             "you mean resnet50 or "),
    "no_detector": ("torchvision", {"arch": "fasterrcnn_resnet50_fpn"}, images(3, 32, 32), "model.arch: unknown"),
    "patch": ("torchvision", {"arch": "vit_b_16"}, images(3, 28, 28), "model.arch: vit_b_16 takes square images of a "
              "multiple of 16 pixels, the data has 28x28; choose square images of 16 or 32 pixels, or another arch"),
    "oblong": ("torchvision", {"arch": "vit_b_32"}, images(3, 32, 64), "the data has 32x64"),
    "window": ("torchvision", {"arch": "maxvit_t"}, images(3, 32, 32), "choose square images of 224 pixels"),
    "too_small": ("torchvision", {"arch": "squeezenet1_1"}, images(3, 8, 8), "squeezenet1_1 does not take images of"),
    "heads": ("gpt", {"width": 100, "num_heads": 12}, tokens(), "model.width: 100 is not divisible by "
              "model.num_heads=12; nearest valid: 96 or 108"),
    "context": ("gpt", {"context": 8}, tokens(), "model.context: 8 is shorter than the data's sequences of 16 tokens; "
                "give auto or at least 16"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "data", "text"), ERRORS.values(), ids=ERRORS.keys())
def test_error(name: str, fields: dict[str, Any], data: DataTraits, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        problem = traits(name, **fields).item_problem(data.item_shape)
        if problem is not None:
            raise ConfigError(problem)
        build(name, data, **fields)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("value", "divisor", "words"), [(100, 12, "96 or 108"), (5, 12, "12"), (12, 12, "12 or 24")], ids=str
)
def test_nearest_multiples(value: int, divisor: int, words: str) -> None:
    assert nearest_multiples(value, divisor) == words


PARAMETERS = {
    "resnet50": ("torchvision", {"arch": "resnet50"}, images(3, 224, 224, num_classes=1000), 25_557_032),
    "vit_b_16": ("torchvision", {"arch": "vit_b_16"}, images(3, 224, 224, num_classes=1000), 86_567_656),
    "gpt2": ("gpt", {"num_layers": 12, "num_heads": 12, "width": 768}, tokens(1024, 50257), 124_439_808),
    "gpt_untied": ("gpt", OWN["gpt"] | {"tie": False, "bias": False}, tokens(16, 11), 6_832),
}


@pytest.mark.parametrize(("name", "fields", "data", "count"), PARAMETERS.values(), ids=PARAMETERS.keys())
def test_number_of_parameters(name: str, fields: dict[str, Any], data: DataTraits, count: int) -> None:
    with WithoutMemory():
        module = build(name, data, **fields).module
    assert sum(parameter.numel() for parameter in module.parameters()) == count


def test_gpt2_preset_has_the_published_shapes() -> None:
    tree: Any = OmegaConf.load(next(path for path in YAMLS if path.stem == "gpt2_124m"))
    fields = {key: tree[key] for key in ("num_layers", "num_heads", "width", "context", "vocab_size", "tie", "bias")}
    assert list(fields.values()) == [12, 12, 768, 1024, 50257, True, True]


BLOCK_NAMES = [f"{part}.{kind}" for part in ("attention_norm", "attention.query_key_value", "attention.projection",
               "feed_forward_norm", "feed_forward.expansion", "feed_forward.projection")
               for kind in ("weight", "bias")]  # fmt: skip
NORM_NAMES = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
CELL_NAMES = ["input_projection.weight", "input_projection.bias", "cell.recurrent.weight"]
STATE = {
    "mlp": [*(f"blocks.{index}.linear.{kind}" for index in (0, 1) for kind in ("weight", "bias")),
            "head.weight", "head.bias"],
    "cnn": [*(f"blocks.{index}.{name}" for index in (0, 1, 2)
              for name in ("convolution.weight", *(f"norm.{name}" for name in NORM_NAMES))),
            "head.weight", "head.bias"],
    "gpt": ["token_embedding.weight", "position_embedding.weight",
            *(f"blocks.{index}.{name}" for index in (0, 1) for name in BLOCK_NAMES),
            "norm.weight", "norm.bias", "head.weight"],
    "char_lstm": ["embedding.weight", *(f"layers.{index}.{name}" for index in (0, 1) for name in CELL_NAMES),
                  "head.weight", "head.bias"],
}  # fmt: skip


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("name", "names"), STATE.items(), ids=STATE.keys())
def test_state_names_are_stable(name: str, names: list[str], dropout: float) -> None:
    assert list(own(name, dropout=dropout)[0].module.state_dict()) == names


@pytest.mark.parametrize("arch", ["resnet18", "vit_b_16", "squeezenet1_0"])
def test_state_names_are_torchvisions(arch: str) -> None:
    with WithoutMemory():
        bare = torchvision.models.get_model(arch, weights=None, num_classes=10)
    assert list(on_meta(arch, num_channels=1).module.state_dict()) == list(bare.state_dict())


@pytest.mark.parametrize("name", OWN)
def test_same_seed_gives_same_network_in_fp64_too(name: str) -> None:
    (first, inputs), (second, _) = own(name, dropout=0.0), own(name, dropout=0.0)
    wide = inputs if inputs.dtype == torch.int64 else inputs.double()
    narrow, exact = first.module(inputs), second.module.double()(wide)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(narrow, exact.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", OWN)
def test_dropout_is_what_the_traits_say(name: str, dropout: float) -> None:
    model, inputs = own(name, dropout=dropout)
    assert traits(name, dropout=dropout).dropout == (dropout > 0)
    assert torch.equal(model.module(inputs), model.module(inputs)) == (dropout == 0)
    model.module.eval()
    assert torch.equal(model.module(inputs), model.module(inputs))


OUTPUTS = {"mlp": "num_classes", "cnn": "num_classes", "gpt": "vocab_size", "char_lstm": "vocab_size"}


@pytest.mark.parametrize("given", ["auto", 23])
@pytest.mark.parametrize(("name", "field"), OUTPUTS.items(), ids=OUTPUTS.keys())
def test_outputs_follow_the_data_or_the_field(name: str, field: str, given: Any) -> None:
    model, inputs = own(name, **{field: given})
    found = 11 if inputs.dtype == torch.int64 else 10
    assert model.module(inputs).shape[-1] == (found if given == "auto" else given)
    assert traits(name, **{field: given}).num_outputs == (None if given == "auto" else given)


@pytest.mark.parametrize("size", [(8, 8), (9, 13), (28, 28), (1, 1)], ids=str)
def test_cnn_takes_any_image_size(size: tuple[int, int]) -> None:
    assert build("cnn", images(1, *size)).module(torch.randn(2, 1, *size)).shape == (2, 10)


@pytest.mark.parametrize("name", OWN)
def test_own_blocks_form_a_chain(name: str) -> None:
    model, inputs = own(name)
    assert len(model.blocks) == len(model.module.get_submodule(model.blocks[0].rpartition(".")[0]))  # type: ignore
    assert_chain(model, inputs)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_torchvision_blocks_and_traits(arch: str) -> None:
    model, known = on_meta(arch), traits("torchvision", arch=arch)
    kinds = list(model.module.modules())
    random = [module for module in kinds if isinstance(module, (nn.Dropout, StochasticDepth)) and module.p > 0]
    assert known.batch_norm == any(isinstance(module, nn.BatchNorm2d) for module in kinds)
    assert known.dropout == bool(random)
    assert (len(model.blocks) >= 7) == known.blocks == (families()[arch] not in ("vgg", "alexnet"))
    assert_chain(model, torch.empty(2, 3, 224, 224, device="meta"))


BLOCKS = {
    "resnet50": (16, "layer1.0", "layer4.2"),
    "vit_b_16": (12, "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_11"),
    "densenet121": (7, "features.denseblock1", "features.denseblock4"),
    "squeezenet1_0": (10, "features.3", "features.12"),
    "vgg11": (0, None, None),
}


@pytest.mark.parametrize(("arch", "expected"), BLOCKS.items(), ids=BLOCKS.keys())
def test_torchvision_block_names(arch: str, expected: tuple[int, str | None, str | None]) -> None:
    blocks = on_meta(arch).blocks
    assert (len(blocks), *([blocks[0], blocks[-1]] if blocks else [None, None])) == expected


def test_convnext_blocks_are_its_stages_in_order() -> None:
    blocks = on_meta("convnext_tiny").blocks
    assert blocks[:6] == ("features.0", "features.1.0", "features.1.1", "features.1.2", "features.2", "features.3.0")


def test_architectures_are_torchvisions_classifiers() -> None:
    assert set(families()) == set(torchvision.models.list_models(module=torchvision.models))


class Traps(nn.Module):
    """Four composite children, of which only `second` and `third` hand on a tensor untouched."""

    def __init__(self, trap: str) -> None:
        super().__init__()
        self.trap = trap
        self.first, self.second, self.third, self.fourth = (nn.Sequential(nn.Linear(4, 4)) for _ in range(4))
        if trap == "in place":
            self.first = nn.Sequential(nn.ReLU(inplace=True))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.trap == "twice":
            hidden = self.fourth(hidden)
        if self.trap == "in place":
            return self.fourth(self.third(self.second(self.first(hidden))).relu())
        hidden = self.third(self.second(self.first(hidden) + 0))
        return self.fourth(hidden if self.trap == "twice" else hidden.relu())


@pytest.mark.parametrize("trap", ["twice", "between", "in place"])
def test_chain_ends_where_a_tensor_is_not_handed_on(trap: str) -> None:
    assert find_chain(Traps(trap), (4,)) == ("second", "third")


def test_finding_the_chain_changes_nothing() -> None:
    module = torchvision.models.efficientnet_b0(num_classes=10)  # BatchNorm, dropout, stochastic depth
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    random_state = torch.get_rng_state()
    find_chain(module, (3, 32, 32))
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not any(child._forward_hooks for child in module.modules())


@pytest.mark.parametrize("num_channels", [1, 2, 12])
@pytest.mark.parametrize("arch", ["resnet18", "mobilenet_v3_small"])
def test_other_channels_keep_the_first_convolutions_variance(arch: str, num_channels: int) -> None:
    torch.manual_seed(0)
    module = torchvision.models.get_model(arch, num_classes=10)
    first: Any = next(child for child in module.modules() if isinstance(child, nn.Conv2d))
    before = first(torch.randn(4, 3, 32, 32)).var()
    set_input_channels(module, num_channels)
    torch.testing.assert_close(first(torch.randn(4, num_channels, 32, 32)).var(), before, rtol=0.2, atol=0)
    assert module(torch.randn(2, num_channels, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("tie", [True, False])
def test_tied_weights_are_one_storage(tie: bool) -> None:
    module: Any = own("gpt", tie=tie)[0].module
    assert (module.head.weight.data_ptr() == module.token_embedding.weight.data_ptr()) == tie
    assert (module.head.weight is module.double().token_embedding.weight) == tie


def test_gpt_initial_weights() -> None:
    torch.manual_seed(0)
    module: Any = build("gpt", tokens(), num_layers=8, num_heads=1, width=128).module
    residual, plain = 0.02 / 4, 0.02  # 4 = sqrt(2 * 8 layers)
    expected = (("attention.query_key_value", plain), ("attention.projection", residual),
                ("feed_forward.expansion", plain), ("feed_forward.projection", residual))  # fmt: skip
    for name, std in expected:
        weights = [weight for key, weight in module.named_parameters() if key.endswith(f"{name}.weight")]
        assert len(weights) == 8
        assert torch.cat(weights).std().item() == pytest.approx(std, rel=0.02)
    assert all(not bias.any() for key, bias in module.named_parameters() if key.endswith("bias"))


def test_gpt_is_causal() -> None:
    model, inputs = own("gpt")
    module = model.module.double()
    changed = inputs.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 11
    difference = (module(inputs) - module(changed)).abs().amax(dim=(0, 2))
    assert difference[:9].max() < 1e-12 < difference[9:].min()


def test_gpt_refuses_a_sequence_beyond_its_context() -> None:
    with pytest.raises(ValueError, match="17 tokens does not fit a context of 16"):
        own("gpt")[0].module(torch.zeros(1, 17, dtype=torch.int64))


def test_char_lstm_equals_torchs() -> None:
    model, inputs = own("char_lstm")
    module: Any = model.module.double()
    reference = nn.LSTM(12, 12, num_layers=2, batch_first=True, dtype=torch.float64)
    for index, layer in enumerate(module.layers):
        weights = (layer.input_projection.weight, layer.cell.recurrent.weight, layer.input_projection.bias)
        for name, weight in zip(("weight_ih", "weight_hh", "bias_ih"), weights, strict=True):
            getattr(reference, f"{name}_l{index}").data.copy_(weight.data)
        getattr(reference, f"bias_hh_l{index}").data.zero_()
    expected = module.head(reference(module.embedding(inputs))[0])
    actual = module(inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    weight = module.embedding.weight
    ours, theirs = (torch.autograd.grad(logits.square().sum(), weight) for logits in (actual, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


# Dynamo looks at `.grad` of its inputs, hidden states here, and means nothing by it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_char_lstm_cell_compiles_alone() -> None:
    model, inputs = own("char_lstm")
    assert model.compile_units == ("layers.0.cell", "layers.1.cell")
    names = list(model.module.state_dict())

    def gradients() -> list[torch.Tensor]:
        logits = model.module(inputs)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.module.parameters()))]

    eager = gradients()
    for name in model.compile_units:
        model.module.get_submodule(name).compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(), eager, rtol=1e-6, atol=1e-7)
    assert list(model.module.state_dict()) == names


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_char_lstm_memory_stays_in_the_parameters_dtype(dtype: torch.dtype | None) -> None:
    model, inputs = own("char_lstm")
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    cell = model.module.get_submodule("layers.0.cell")
    cell.register_forward_hook(lambda _, args, output: seen.append((output[0].dtype, output[1].dtype)))
    with torch.autocast("cpu", dtype) if dtype else nullcontext():
        model.module(inputs)
    assert seen == [(dtype or torch.float32, torch.float32)] * 16

"""Mistakes in a plugin: what is written, and the line, the fault and the cure that the error names."""

from __future__ import annotations

from dataclasses import dataclass

from plugin_files import line_of


@dataclass(frozen=True)
class Broken:
    """A mistake in the sound plugin, and what the error says of it."""

    id: str
    old: str
    new: str
    key: str
    """What stands before the first colon and blank."""
    given: str
    remedy: str
    words: tuple[str, ...] = ()


NET, MARGIN, RINGS, NADAM, STRAIGHT = (
    line_of(f'register("{name}"') for name in ("net", "margin", "rings", "nadam", "straight")
)
RINGS_CONFIG = f"./mine.py:{int(line_of('class RingsConfig').rpartition(':')[2]) - 1}"
CONFIG = line_of("@dataclass(frozen=True)")
RETURN_NET = (
    'return Model(Net(torch.Size(data.item_shape).numel(), config.width, data.num_classes), ("body.0", "body.1"))'
)
LOSSES = "    return per_target(losses)\n"
CASES = (
    # While it is imported.
    Broken(
        "syntax",
        "class Net(nn.Module):",
        "class Net(nn.Module)",
        line_of("class Net"),
        "SyntaxError: expected",
        "correct",
    ),
    Broken(
        "name", "import torch\n", "\n", line_of("torch.randn"), "NameError: name 'torch' is not defined", "debug=true"
    ),
    Broken("exception", "class Net(", "1 / 0\n\n\nclass Net(", line_of("class Net"), "ZeroDivisionError", "correct"),
    Broken(
        "import",
        "import torch\n",
        "import torhc\n",
        line_of("import torch"),
        "ModuleNotFoundError: No module named 'torhc'",
        "correct",
    ),
    Broken(
        "exit",
        "class Net(",
        "exit()\n\n\nclass Net(",
        line_of("class Net"),
        "ends the process",
        "if __name__ == '__main__'",
    ),
    Broken("taken", '"net"', '"cnn"', NET, "model=cnn is registered by trainer4090.models.cnn and by", "another name"),
    Broken(
        "taken-preset",
        '"net"',
        '"resnet50"',
        NET,
        "model=resnet50: that is the name of a shipped option",
        "another name",
    ),
    Broken("no-word", '"net"', '"my net"', NET, "'my net' is no name", "one word"),
    Broken("yaml-word", '"net"', '"null"', NET, "'null' is no name", "no word of YAML"),
    Broken("docstring", '    """My network."""\n', "", NET, "model=net has no docstring", 'write """What it is."""'),
    # Config.
    Broken(
        "annotation",
        "width: int = 8",
        "width = 8",
        CONFIG,
        "model=net: Config.width = 8 has no annotation",
        "write width: int = 8",
    ),
    Broken(
        "no-dataclass",
        "@dataclass(frozen=True)\nclass Config",
        "class Config",
        CONFIG,
        "Config is no dataclass",
        "write @dataclass(frozen=True) above class Config",
    ),
    Broken(
        "not-frozen",
        "@dataclass(frozen=True)\nclass Config",
        "@dataclass\nclass Config",
        CONFIG,
        "Config is not frozen",
        "write @dataclass(frozen=True)",
    ),
    Broken(
        "type",
        "width: int = 8",
        "width: dict = None",
        CONFIG,
        "the field width: dict has a type that no key can hold",
        "tuple[T, ...]",
    ),
    Broken(
        "mixed",
        "width: int = 8",
        "width: tuple[int, str] = (8, 'a')",
        CONFIG,
        "width: tuple[int, str]",
        "write int, float",
    ),
    Broken("mutable", "width: int = 8", "width: list = [8]", CONFIG, "mutable default", "tuple"),
    Broken(
        "default",
        "width: int = 8",
        "width: int = None",
        CONFIG,
        "the default of width: int is null, but allowed is an integer",
        "width: int | None",
    ),
    Broken(
        "unknown-type",
        "width: int = 8",
        "width: 'Widht' = 8",
        CONFIG,
        "NameError: name 'Widht' is not defined",
        "import the types",
    ),
    Broken(
        "field-name",
        "width: int = 8",
        "width: int = 8\n    name: str = 'a'",
        CONFIG,
        "may not be called name",
        "rename",
    ),
    Broken("no-class", '"net", Config', '"net", Config()', NET, "is no class", "register('name', Config)"),
    Broken(
        "no-workers",
        "    num_workers: int = 0\n",
        "",
        RINGS_CONFIG,
        "RingsConfig has no num_workers",
        "num_workers: int = 0",
    ),
    # Builders.
    Broken(
        "one-parameter",
        "def net(config, data)",
        "def net(config)",
        NET,
        "its builder net(config) does not take (config, data)",
        "write def net(config, data):",
    ),
    Broken(
        "three-parameters",
        "def rings(config, seed)",
        "def rings(config, seed, x)",
        RINGS,
        "does not take (config, seed)",
        "def rings(config, seed):",
    ),
    Broken(
        "traits-form",
        '"net", Config)',
        '"net", Config, traits=lambda: 1)',
        NET,
        "its traits <lambda>() does not take (config)",
        "def traits(config):",
    ),
    Broken(
        "traits-nowhere",
        '"nadam", NadamConfig)',
        '"nadam", NadamConfig, traits=lambda config: 1)',
        NADAM,
        "optimizer has no traits",
        "leave traits= out",
    ),
    Broken(
        "bare",
        RETURN_NET,
        "return Net(64, 8, 10)",
        NET,
        "model=net returns a Net and no Model",
        "blocks=tuple(f'body.{index}' for index in range(2))",
    ),
    Broken(
        "no-blocks",
        RETURN_NET,
        "return Model(Net(64, 8, 10))",
        NET,
        "missing 1 required positional argument: 'blocks'",
        "blocks=() if",
    ),
    Broken("nothing", RETURN_NET, "pass", NET, "model=net returns nothing and no Model", "return Model("),
    Broken("no-submodule", '"body.1"', '"body.7"', NET, "there is no submodule 'body.7'", "name some of: body, body.0"),
    Broken("no-tuple", '("body.0", "body.1")', '("body.0")', NET, "blocks is the text 'body.0'", 'blocks=("body.0",)'),
    Broken("twice", '("body.0", "body.1")', '("body.0", "body.0")', NET, "names a submodule twice", "name each once"),
    Broken("no-parameter", RETURN_NET, "return Model(nn.Flatten(), ())", NET, "no parameter to train", "ModuleList"),
    Broken(
        "raises",
        RETURN_NET,
        "raise KeyError('no')",
        line_of("return Model(Net"),
        "KeyError: 'no'",
        "correct the plugin",
    ),
    Broken(
        "dataset",
        "return Data(Rings(config.size, seed)",
        "return Data([1, 2]",
        RINGS,
        "train is a list without fetch, targets, resident",
        "tensor_source",
    ),
    Broken(
        "rows",
        "return self.points[indices], self",
        "return self.points, self",
        RINGS,
        "(96, 2) for 2 samples",
        "a row for every sample",
    ),
    Broken(
        "targets",
        "return self.points[indices], self.targets(indices, epoch)",
        "return self.points[indices], indices",
        RINGS,
        "targets differs",
        "same targets",
    ),
    Broken(
        "optimizer",
        "lambda groups, fused: torch.optim.NAdam(groups)",
        "lambda groups, fused: None",
        NADAM,
        "build gives nothing",
        "torch.optim.NAdam(groups)",
    ),
    Broken(
        "optimizer-class",
        "return Optimizer(config.lr, 0.0, lambda groups, fused: torch.optim.NAdam(groups))",
        "return torch.optim.NAdam",
        NADAM,
        "returns a type and no Optimizer",
        "return Optimizer(config.lr",
    ),
    Broken(
        "optimizer-part",
        "torch.optim.NAdam(groups)",
        "torch.optim.NAdam(groups[:1])",
        NADAM,
        "the optimizer holds 3 of 6 trained tensors",
        "all the groups",
    ),
    Broken(
        "schedule",
        "lambda update, horizon: 1 - (1 - config.end) * update / horizon.total",
        "lambda update, horizon: -1.0",
        STRAIGHT,
        "gives -1.0",
        "at least 0",
    ),
    # Model, data and loss together.
    Broken(
        "shape",
        "torch.Size(data.item_shape).numel()",
        "64",
        line_of("return self.head"),
        "model=net cannot take inputs (2, 2) float32",
        "data=rings gives (2,) a sample",
    ),
    Broken(
        "rank",
        "return self.head(self.body(inputs.flatten(1)))",
        "return self.head(self.body(inputs)).mean()",
        NET,
        "gives outputs () for 2 samples",
        "a row for every sample",
    ),
    Broken(
        "tuple",
        "return self.head(self.body(inputs.flatten(1)))",
        "return self.head(self.body(inputs)), 1",
        NET,
        "gives a tuple",
        "one tensor",
    ),
    Broken(
        "few-outputs",
        "data.num_classes)",
        "1)",
        NET,
        "gives outputs (2, 1) for targets (2,) int64",
        "loss=cross_entropy over data=rings takes (2, 2)",
        ("loss=cross_entropy",),
    ),
    Broken(
        "no-chain",
        "self.head(self.body(inputs.flatten(1)))",
        "self.head(self.body[1](self.body[0](inputs) + 1))",
        NET,
        "block 'body.1' does not get the output of 'body.0'",
        "blocks=()",
    ),
    Broken(
        "called-twice",
        "self.head(self.body(inputs.flatten(1)))",
        "self.head(self.body[1](self.body(inputs)))",
        NET,
        "block 'body.1' is called 2 times",
        "blocks=()",
    ),
    Broken(
        "mean",
        LOSSES,
        "    return Loss(lambda o, t: losses(o, t).mean(), lambda t: t.numel())\n",
        MARGIN,
        "loss=margin gives a mean as total",
        "reduction='sum'",
    ),
    Broken(
        "no-sum",
        LOSSES,
        "    return Loss(lambda o, t: losses(o, t).sum() ** 2, lambda t: t.numel())\n",
        MARGIN,
        "gives no sum over targets as total",
        "return the sum",
    ),
    Broken(
        "vector",
        LOSSES,
        "    return Loss(losses, lambda t: t.numel())\n",
        MARGIN,
        "a tensor of shape (2,) as total",
        "add .sum()",
    ),
    Broken(
        "no-count",
        LOSSES,
        "    return Loss(lambda o, t: losses(o, t).sum())\n",
        MARGIN,
        "missing 1 required positional argument: 'count'",
        "per_target(function)",
    ),
    Broken(
        "count",
        LOSSES,
        "    return Loss(lambda o, t: losses(o, t).sum(), lambda t: t.sum())\n",
        MARGIN,
        "counts with a Tensor",
        "targets.numel()",
    ),
    Broken(
        "count-once",
        LOSSES,
        "    return Loss(lambda o, t: losses(o, t).sum(), lambda t: 1)\n",
        MARGIN,
        "counts 1 targets, and 1 when",
        "targets.numel()",
    ),
    Broken(
        "number",
        LOSSES,
        "    return Loss(lambda o, t: losses(o, t).sum().item(), lambda t: t.numel())\n",
        MARGIN,
        "gives a float as total",
        "without .item()",
    ),
    Broken(
        "no-gradient",
        LOSSES,
        "    return Loss(lambda o, t: losses(o.detach(), t).sum(), lambda t: t.numel())\n",
        MARGIN,
        "does not depend on the outputs",
        "detach",
    ),
    Broken(
        "reduced",
        ".relu().mean(-1)",
        ".relu().mean()",
        MARGIN,
        "gives losses of shape () for targets of shape (2,)",
        "one number a target",
    ),
    Broken(
        "loss-shapes",
        "outputs.gather(-1, targets[..., None])",
        "outputs.gather(-1, targets)",
        line_of("outputs.gather"),
        "cannot take outputs (2, 2) float32 and targets (2,) int64",
        "has 2 classes",
    ),
    Broken(
        "scaled", "", "", "optimizer", "nadam cannot skip an overflowed update", "optimizer=adamw", ("precision=amp",)
    ),
)

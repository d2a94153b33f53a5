"""The house style, read off the syntax tree: ceilings, direction of imports, torch-free modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY

PACKAGE = REPOSITORY / "trainer4090"
MODULES = sorted(PACKAGE.rglob("*.py"))
CEILINGS = {"module": 250, "function": 40, "class": 120, "parameters": 8}
EXCEPTIONS: dict[str, str] = {}
"""`path:name` -> the reason why a ceiling does not hold there."""

LAYERS = (
    ("errors", "disk", "paths", "random_state", "ranks", "beats"),
    ("schema",),
    ("registry", "spec", "signals", "plugin_modules"),
    ("card",),
    ("records",),
    ("allocator", "memory_cap"),
    ("traits",),
    ("item_format", "criterion", "attention"),
    ("tokenizer",),
    ("precision", "memory", "kernels", "parallelism", "models", "data", "losses", "metrics", "optimizers", "schedules"),
    ("timings",),
    ("parse", "plugins", "evaluation", "notices", "described", "plan", "device", "extend", "preparation"),
    ("rules",),
    ("report", "checkpoint_file", "executors"),
    ("finetune",),
    ("run_folder", "build"),
    ("resume", "log_point"),
    ("outputs", "generation"),
    ("samples", "evaluating"),
    ("loop",),
    ("measuring",),
    ("process", "failure", "ending", "launch", "opening", "session", "worker", "rank", "trained", "prediction"),
    ("composition", "sweeps"),
    ("ablation",),
    ("verbs", "help"),
    ("__main__",),
)
"""A module imports from its own layer and those before it."""
AXES = LAYERS[9]
IMPORTED_BY_BUILDERS = ("data/pipeline", "models/networks", "kernels/layers", "memory/host")
AFTER_THE_CHECKS = (
    "report",
    "executors",
    "build",
    "evaluating",
    "opening",
    "log_point",
    "loop",
    "measuring",
    "finetune",
    "generation",
    "outputs",
    "prediction",
    "samples",
)
"""Everything else may be met by an error or by `list`, and imports torch inside functions only."""


def name_of(path: Path) -> str:
    """`trainer4090.memory.checkpoint` -> `memory`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


LIGHT = [
    path
    for path in MODULES
    if name_of(path) not in AFTER_THE_CHECKS and str(path.relative_to(PACKAGE).parent) not in IMPORTED_BY_BUILDERS
]


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "trainer4090":
                yield from ((node, f"trainer4090.{alias.name}") for alias in node.names)
            else:
                yield node, node.module


def at_import_time(tree: ast.Module) -> Iterator[str]:
    """What a module imports when it is imported: outside functions and `if TYPE_CHECKING`."""
    for node in tree.body:
        guarded = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) or guarded:
            continue
        yield from (name for _, name in imports(node))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_ceilings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    sizes = [("module", path.name, text.count("\n"))]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            sizes.append((kind, node.name, (node.end_lineno or 0) - node.lineno + 1))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            sizes.append(("parameters", node.name, len([each for each in arguments if each.arg != "self"])))
    over = [
        f"{name} ({kind}): {size}, ceiling {CEILINGS[kind]}"
        for kind, name, size in sizes
        if size > CEILINGS[kind] and f"{path.relative_to(PACKAGE)}:{name}" not in EXCEPTIONS
    ]
    assert not over


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    if path.name == "__init__.py" and path.parent == PACKAGE:
        return
    layer_of = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    own = name_of(path)
    assert own in layer_of, f"{own} has no layer: add it to LAYERS"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        ast.unparse(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in node.body
    }
    for node, module in imports(tree):
        if not module.startswith("trainer4090.") or ast.unparse(node) in guarded:
            continue
        other = module.split(".")[1]
        if other not in layer_of:
            continue  # a name of the package itself, such as __version__
        assert layer_of[other] <= layer_of[own], f"{own} imports {other}, which stands on it"
        if own in AXES and other in AXES and own != other:
            raise AssertionError(f"axis {own} imports axis {other}: axes know each other through facts only")


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_is_imported_late(path: Path) -> None:
    heavy = {"torch", "torchvision", "tensorboard"}
    assert not [name for name in at_import_time(ast.parse(path.read_text())) if name.split(".")[0] in heavy]


def test_no_trainer_hooks() -> None:
    """Options have no hooks, and nothing asks an object what it is."""
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert not [name for name in names if name.startswith("on_")], path
        calls = [
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        assert "hasattr" not in calls, path


def test_nothing_of_these_machines_is_tracked() -> None:
    """No absolute path of a developer's machine in code or text."""
    for path in [*MODULES, *REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]:
        assert f"{Path.home()}/" not in path.read_text(encoding="utf-8"), path

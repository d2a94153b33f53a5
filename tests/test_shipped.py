"""What is shipped in `conf/` and `recipes/`: complete, composable, and the same as the code says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from conftest import plan_of
from omegaconf import OmegaConf

from trainer4090 import card as cards
from trainer4090 import paths
from trainer4090.card import CPU
from trainer4090.composition import compose
from trainer4090.parse import REGISTRIES
from trainer4090.schema import field_types
from trainer4090.spec import LIST_AXES

RTX4090 = cards.load(paths.options("card")["rtx4090"])
RECIPES = sorted(path.stem for path in paths.RECIPES.glob("*.yaml"))
OPTIONS = [(group, name) for group in paths.groups() for name in paths.options(group)]
IN_REGISTRIES = [(group, name) for group, name in OPTIONS if group in REGISTRIES]


def content(group: str, name: str) -> dict[str, Any]:
    tree: Any = OmegaConf.to_container(OmegaConf.load(paths.options(group)[name]), resolve=False)
    return tree


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("card", [RTX4090, CPU], ids=lambda card: card.name)
def test_a_recipe_plans(name: str, card: cards.Card) -> None:
    assert f"plan for {card.device_name}" in plan_of(f"recipe={name}", card=card).describe()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_header(name: str) -> None:
    lines = paths.options("recipe")[name].read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1].startswith("# ") and ":" not in lines[1][:10]
    fields = [line.removeprefix("# ").partition(":")[0] for line in lines[2:] if line.startswith("#")]
    assert {"command", "metric", "card"} <= set(fields)
    command = next(line for line in lines if line.startswith("# command:"))
    assert command.split("python -m trainer4090 ")[1].split()[0] == f"recipe={name}"


def test_the_default_recipe_is_the_defaults() -> None:
    ours, theirs = compose(["recipe=digits"]).tree, compose([]).tree
    assert (ours["run"].pop("name"), theirs["run"].pop("name")) == ("digits", "digits-cnn")
    assert ours == theirs


@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=lambda word: word)
def test_a_name_is_a_text(group: str, name: str) -> None:
    """`null`, `1` or `on` would reach Hydra as something else than a name."""
    assert yaml.safe_load(name) == name
    assert yaml.safe_load(f"[{name}, {name}]") == [name, name]


@pytest.mark.parametrize(("group", "name"), IN_REGISTRIES, ids=lambda word: word)
def test_a_file_lists_every_field(group: str, name: str) -> None:
    tree = content(group, name)
    if group in LIST_AXES:
        header = paths.options(group)[name].read_text(encoding="utf-8").splitlines()[0]
        entry = REGISTRIES[group].get(header.removeprefix(f"# @package {group}."))
    else:
        entry = REGISTRIES[group].get(tree.pop("name"))
    assert set(tree) == set(field_types(entry.config))
    if entry.name == name:  # a preset has values of its own
        config = entry.config()
        assert tree == {field: plain(getattr(config, field)) for field in tree}


@pytest.mark.parametrize("group", REGISTRIES)
def test_every_registered_option_has_a_file(group: str) -> None:
    assert set(REGISTRIES[group].names()) <= set(paths.options(group))


@pytest.mark.parametrize("name", [name for name in paths.options("card") if name != "auto"])
def test_a_card_is_complete(name: str) -> None:
    card = cards.load(paths.options("card")[name])
    assert card.name == name
    assert set(content("card", name)) == set(field_types(cards.Card))


@pytest.mark.parametrize(
    ("card", "expected"),
    [(CPU, "asked tf32, got float32"), (RTX4090, None)],
    ids=["cpu", "rtx4090"],
)
def test_a_plan_says_what_tf32_became(card: cards.Card, expected: str | None) -> None:
    described = plan_of("precision=tf32", card=card).describe()
    lines = [line for line in described.splitlines() if "notice" in line]
    if expected is None:
        assert not lines and "matrix products in tf32" in described
    else:
        assert len(lines) == 1 and "precision" in lines[0] and "tensor cores" in lines[0]
        assert "tf32" in lines[0] and "float32" in lines[0]

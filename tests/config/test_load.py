"""Files, `extends`, variants and the command line, merged; and what is told without imports."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.config import RecipeError, load_recipe

Write = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_mappings_merge_lists_are_replaced_and_a_new_target_replaces_the_node(write: Write) -> None:
    write("trainer.devices: [0, 1]\ntrainer.precision: 16", "base")
    path = write(
        """
        extends: base
        trainer: {devices: [2], precision: 32}
        model:
          net: {width: 5}
          optimizer: {_target_: torch.optim.Adam}
        """,
        basic=False,
    )
    run = load_recipe(path).resolve("default", 0)
    assert run["trainer"] == {"max_epochs": 3, "devices": [2], "precision": 32}
    assert run["model"]["net"] == {"_target_": "config_parts.linear", "width": 5}
    assert run["model"]["optimizer"] == {"_target_": "torch.optim.Adam"}


def test_a_target_written_again_does_not_inherit_arguments_either(write: Write) -> None:
    recipe = load_recipe(write(""), ["model.optimizer._target_=torch.optim.SGD"])
    assert recipe.resolve("default", 0)["model"]["optimizer"] == {"_target_": "torch.optim.SGD"}


def test_extends_takes_chains_lists_paths_and_names(write: Write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write("title: first\nminutes: 1\ndevice: gpu", "sub/first")
    write("extends: first\nminutes: 2\ndescription: second", "sub/second", basic=False)
    write("description: third", "third", basic=False)
    path = write("extends: [sub/second.yaml, third]\npaper: mine", basic=False)
    recipe = load_recipe(path)
    assert (recipe.title, recipe.minutes, recipe.device) == ("first", 2, "gpu")
    assert (recipe.description, recipe.paper, recipe.name) == ("third", "mine", "mine")


def test_a_recipe_may_extend_the_installed_one_of_its_own_name(write: Write) -> None:
    recipe = load_recipe(write("extends: quickstart\ntitle: Mine", "quickstart", basic=False))
    assert recipe.title == "Mine"
    assert len(recipe.variants) > 1


def test_a_circle_of_recipes_is_refused(write: Write, faults_of: Faults) -> None:
    write("extends: b", "a", basic=False)
    path = write("extends: a", "b", basic=False)
    faults = faults_of(load_recipe, path)
    assert "a.yaml:1: extends: must not come back to itself, got b -> a -> b." in faults[0]


def test_a_misspelt_recipe_under_extends_is_told_with_its_line(
    write: Write, faults_of: Faults
) -> None:
    write("", "resnet_base")
    path = write("title: x\nextends: resnet_bsae", basic=False)
    assert "mine.yaml:2: extends: " in faults_of(load_recipe, path)[0]
    assert "Did you mean 'resnet_base'?" in faults_of(load_recipe, path)[0]


VARIANTS = """
    variants:
      plain: {}
      none:
      wide: {model.net.width: 7, callbacks.extra: {_target_: config_parts.Callback}}
      bare: {~callbacks.margin: null}
      nested: {callbacks: {~margin: null, other: {_target_: config_parts.Foreign}}}
      both: {extends: [wide, bare], trainer: {max_epochs: 5}}
      changed: {extends: wide, callbacks.extra.every: 4}
"""


def test_variants_change_add_and_remove(write: Write) -> None:
    recipe = load_recipe(write(VARIANTS))
    runs = {name: recipe.resolve(name, 0) for name in recipe.variants}
    assert list(runs) == ["plain", "none", "wide", "bare", "nested", "both", "changed"]
    assert runs["plain"] == runs["none"]
    assert runs["wide"]["model"]["net"]["width"] == 7
    assert list(runs["wide"]["callbacks"]) == ["margin", "extra"]
    assert runs["bare"]["callbacks"] == {}
    assert list(runs["nested"]["callbacks"]) == ["other"]
    assert list(runs["both"]["callbacks"]) == ["extra"]
    assert runs["both"]["trainer"]["max_epochs"] == 5
    assert runs["changed"]["callbacks"]["extra"] == {
        "_target_": "config_parts.Callback",
        "every": 4,
    }


def test_a_variant_reached_on_two_ways_is_laid_once(write: Write) -> None:
    path = write(
        """
        variants:
          root: {model.net.width: 1}
          left: {extends: root, model.net.width: 2}
          right: {extends: root, trainer.max_epochs: 9}
          both: {extends: [left, right]}
        """
    )
    run = load_recipe(path).resolve("both", 0)
    assert (run["model"]["net"]["width"], run["trainer"]["max_epochs"]) == (2, 9)


def test_a_recipe_that_extends_changes_variants_of_the_other(write: Write) -> None:
    write(VARIANTS, "base")
    path = write(
        """
        extends: base
        ~variants.none: null
        ~callbacks.margin: null
        variants:
          wide: {model.net.width: 8}
          bare: {~trainer.max_epochs: null, callbacks.margin: {_target_: config_parts.Foreign}}
        """,
        basic=False,
    )
    recipe = load_recipe(path, ["~variants.nested", "~variants.both"])
    assert recipe.variants == ("plain", "wide", "bare", "changed")
    wide, bare = recipe.resolve("wide", 0), recipe.resolve("bare", 0)
    assert wide["model"]["net"]["width"] == 8
    assert list(wide["callbacks"]) == ["extra"]
    assert bare["trainer"] == {}
    assert bare["callbacks"] == {"margin": {"_target_": "config_parts.Foreign"}}


def test_the_command_line_comes_after_the_variant(write: Write) -> None:
    recipe = load_recipe(
        write(VARIANTS),
        ["model.net.width=9", "~callbacks.extra", "callbacks.margin.every=off", "seeds=1,3-4"],
    )
    wide = recipe.resolve("wide", 0)
    assert wide["model"]["net"]["width"] == 9
    assert wide["callbacks"]["margin"]["every"] == "off"
    assert "extra" not in wide["callbacks"]
    assert recipe.seeds == (1, 3, 4)


def test_a_word_below_a_node_of_some_variants_acts_on_those(write: Write) -> None:
    recipe = load_recipe(write(VARIANTS), ["callbacks.extra.every=6"])
    assert "extra" not in recipe.resolve("plain", 0)["callbacks"]
    assert recipe.resolve("wide", 0)["callbacks"]["extra"]["every"] == 6


def test_a_word_may_be_about_one_variant(write: Write) -> None:
    recipe = load_recipe(write(VARIANTS), ["variants.plain.model.net.width=2"])
    assert recipe.resolve("plain", 0)["model"]["net"]["width"] == 2
    assert recipe.resolve("none", 0)["model"]["net"]["width"] == 3
    added = load_recipe(write(VARIANTS), ["variants.new={model.net.width: 4}"])
    assert "new" in added.variants


def test_the_order_of_words_does_not_matter(write: Write) -> None:
    words = ["model.optimizer.lr=3", "model.optimizer._target_=torch.optim.Adam"]
    one, other = (load_recipe(write(""), order) for order in (words, words[::-1]))
    assert one.resolve("default", 0) == other.resolve("default", 0)
    assert one.resolve("default", 0)["model"]["optimizer"]["lr"] == 3


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("modle.net.width=3", "modle: is no key of a recipe.*Did you mean 'model'"),
        ("checkpoint.moniter=x", "checkpoint.moniter: is no key of checkpoint.*'monitor'"),
        ("callbacks.magrin.every=3", "must have a _target_, got only every.*'callbacks.margin'"),
        ("~callbacks.magrin", "no such key. Did you mean '~callbacks.margin'"),
        ("variants.wdie.model.net.width=3", "variants.wdie: must be one of plain.*'wide'"),
        ("~variants.wdie", "Did you mean 'wide'"),
        ("model._target_=tourch.nn.Linear", "must lie in one of.*'torch.nn.Linear'"),
        ("model._target_=elsewhere.Net", r"If it is yours, write packages: \[elsewhere\]"),
        ("model._target_=Net", "must be the dotted path of a class or function, got 'Net'"),
        ("model.optimizer._taget_=a.b", "is no key of a node.*Did you mean '_target_'"),
        ("model.optimizer._partial_=true", "A factory is made where one is declared"),
        ("callbacks.margin=null", "Remove it with ~callbacks.margin"),
        ("device=gpuu", "must be cpu or gpu, got 'gpuu'. Did you mean 'gpu'"),
        ("checkpoint={monitor: test/acc, mode: max}", "must not see test data, got 'test/acc'"),
        ("checkpoint.monitor=val/acc", "must say mode: min or mode: max for 'val/acc'"),
        ("checkpoint.test=best", "must name a monitor where test is best"),
        ("threads=0", "threads: must be a whole number of at least 1, got 0"),
        ("seeds=[]", "seeds: must name at least one seed"),
        ("seeds=-1", "seeds: must be a range such as 0-4"),
        ("seeds=3-1", "seeds: must ascend"),
        ("seeds=[1, 1]", "seeds: must name each seed once"),
        ("seed=0-3", "seed: must be one whole number.*Did you mean 'seeds'"),
        ("title=[x]", "title: must be text"),
        ("minutes=-1", "minutes: must be a number of at least 0"),
        ("wandb={mode: off}", "wandb.mode: must be auto or offline or.*got 'off'"),
        ("wandb={tags: x}", "wandb.tags: must be a list of names"),
        ("trainer=3", "trainer: must be a mapping of names to values, got 3"),
        ("model=3", "model: must be a node with a _target_, got 3"),
        ("~data", "data: must be a node with a _target_, got nothing"),
        ("extends=quickstart", "extends: must be written in a file"),
        ("variants=3", "variants: must be a mapping of names to changes, got 3"),
        ("variants.plain=3", "variants.plain: must be a mapping of changes, got 3"),
        ("nonsense", "must be key=value or ~key with a dotted key, got 'nonsense'"),
        ("~a=3", "must be key=value or ~key"),
        ("a..b=3", "must be key=value or ~key"),
        ("trainer.max_epochs=[1", "Quote the value, got '\\[1'"),
    ],
)
def test_a_slip_is_told_in_one_line_without_imports(
    write: Write, faults_of: Faults, word: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(write(VARIANTS), [word])
    assert [fault.file for fault in caught.value.faults] == ["command line"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variants: {a: {extends: bb}, bbb: {}}", "variants.a.extends: .*'bbb'"),
        ("variants: {a: {extends: [3]}}", "must be a name or a list of names, got"),
        ("variants: {a: {extends: b}, b: {extends: a}}", "must not come back to itself, got"),
        ("variants: {a: {modle.lr: 3}}", "variants.a.modle: is no key of a recipe.*'model'"),
        ("variants: {a: {seeds: 3}}", "variants.a.seeds: is not for a variant to set"),
        ("variants: {a/b: {}}", "must be letters, digits"),
        ("variants: {a: {~callbacks.magrin: null}}", "no such key.*'~callbacks.margin'"),
        ("variants: {a: {~callbacks.margin: 3}}", "must be null where a key is removed, got 3"),
        ("variants: {a: {model.net.width: 3, model: {net: {width: 4}}}}", "is given twice"),
        ("extends: [3]", "must be a name or a list of names"),
        ("claims: {c: {_target_: config_parts.Claim, arm: defualt}}", "claims.c.arm: must be a va"),
    ],
)
def test_a_slip_in_the_file_is_told_with_its_line(write: Write, text: str, message: str) -> None:
    path = write(text)
    number = len(path.read_text(encoding="utf-8").splitlines())
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(path)
    assert {fault.line for fault in caught.value.faults} == {number}


def test_faults_name_the_file_they_are_written_in_and_the_variants_concerned(
    write: Write, faults_of: Faults
) -> None:
    write("checkpoint: {mode: minn}", "base")
    path = write(
        """
        extends: base
        tittle: x
        variants:
          a: {}
          b: {nonfinite: stpo}
          c: {extends: b}
        """,
        basic=False,
    )
    faults = faults_of(load_recipe, path)
    assert len(faults) == 3
    assert any("base.yaml:11: checkpoint.mode: must be" in fault for fault in faults)
    assert any("mine.yaml:2: tittle: " in fault for fault in faults)
    assert any("mine.yaml:5: nonfinite: (variants b, c) must be" in fault for fault in faults)


def test_a_file_that_is_no_mapping_or_no_text_is_told(write: Write, faults_of: Faults) -> None:
    assert (
        "must be a mapping of keys to values" in faults_of(load_recipe, write("", basic=False))[0]
    )
    path = write("")
    path.write_bytes(b"\xff\xfe\x00a")
    assert "must be a readable text file" in faults_of(load_recipe, path)[0]


def test_defaults_of_a_recipe_that_says_little(write: Write) -> None:
    recipe = load_recipe(write(""))
    assert (recipe.title, recipe.paper, recipe.minutes) == ("mine", "", None)
    assert (recipe.variants, recipe.device, recipe.claims) == (("default",), "cpu", {})
    run = recipe.resolve("default", 1)
    assert (run["threads"], run["nonfinite"], run["seed"]) == (1, "stop", 1)


def test_a_run_s_own_recipe_can_be_run_again(write: Write, tmp_path: Path) -> None:
    from toolkit.config import to_yaml

    run = load_recipe(write(VARIANTS)).resolve("wide", 7)
    again = write("", "again")
    again.write_text(to_yaml(run), encoding="utf-8")
    recipe = load_recipe(again)
    assert recipe.seeds == (7,)
    assert recipe.resolve("default", 7) == run


def test_selected_variants_keep_the_recipe_s_order(write: Write, faults_of: Faults) -> None:
    recipe = load_recipe(write(VARIANTS))
    assert recipe.select(["wide", "plain"]) == ("plain", "wide")
    assert "Did you mean 'plain'?" in faults_of(recipe.select, ["plian"])[0]
    assert "got none" in faults_of(recipe.select, [])[0]

"""What the README says: its code runs, its commands parse, its recipes and numbers are there."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import callbacks
from tests.conftest import run_fit
from toolkit import config, evaluate, fit

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list[str]:
    return [body for name, body in BLOCKS if name == language]


def _commands(module: str) -> list[list[str]]:
    """The arguments of each ``... -m toolkit.<module> ...`` in a block of shell commands."""
    lines = "\n".join(_blocks("sh")).splitlines()
    parts = [line.split(f"-m toolkit.{module}", 1) for line in lines]
    return [shlex.split(part[1].split("#")[0]) for part in parts if len(part) == 2]


def _file(name: str) -> str:
    """The block that says in its first line which file it is."""
    found = [body for _, body in BLOCKS if body.startswith(f"# {name}\n")]
    assert len(found) == 1, name
    return found[0]


def _between(marker: str) -> str:
    _, text, _ = TEXT.split(f"<!-- {marker} -->")
    return text


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's package, as ``pip install`` would leave it, and its ``mine.yaml``."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("my_paper/losses.py", "my_paper/recipes/focal.yaml", "mine.yaml"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_file(name), encoding="utf-8")
    (folder / "my_paper" / "__init__.py").touch()
    points = re.search(r'entry-points\."([\w.]+)"\]\n(\w+) = "([\w.]+)"', _file("pyproject.toml"))
    assert points is not None
    info = folder / "my_paper-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-paper\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(*points.groups()))
    return folder


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package where Python finds it."""
    monkeypatch.setenv("PYTHONPATH", str(package))
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.chdir(package)
    config.find._folders.cache_clear()
    yield package
    config.find._folders.cache_clear()


def test_the_two_commands_are_there_word_for_word() -> None:
    first, second = _blocks("sh")[0].splitlines()
    assert first == "pip install -e . && python -m toolkit.fit quickstart"
    assert second == "pip install -e '.[test]' && pytest"


@pytest.mark.filterwarnings("ignore:Starting from v1.9.0")  # Lightning, of its default logger
@pytest.mark.filterwarnings("ignore:the selected share")  # of labels that are drawn at random
def test_every_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one place, since later blocks use the model and data of an earlier one."""
    monkeypatch.chdir(tmp_path)
    blocks = _blocks("python")
    assert len(blocks) >= 8
    names: dict[str, Any] = {"__name__": "readme"}
    torch.manual_seed(0)
    for block in blocks:
        line = TEXT[: TEXT.index(block)].count("\n")
        exec(compile("\n" * line + block, str(ROOT / "README.md"), "exec"), names)
    assert names["study"]["variants"]["sgd"]["n"] == 1
    assert len(names["useful"].upsampled.selected) > 0
    assert (tmp_path / "useful" / "useful.json").exists()
    assert isinstance(names["optimizer"].second_pass, type(lambda: None))


def test_callbacks_take_ten_lines() -> None:
    for name in callbacks.__all__:
        (block,) = [body for body in _blocks("python") if f"import {name}\n" in body]
        lines = [line for line in block.splitlines() if line and "import" not in line]
        assert len(lines) <= 10, name


def test_every_command_of_fit_is_one(installed: Path) -> None:
    commands = _commands("fit")
    assert len(commands) >= 12
    for arguments in commands:
        options = fit._parser().parse_intermixed_args(arguments)
        if options.recipe is not None:
            recipe = config.load_recipe(options.recipe, options.overrides)
            variants, seeds = fit._chosen(recipe, options)
            config.check(recipe, variants or None)
            assert recipe.resolve((variants or recipe.variants)[0], (seeds or (0,))[0])


def test_other_commands_are_ones() -> None:
    (report,) = _commands("report")
    assert report == ["runs"]  # one path, and no options
    for arguments in _commands("evaluate"):
        assert evaluate._parser().parse_args(arguments).run.parts[0] == "runs"
    names = set(re.findall(r"toolkit\.(\w+)", " ".join(_blocks("sh"))))
    assert names == {"fit", "report", "evaluate"}


def test_every_flag_that_the_text_names_exists() -> None:
    flags = set(re.findall(r"`(--[a-z-]+)", TEXT))
    known = {
        option
        for parser in (fit._parser(), evaluate._parser())
        for action in parser._actions
        for option in action.option_strings
    }
    assert flags - known == {"--ntasks-per-node"}  # SLURM's
    table = TEXT[TEXT.index("## Command line") : TEXT.index("## What a run leaves")]
    undocumented = {option for option in known if option not in table}
    assert undocumented == {"-h", "--help"}


def test_every_key_that_the_text_names_exists() -> None:
    """Overrides between backticks are understood by a recipe that they fit."""
    words = [word for word in re.findall(r"`([a-z_.]+=[^`]+)`", TEXT) if "." in word]
    assert len(words) >= 4
    for word in words:
        config.check(config.load_recipe("quickstart", [word]))


def test_every_recipe_is_in_the_table_and_every_name_is_a_recipe() -> None:
    shipped = {path.stem for path in (ROOT / "recipes").glob("*.yaml")}
    table = TEXT[TEXT.index("## Recipes") : TEXT.index("## Command line")]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(rows) >= shipped
    assert set(rows) <= set(config.list_recipes())


def test_the_table_holds_the_numbers_of_the_output() -> None:
    cells = _between("quickstart-results").split("|")
    n, means = cells[0].strip(), [cell.strip() for cell in cells[1:]]
    output = _between("quickstart-output")
    variants = config.load_recipe("quickstart").variants
    assert len(means) == len(variants)
    for variant, mean in zip(variants, means, strict=True):
        assert re.search(rf"^{variant} +{n} +{re.escape(mean)} % ", output, re.MULTILINE), variant


def test_recipes_of_one_s_own_are_faultless(installed: Path) -> None:
    mine = config.load_recipe("mine.yaml")
    config.check(mine)
    assert "bias" not in mine.resolve("sgd", 0)["callbacks"]
    assert mine.resolve("sgd_useful3", 0)["callbacks"]["useful"]["factor"] == 3
    assert config.list_recipes()["focal"] == installed / "my_paper" / "recipes" / "focal.yaml"


def test_a_package_of_one_s_own_trains_by_the_name_of_its_recipe(installed: Path) -> None:
    done = run_fit(
        ["focal", "trainer.max_epochs=1", "--seeds", "0", "wandb.mode=disabled"], installed
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "focal" in done.stdout
    assert (installed / "runs" / "focal" / "report.html").exists()


def test_the_example_of_a_paper_is_right(installed: Path) -> None:
    """``gamma=0`` is cross-entropy; at ``gamma=2`` an example at p = 1/2 has a quarter of it."""
    script = (
        "import torch; from my_paper.losses import Focal\n"
        "logits, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])\n"
        "plain = torch.nn.functional.cross_entropy(logits, targets, reduction='none')\n"
        "torch.testing.assert_close(Focal(0.0)(logits, targets), plain)\n"
        "even = Focal(2.0)(torch.zeros(1, 2), torch.tensor([0]))\n"
        "torch.testing.assert_close(even, torch.tensor([2.0]).log() / 4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=installed
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        assert (ROOT / target).is_file(), target
    assert (ROOT / "docs" / "report.png").stat().st_size < 300_000

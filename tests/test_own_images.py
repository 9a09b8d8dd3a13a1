"""A user's own folder of images, trained by a shipped recipe with a line of overrides."""

import json
import re
from pathlib import Path

import numpy as np
from PIL import Image

from tests.conftest import run_fit

README = Path(__file__).parents[1] / "README.md"


def _write_folder(root: Path) -> None:
    """Photographs of several sizes: of one class dark, of the other bright."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 6)):
        for name, level in (("night", 20), ("day", 150)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for k in range(count):
                shape = (40 + k % 3, 36 + k % 2, 3)
                pixels = draw.integers(level, level + 80, size=shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{k}.png")


def test_the_line_of_the_readme_trains_on_a_folder_of_images(tmp_path: Path) -> None:
    pattern = r"^python -m toolkit\.fit (.*name=ImageFolder.*)$"
    [line] = re.findall(pattern, README.read_text(encoding="utf-8"), re.MULTILINE)
    assert "data.root=photos " in line
    _write_folder(tmp_path / "photos")
    changed = line.split()
    short = ["trainer.max_epochs=2", "data.batch_size=16", "wandb.mode=disabled", "--jobs", "1"]
    arguments = [*changed, *short, "data.cache=null", "callbacks.useful.separation_epochs=1"]
    done = run_fit(arguments, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [study] = (tmp_path / "runs").glob("*/study.json")
    content = json.loads(study.read_text())
    finished = {name: of for name, of in content["variants"].items() if of["n"]}
    assert set(finished) == {"sgd", "sgd_useful"}
    for variant in finished.values():
        assert 0 <= variant["metrics"]["test/error"]["mean"] <= 1
    assert (study.parent / "report.html").exists()
    selection = json.loads((study.parent / "sgd_useful" / "seed0" / "useful.json").read_text())
    assert [row["class"] for row in selection["classes"]] == [0, 1]

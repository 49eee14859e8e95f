"""What is written down is true: docstrings, the README's lines, the tutorial, types and lint."""
import difflib
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT, SOURCE, WAIT_S

PACKAGE = ROOT / "client" / "python"


def run(*command, **more):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          timeout=8 * WAIT_S, **more)


def test_mypy_strict(tmp_path):
    done = run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, cwd=PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff():
    done = run(pathlib.Path(sys.executable).parent / "ruff", "check", "--no-cache", "src",
               "setup.py", "tutorial.py", "experiments", cwd=PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_docstrings():
    done = run(sys.executable, "-m", "pytest", "--doctest-modules", "-q", "-p",
               "no:cacheprovider", SOURCE / "fired", cwd=SOURCE,
               env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_tutorial(script):
    said = script((PACKAGE / "tutorial.py").read_text())
    assert "task 2:" in said and "refused: " in said and "2.weight" in said


PLAIN = '''
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters())
for task in range(2):
    x, y = torch.randn(32, 8), torch.randint(2, (32,))
    for step in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
'''


def test_three_lines(script):
    """The README's lines in a plain loop: it runs, and exactly three lines were added."""
    text = (PACKAGE / "README.md").read_text()
    lines = re.search(r"```python\n(.*?)```", text, re.S).group(1).splitlines()
    assert len(lines) == 3
    head, tail = PLAIN.split("for task")
    changed = "\n".join(lines[:2]) + head + "for task" + tail + "    " + lines[2] + "\n"
    added = [line for line in difflib.ndiff(PLAIN.split("\n"), changed.split("\n"))
             if line.startswith("+ ")]
    assert len(added) == 3
    check = "\nw = model[0].weight\nassert (w.T @ w / 2 - torch.eye(8)).abs().max() < 1e-4\n"
    script(changed + check)


@pytest.mark.parametrize("word", ["jax", "sb3", "transformers", "lightning", "Loop"])
def test_every_framework_has_its_lines(word):
    text = (PACKAGE / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 6
    assert all(len(block.splitlines()) == 3 for block in blocks)
    for block in blocks:
        compile(block, "README.md", "exec")
    assert word in text

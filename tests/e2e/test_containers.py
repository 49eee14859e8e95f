"""The container recipes cannot be built here; what they name can be looked at: every path they copy
exists, every package they ask for is one that install-deps knows, and what is installed to run is
what the programs link to."""

import pathlib
import re
import shutil
import subprocess

import pytest

from build import BUILD, sanitized

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = sorted(ROOT.glob("deploy/Containerfile*"))


def packages(name):
    text = (ROOT / "deploy" / "install-deps").read_text()
    body = re.search(rf"^{name}=\((.*?)^\)", text, re.M | re.S).group(1)
    return set(re.sub(r"#.*", "", body).split())


def instructions(recipe):
    text = re.sub(r"^#.*\n", "", recipe.read_text(), flags=re.M).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_what_a_recipe_copies_exists(recipe):
    copied = [words.split() for name, words in instructions(recipe)
              if name == "COPY" and not words.startswith("--from")]
    assert copied
    for *sources, _ in copied:
        for source in sources:
            assert (ROOT / source).exists(), source


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_what_a_recipe_installs_is_known(recipe):
    runs = [words for name, words in instructions(recipe) if name == "RUN"]
    known = packages("build_packages") | packages("run_packages") | packages("test_packages")
    for run in runs:
        for command in run.split("&&"):
            match = re.search(r"apt-get .*\binstall\b(.*)", command)
            for word in match.group(1).split() if match else []:
                assert word.startswith("-") or word in known, word
            if "install-deps" in command and "rm " not in command:
                options = command.split("install-deps", 1)[1].split()
                assert options
                help_text = subprocess.run([ROOT / "deploy" / "install-deps", "--help"], check=True,
                                           capture_output=True, text=True).stdout
                assert all(option in help_text for option in options), command


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_recipe_names_no_host_and_one_base(recipe):
    bases = {words for name, words in instructions(recipe) if name == "ARG"}
    assert len(bases) == 1
    for name, words in instructions(recipe):
        if name == "FROM":
            assert words.split()[0] == "${BASE}"
        if name == "ARG":
            assert "." not in words.split("=")[1].split("/")[0], "a registry's host"


def test_what_is_installed_to_run_is_what_programs_link_to():
    if shutil.which("dpkg-query") is None:
        pytest.skip("not a Debian system")
    if sanitized():
        pytest.skip("a sanitizer's build links to more")
    wanted = packages("run_packages") | {"libc6", "libgcc-s1", "libstdc++6"}
    files = [BUILD / "bin" / "fired", BUILD / "bin" / "firectl", BUILD / "lib" / "libfire.so"]
    for file in files:
        loaded = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        places = dict(re.findall(r"(\S+) => (\S+)", loaded))
        dynamic = subprocess.run(["readelf", "--dynamic", file], capture_output=True, text=True,
                                 check=True).stdout
        for library in re.findall(r"NEEDED.*\[(.*)\]", dynamic):
            if library.startswith(("libfire", "ld-linux", "libasan", "libubsan", "libtsan")):
                continue
            owner = owner_of(places[library])
            assert owner in wanted, f"{file.name} needs {library}, which {owner} has"


def owner_of(path):
    """The package of a library, whichever of /lib and /usr/lib dpkg knows it by."""
    real = pathlib.Path(path).resolve()
    candidates = {str(real), path, "/usr" + str(real), str(real).removeprefix("/usr")}
    for candidate in sorted(candidates):
        run = subprocess.run(["dpkg-query", "-S", candidate], capture_output=True, text=True)
        if run.returncode == 0:
            return run.stdout.split(":")[0]
    return f"no package ({real})"

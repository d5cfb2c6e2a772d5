"""Builds deep_gemm_jit: CMake compiles csrc/ into the extension module deep_gemm_jit._core.

What a reader can rely on:
- every build folder is keyed by the tools that made it, so builds with other tools never see its cache;
- headers come from the packages of [build-system] requires when Python can see them, else from the system;
- torch is never looked at.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD_BASE = ROOT / "build" / f"setuptools-{sys.implementation.cache_tag}"


def find_on_path(relative: str, marker: str) -> str | None:
    """The folder `relative` under the first entry of sys.path where it holds the file `marker`."""
    for entry in sys.path:
        folder = Path(entry or ".") / relative
        if (folder / marker).is_file():
            return str(folder.resolve())
    return None


def find_program(package: str, folder_attribute: str) -> str:
    """A build program from its PyPI package, else from PATH."""
    try:
        module = __import__(package)
        program = Path(getattr(module, folder_attribute)) / package
        if program.is_file():
            return str(program)
    except (ImportError, AttributeError):
        pass
    program = shutil.which(package)
    if program is None:
        raise SystemExit(f"setup.py: {package} was not found. Remedy: pip install {package}.")
    return program


def find_compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise SystemExit(f"setup.py: no C++ compiler found, tried {names}. Remedy: install g++ >= 12 or set CXX.")


def find_pybind11() -> str | None:
    try:
        import pybind11
    except ImportError:
        return None  # CMake then searches the system (pybind11-dev)
    return pybind11.get_cmake_dir()


def find_tools() -> dict[str, str | None]:
    compiler = find_compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise SystemExit(f"setup.py: {header} is missing. Remedy: install this Python's development headers "
                         f"(Debian: apt-get install python3-dev).")
    return {
        "python": sys.executable,
        "python_version": sys.version,
        "python_include": str(header.parent),
        "compiler": compiler,
        "compiler_version": version.splitlines()[0],
        "cmake": find_program("cmake", "CMAKE_BIN_DIR"),
        "ninja": find_program("ninja", "BIN_DIR"),
        "pybind11": find_pybind11(),
        "fmt": find_on_path("cmeel.prefix/include", "fmt/format.h"),
        "cuda": find_on_path("nvidia/cu13/include", "cuda.h"),
    }


def drop_dead_build_folders(keep: Path) -> None:
    """Isolated builds use tools in a folder that is gone afterwards; nobody can use what they built."""
    for record in (ROOT / "build").glob("cmake-*/tools.json"):
        if record.parent == keep:
            continue
        try:
            tools = json.loads(record.read_text())
        except ValueError:
            tools = {"cmake": ""}
        paths = [tools.get(name) for name in ("python", "cmake", "ninja", "pybind11", "fmt", "cuda")]
        if any(path is not None and not os.path.exists(path) for path in paths):
            shutil.rmtree(record.parent, ignore_errors=True)


class Build(build):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = str(BUILD_BASE)

    def run(self) -> None:
        # setuptools never removes from here what has been removed from the sources, and would ship it.
        library = Path(self.build_lib).resolve()
        if BUILD_BASE in library.parents:
            shutil.rmtree(library, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        tools = find_tools()
        record = json.dumps(tools, indent=1, sort_keys=True)
        key = hashlib.sha256(record.encode()).hexdigest()[:12]
        folder = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}-{key}"
        drop_dead_build_folders(keep=folder)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "tools.json").write_text(record)
            self.run_cmake(tools, folder)
            self.copy_module(folder, Path(self.get_ext_fullpath(ext.name)))

    def run_cmake(self, tools: dict[str, str | None], folder: Path) -> None:
        options = {
            "CMAKE_BUILD_TYPE": "Debug" if self.debug else "Release",
            "CMAKE_MAKE_PROGRAM": tools["ninja"],
            "CMAKE_CXX_COMPILER": tools["compiler"],
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(folder / "module"),
            "Python_EXECUTABLE": tools["python"],
            "Python_INCLUDE_DIR": tools["python_include"],
            "pybind11_DIR": tools["pybind11"],
            "DGJ_FMT_INCLUDE": tools["fmt"],
            "DGJ_CUDA_INCLUDE": tools["cuda"],
        }
        definitions = [f"-D{name}={value}" for name, value in options.items() if value is not None]
        cmake = tools["cmake"]
        subprocess.run([cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), *definitions], check=True)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
        subprocess.run([cmake, "--build", str(folder), "--parallel", jobs], check=True)

    def copy_module(self, folder: Path, target: Path) -> None:
        built = folder / "module" / target.name
        if not built.is_file():
            raise SystemExit(f"setup.py: the build did not make {built}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built, target)


setup(
    ext_modules=[Extension("deep_gemm_jit._core", sources=[])],
    cmdclass={"build": Build, "build_ext": CMakeBuild},
)

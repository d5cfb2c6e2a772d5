"""Builds the small C++ programs of tests/cpp with the plain compiler: they need neither torch nor a GPU."""

import concurrent.futures
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
FOLDERS = ("base", "compile", "cache")
FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-DFMT_HEADER_ONLY", f"-I{CSRC}"]


def fmt_include() -> str | None:
    """The headers of {fmt}: from the wheel that the build uses, else wherever the compiler finds them."""
    try:
        wheel = importlib.metadata.distribution("cmeel-fmt")
    except importlib.metadata.PackageNotFoundError:
        wheel = None
    places = [Path(sysconfig.get_path("purelib")) / "cmeel.prefix" / "include"]
    if wheel is not None:
        places.insert(0, Path(str(wheel.locate_file("cmeel.prefix/include"))))
    return next((str(place) for place in places if (place / "fmt" / "format.h").is_file()), None)


def build(
    name: str,
    folder: Path,
    extra_flags: tuple[str, ...] = (),
    more_folders: tuple[str, ...] = (),
    more_flags: tuple[str, ...] = (),
    more_sources: tuple[Path, ...] = (),
    only: tuple[str, ...] | None = None,
) -> Path:
    """The program tests/cpp/<name>.cpp; objects are kept in `folder` by the digest of what goes into them.

    `only`: these files of csrc instead of all of FOLDERS. `more_folders` of csrc, `more_sources` and the
    program itself are compiled with `more_flags` too.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    include = fmt_include()
    flags = [*FLAGS, *([f"-isystem{include}"] if include else []), *extra_flags]
    sources = [path for part in FOLDERS for path in sorted((CSRC / part).glob("*.cpp"))]
    if only is not None:
        sources = [CSRC / path for path in only]
    more = [path for part in more_folders for path in sorted((CSRC / part).glob("*.cpp"))]
    more += [*more_sources, ROOT / "tests" / "cpp" / f"{name}.cpp"]
    headers = [path for part in FOLDERS for path in sorted((CSRC / part).glob("*.hpp"))]
    more_headers = sorted((ROOT / "tests" / "cpp").glob("*.hpp"))
    more_headers += [path for part in more_folders for path in sorted((CSRC / part).glob("*.hpp"))]
    more_headers += sorted((ROOT / "kernels_src").glob("*/*.cuh")) if more_folders else []
    common = hashlib.sha256("\0".join([compiler, *flags]).encode())
    for header in headers:
        common.update(header.read_bytes())
    own = common.copy()
    own.update("\0".join(more_flags).encode())
    for header in more_headers:
        own.update(header.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> Path:
        is_more = source in more
        digest = (own if is_more else common).copy()
        digest.update(source.read_bytes())
        target = folder / f"{source.stem}.{digest.hexdigest()[:16]}.o"
        if not target.exists():
            temporary = target.with_suffix(f".{os.getpid()}.tmp")
            arguments = [*flags, *more_flags] if is_more else flags
            subprocess.run([compiler, *arguments, "-c", str(source), "-o", str(temporary)], check=True)
            temporary.rename(target)
        return target

    # Parallel test processes need the same objects: one of them compiles, the others wait for it.
    with open(folder / "lock", "w") as lock, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        objects = list(pool.map(compile_one, [*more, *sources]))
    names = hashlib.sha256("\0".join(str(path) for path in objects).encode()).hexdigest()[:16]
    program = folder / f"{name}.{names}"
    if not program.exists():
        temporary = program.with_suffix(f".{os.getpid()}.tmp")
        arguments = [*extra_flags, "-o", str(temporary), *map(str, objects), "-ldl", "-lpthread"]
        subprocess.run([compiler, *arguments], check=True)
        temporary.rename(program)
    return program


class Driver:
    """Runs one of the programs; the environment is exactly what the test gives."""

    def __init__(self, program: Path):
        self.program = program

    def command(self, *words: object, **options: object) -> list[str]:
        flags: list[str] = []
        for name, value in options.items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                flags += [f"--{name.replace('_', '-')}", str(one)]
        return [str(self.program), *flags, *map(str, words)]

    def start(self, *words: object, env: dict[str, str] | None = None, **options: object) -> subprocess.Popen:
        return subprocess.Popen(
            self.command(*words, **options),
            env=env or {},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def run(
        self,
        *words: object,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        **options: object,
    ) -> "Result":
        done = subprocess.run(
            [*prefix, *self.command(*words, **options)],
            env=env or {},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
        )
        return Result(done.returncode, done.stdout, done.stderr)


class Result:
    def __init__(self, code: int, out: str, err: str):
        self.code = code
        self.lines = [json.loads(line) for line in out.splitlines()]
        self.err = err
        self.warnings = [line[len("LOG 30 ") :] for line in err.splitlines() if line.startswith("LOG 30 ")]

    @property
    def only(self) -> dict:
        assert self.code == 0 and len(self.lines) == 1, (self.code, self.lines, self.err)
        return self.lines[0]


def finished(process: subprocess.Popen, timeout: float = 60) -> Result:
    out, err = process.communicate(timeout=timeout)
    return Result(process.returncode, out, err)

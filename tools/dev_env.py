"""Makes the virtual environment that the Makefile works in, and installs the package into it.

    dev_env.py [--venv .venv] [--python 3.12] [--torch 'torch==2.11.*'] [--requirements FILE] [--isolated]

Runs under any Python >= 3.8 with nothing installed. It does only what is needed: it makes the environment
anew when the interpreter or the requirements changed, and builds and installs again when a source changed.
The package is installed as a wheel, never editable, so that tests see what a user gets.
"""

import argparse
import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
SOURCES = ["setup.py", "pyproject.toml", "CMakeLists.txt", "MANIFEST.in", "LICENSE", "cmake",
           "tools/embed_kernels.py", "csrc", "kernels_src", "deep_gemm_jit"]
NOT_SOURCES = (".so", ".pyc")


def say(text):
    sys.stderr.write(f"dev_env: {text}\n")
    sys.stderr.flush()


def run(command):
    say(" ".join(map(str, command)))
    subprocess.run([str(part) for part in command], check=True)


def version_of(python):
    """(major, minor) of an interpreter, or None when it cannot run: pyenv's shims exist but may refuse."""
    probe = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", probe], capture_output=True, text=True, timeout=60)
        return tuple(map(int, answer.stdout.split())) if answer.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def candidates(wanted):
    """Interpreters to try for a version such as '3.12', best first."""
    on_path = shutil.which(f"python{wanted}")
    if on_path:
        yield on_path
    roots = [os.environ.get("PYENV_ROOT"), os.path.expanduser("~/.pyenv")]
    pyenv = shutil.which("pyenv")
    if pyenv:
        roots.append(str(Path(pyenv).resolve().parent.parent))
    for root in filter(None, roots):
        yield from sorted(glob.glob(f"{root}/versions/{wanted}*/bin/python"), reverse=True)


def find_python(wanted):
    if wanted and os.sep in wanted or wanted and shutil.which(wanted):
        return wanted
    for python in candidates(wanted or "3.12"):
        if version_of(python) == tuple(map(int, (wanted or "3.12").split("."))):
            return python
    if wanted:
        return None
    for python in ["python3", "python3.13", "python3.11", sys.executable]:
        version = version_of(python)
        if version and OLDEST <= version <= NEWEST:
            return python
    return None


def check_machine(python):
    """Says what is missing before anything is downloaded."""
    probe = "import sysconfig; print(sysconfig.get_path('include'))"
    include = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True).stdout.strip()
    missing = []
    if not Path(include, "Python.h").is_file():
        missing.append(f"{include}/Python.h (Debian: apt-get install python3-dev)")
    if not shutil.which(os.environ.get("CXX") or "g++"):
        missing.append("a C++20 compiler (Debian: apt-get install g++)")
    if missing:
        raise SystemExit("dev_env: missing: " + "; ".join(missing))


def digest_of(parts):
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def source_digest():
    parts = []
    for name in SOURCES:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and not file.name.endswith(NOT_SOURCES):
                parts += [file.relative_to(ROOT), file.read_bytes()]
    return digest_of(parts)


def read(path):
    return path.read_text() if path.is_file() else ""


def ensure_environment(venv, python, requirements):
    stamp = venv / "requirements.sha256"
    probe = [python, "-c", "import sys; print(sys.version)"]
    version = subprocess.run(probe, capture_output=True, text=True, check=True).stdout
    key = digest_of([version, *requirements])
    if read(stamp) == key:
        return
    shutil.rmtree(venv, ignore_errors=True)
    run([python, "-m", "venv", venv])
    run([venv / "bin/python", "-m", "pip", "install", "--quiet", *requirements])
    stamp.write_text(key)


def ensure_package(venv, isolated):
    stamp = venv / "package.sha256"
    key = source_digest()
    if read(stamp) == key:
        return
    stamp.unlink(missing_ok=True)
    wheels = ROOT / "build" / f"wheel-{venv.name}"
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [venv / "bin/python", "-m", "pip"]
    how = [] if isolated else ["--no-build-isolation"]
    run([*pip, "wheel", "--quiet", "--no-deps", *how, "--wheel-dir", wheels, ROOT])
    run([*pip, "install", "--quiet", "--no-deps", "--force-reinstall", *wheels.glob("*.whl")])
    stamp.write_text(key)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--python", default="", help="a version or a path; default: 3.12, else python3")
    parser.add_argument("--torch", default="torch==2.11.*")
    parser.add_argument("--requirements", type=Path, default=ROOT / "requirements-dev.txt")
    parser.add_argument("--isolated", action="store_true", help="build the wheel with build isolation")
    parser.add_argument("--find", action="store_true", help="print the interpreter and stop")
    options = parser.parse_args()
    python = find_python(options.python)
    if options.find:
        if python:
            print(python)
        return 0 if python else 1
    if python is None:
        wanted = options.python or f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise SystemExit(f"dev_env: no Python {wanted} with venv found; pass PYTHON=<path of one>")
    check_machine(python)
    venv = options.venv.resolve()
    requirements = [line.split("#")[0].strip() for line in options.requirements.read_text().splitlines()]
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / f"{venv.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ensure_environment(venv, python, [options.torch, *filter(None, requirements)])
        ensure_package(venv, options.isolated)
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        raise SystemExit(f"dev_env: failed with {error.returncode}: {command}") from None

"""Makes the environment in which the frameworks' own code runs, once for each list of packages.

A virtual environment that sees the packages of the one that runs this (torch, deep_gemm_jit), with a pinned
list installed without dependencies, and a folder with the frameworks' wheels, unpacked without their compiled
parts, which need other torch releases and a GPU.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WHEELS = ("vllm==0.33.0", "sglang==0.5.23", "transformers==5.24.0")
UNREACHABLE = re.compile(
    r"Failed to establish a new connection|Temporary failure in name resolution|Network is unreachable"
    r"|Connection refused|Read timed out|ConnectTimeout|Max retries exceeded|ProxyError"
)


class RegistryUnreachable(Exception):
    pass


def run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if UNREACHABLE.search(said):
        raise RegistryUnreachable(said[-2000:])
    raise RuntimeError(f"{command}\n{said[-8000:]}")


def key_of_this() -> str:
    digest = hashlib.sha256(repr((sys.version, sys.prefix, WHEELS)).encode())
    for path in (Path(__file__), HERE / "requirements.txt"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def make() -> tuple[Path, Path]:
    """Return the interpreter and the folder of the frameworks. Raises RegistryUnreachable."""
    base = Path(os.environ.get("DGJ_TEST_CACHE") or ROOT / "build")
    folder = base / f"frameworks-{key_of_this()}"
    python, sources = folder / "venv/bin/python", folder / "sources"
    if (folder / "complete").is_file():
        return python, sources
    for old in base.glob("frameworks-*"):
        shutil.rmtree(old, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    purelib = sysconfig.get_path("purelib")
    site = folder / "venv/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "zz_tested.pth").write_text(f"import site; site.addsitedir({purelib!r})\n")
    pip = (sys.executable, "-m", "pip")
    options = ("--no-deps", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
    run(*pip, "download", *options, "--dest", folder / "wheels", *WHEELS)
    for wheel in (folder / "wheels").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(sources, [n for n in archive.namelist() if not n.endswith(".so")])
    shutil.rmtree(folder / "wheels")
    # --target leaves the environment that runs this alone, and installs what that one has too.
    run(*pip, "install", *options, "--target", site, "--requirement", HERE / "requirements.txt")
    (folder / "complete").touch()
    return python, sources

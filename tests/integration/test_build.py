"""The package builds in every way that users build it, and links nothing of CUDA."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = "setup.py pyproject.toml CMakeLists.txt MANIFEST.in README.md LICENSE CHANGELOG.md ARCHITECTURE.md"
SOURCES = [*FILES.split(), "cmake", "tools", "csrc", "kernels_src", "deep_gemm_jit"]
USE = "from deep_gemm_jit import _core; assert 'parts/gemm_args.cuh' in _core.embedded_file_names()"
# What the module may need from the machine. Everything of CUDA is opened at run time, and torch never.
ALLOWED_LIBRARIES = re.compile(r"(libstdc\+\+|libgcc_s|libc|libm|libdl|libpthread|librt|ld-linux-[\w-]+)\.so")


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def pip(*arguments: object, python: object = sys.executable) -> str:
    return run(sys.executable, "-m", "pip", "--python", python, *arguments)


def copy_sources(target: Path) -> Path:
    target.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy2(ROOT / name, target / name)
    return target


def fresh_environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin/python"


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The source distribution, made without compiling anything."""
    folder = tmp_path_factory.mktemp("sdist")
    backend = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", backend, folder, cwd=copy_sources(folder / "sources"))
    return only(folder, "deep_gemm_jit-*.tar.gz")


@pytest.fixture(scope="module")
def tree(archive, tmp_path_factory) -> Path:
    """The unpacked distribution, in which the builds below follow each other as in a developer's clone."""
    folder = tmp_path_factory.mktemp("build")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return only(folder, "deep_gemm_jit-*")


@pytest.fixture(scope="module")
def wheels(tree, tmp_path_factory) -> tuple[Path, Path]:
    """Two isolated builds in a row, with other tools each; a source is removed between them."""
    folder = tmp_path_factory.mktemp("wheels")
    short_lived = tree / "deep_gemm_jit" / "short_lived.py"
    short_lived.write_text("VALUE = 1\n")
    first = wheel(tree, folder / "first")
    short_lived.unlink()
    return first, wheel(tree, folder / "second")


def wheel(source: Path, target: Path) -> Path:
    pip("wheel", "--no-deps", "--wheel-dir", target, source)
    return only(target, "deep_gemm_jit-*.whl")


@pytest.mark.long
def test_sdist_holds_no_built_file(archive):
    assert not [name for name in tarfile.open(archive).getnames() if name.endswith((".so", ".pyc", ".o"))]


@pytest.mark.long
def test_isolated_wheels_work_and_leave_out_what_was_removed_from_the_sources(wheels, tmp_path):
    for number, built in enumerate(wheels):
        python = fresh_environment(tmp_path / f"env{number}")
        pip("install", "--no-deps", built, python=python)
        run(python, "-c", USE, cwd=tmp_path)
    with_it, names = (zipfile.ZipFile(built).namelist() for built in wheels)
    assert "deep_gemm_jit/short_lived.py" in with_it
    assert "deep_gemm_jit/short_lived.py" not in names
    assert "deep_gemm_jit/py.typed" in names
    assert len([name for name in names if name.endswith(".so")]) == 1
    assert all(name.startswith("deep_gemm_jit") for name in names), names


@pytest.mark.long
def test_an_editable_installation_after_isolated_wheels(wheels, tree, tmp_path):
    python = fresh_environment(tmp_path / "env")
    tools = tomllib.loads((tree / "pyproject.toml").read_text())["build-system"]["requires"]
    pip("install", *tools, python=python)
    pip("install", "--no-deps", "--no-build-isolation", "--editable", tree, python=python)
    where = run(python, "-c", f"{USE}; print(_core.__file__)", cwd=tmp_path).strip()
    assert Path(where).parent == tree / "deep_gemm_jit"
    # The tools of the isolated builds are gone, so their folders must not be there any more.
    assert len(list((tree / "build").glob("cmake-*"))) == 1


def test_metadata_names_torch_without_pinning_it():
    from importlib.metadata import metadata

    found = metadata("deep_gemm_jit")
    assert found["Requires-Python"] == ">=3.11"
    runtime = [text for text in found.get_all("Requires-Dist") if "extra ==" not in text]
    assert [text.replace(" ", "") for text in runtime] == ["torch>=2.6"]


def test_module_needs_no_cuda_library_and_no_torch():
    from deep_gemm_jit import _core

    dynamic = run("readelf", "-d", _core.__file__)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert "libstdc++.so.6" in needed  # shared with torch: two copies would not agree on exceptions
    assert [name for name in needed if not ALLOWED_LIBRARIES.match(name)] == []
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)
    loaded = run("ldd", _core.__file__)
    assert not re.search(r"libcuda|libcudart|nvrtc|libtorch|not found", loaded), loaded


def test_module_exports_nothing_but_its_entry():
    from deep_gemm_jit import _core

    symbols = run("nm", "--dynamic", "--defined-only", _core.__file__)
    ours = [line.split()[-1] for line in symbols.splitlines() if "dgj" in line]
    assert "PyInit__core" in symbols
    assert ours == []


def test_embedded_files_are_the_sources_and_the_digest_is_theirs():
    import hashlib

    from deep_gemm_jit import _core

    digest = hashlib.sha256()
    names = _core.embedded_file_names()
    assert names == sorted(path.relative_to(ROOT / "kernels_src").as_posix()
                           for path in (ROOT / "kernels_src").rglob("*") if path.is_file())
    for name in names:
        data = (ROOT / "kernels_src" / name).read_bytes()
        assert _core.embedded_file(name).encode() == data
        for field in (name.encode(), data):
            digest.update(len(field).to_bytes(8, "little") + field)
    assert _core.embedded_digest() == digest.hexdigest()
    with pytest.raises(ValueError, match="no/such.cuh"):
        _core.embedded_file("no/such.cuh")


def test_the_wheel_is_for_this_python_only():
    from deep_gemm_jit import _core

    assert Path(_core.__file__).name == "_core" + sysconfig.get_config_var("EXT_SUFFIX")

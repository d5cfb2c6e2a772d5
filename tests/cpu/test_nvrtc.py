"""csrc/compile: where NVRTC is found, what it is told, what is accepted from it. No GPU, no torch import."""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from cpp.build import Driver, build

SITE = sysconfig.get_path("purelib")
KERNEL = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }\n'
TORCH_ROW = "NVRTC wheel that the installed torch requires"


@pytest.fixture(scope="session")
def driver(request):
    return Driver(build("nvrtc_driver", request.config.cache.mkdir("cpp")))


def wheel_library():
    """libnvrtc of the NVRTC wheel in this environment, and the wheel's version, by its metadata."""
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            wheel = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in wheel.files or []:
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                return Path(str(wheel.locate_file(file))).resolve(), wheel.version
    pytest.skip("no NVRTC wheel in this environment")


@pytest.fixture
def kernel_file(tmp_path):
    path = tmp_path / "twice.cu"
    path.write_text(KERNEL)
    return path


def fake_site(folder: Path, requires: str | None, layouts: dict[str, Path]) -> Path:
    """A site-packages folder: torch's metadata with one Requires-Dist line, links to real NVRTC wheels."""
    if requires is not None:
        info = folder / "torch-2.11.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.4\nName: torch\nRequires-Dist: filelock\n"
            f"{requires}\n\nRequires-Dist: nvidia-cuda-nvrtc==99.0 (this is only the description)\n"
        )
    for layout, library in layouts.items():
        target = folder / "nvidia" / layout / "lib"
        target.mkdir(parents=True)
        for file in library.parent.glob("libnvrtc*"):
            (target / file.name).symlink_to(file)
    return folder


# ---- the search --------------------------------------------------------------------------------


def test_finds_the_wheel_of_the_installed_torch(driver):
    library, version = wheel_library()
    found = driver.run("find", site=SITE).only
    assert Path(found["path"]).resolve() == library
    assert Path(found["builtins"]).parent == Path(found["path"]).parent
    assert found["found_by"] in (TORCH_ROW, "pip wheel nvidia-cuda-nvrtc")
    assert version.startswith(f"{found['major']}.{found['minor']}.")
    assert found["fingerprint"].endswith(f"-{library.stat().st_size}")
    assert found["opened"] == 0, "the identity must come from file headers: opening NVRTC costs 0.1 s"


def test_fingerprint_has_the_build_id(driver):
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf")
    found = driver.run("find", site=SITE).only
    notes = subprocess.run(
        [readelf, "-n", found["builtins"]], capture_output=True, text=True, check=True
    ).stdout
    build_id = re.search(r"Build ID: ([0-9a-f]+)", notes)
    assert build_id is not None
    assert found["fingerprint"].split("-")[2] == build_id.group(1)


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('Requires-Dist: nvidia-cuda-nvrtc-cu12==12.8.93; platform_system == "Linux"', 12),
        ("Requires-Dist: nvidia-cuda-nvrtc==13.0.88", 13),
        ("Requires-Dist: nvidia_cuda_nvrtc (==13.2.1)", 13),
        ('Requires-Dist: cuda-toolkit[cudart,nvrtc]==13.0.2; platform_system == "Linux"', 13),
        ("Requires-Dist: cuda-toolkit[nvrtc]==12.9.1", 12),
        ("Requires-Dist: cuda-toolkit[cudart]==13.0.2", 0),
        ("Requires-Dist: nvidia-cuda-runtime-cu12==12.8.90", 0),
        ('Requires-Dist: sympy; extra == "nvrtc"', 0),
    ],
)
def test_torch_metadata(driver, tmp_path, line, major):
    assert driver.run("torch-major", site=fake_site(tmp_path, line, {})).only["major"] == major


def test_choice_does_not_depend_on_what_is_loaded(driver, tmp_path):
    """A server that imported torch and a warm-up command that did not have to make the same keys."""
    library, _ = wheel_library()
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in library.parent.glob("libnvrtc*"):
        (copy / file.name).symlink_to(file) if "builtins" in file.name else shutil.copy(file, copy)
    site = fake_site(tmp_path / "site", "Requires-Dist: nvidia-cuda-nvrtc==13.0", {"cu13": library})
    alone = driver.run("find", site=site).only
    beside = driver.run("find", site=site, preload=copy / library.name).only
    assert alone["found_by"] == beside["found_by"] == TORCH_ROW
    assert alone["path"] == beside["path"]
    # Without such a torch the loaded one is taken, which also shows that the preload above did something.
    loaded = driver.run("find", preload=copy / library.name, env={"CUDA_HOME": "/nowhere"}).only
    assert loaded["found_by"] == "already loaded in this process"
    assert Path(loaded["path"]).parent == copy


def test_wheel_that_torch_wants_beats_a_newer_one(driver, tmp_path):
    library, version = wheel_library()
    major = int(version.split(".")[0])
    site = fake_site(
        tmp_path,
        f"Requires-Dist: cuda-toolkit[nvrtc]=={major}.0.0",
        {f"cu{major}": library, f"cu{major + 1}": library},
    )
    found = driver.run("find", site=site).only
    assert found["found_by"] == TORCH_ROW and f"/cu{major}/" in found["path"]


def test_both_wheel_layouts(driver, tmp_path):
    library, _ = wheel_library()
    for layout in ("cu13", "cuda_nvrtc"):
        site = fake_site(tmp_path / layout, None, {layout: library})
        found = driver.run("find", site=site).only
        assert f"/nvidia/{layout}/lib/" in found["path"]
        assert found["found_by"] == "pip wheel nvidia-cuda-nvrtc"


def test_variables_in_order(driver, tmp_path):
    library, _ = wheel_library()
    folders = {}
    for name, sub in {
        "DGJ_NVRTC": "",
        "CONDA_PREFIX": "lib",
        "CUDA_HOME": "lib64",
        "CUDA_PATH": "lib",
    }.items():
        folder = tmp_path / name / sub
        folder.mkdir(parents=True)
        for file in library.parent.glob("libnvrtc*"):
            (folder / file.name).symlink_to(file)
        folders[name] = tmp_path / name
    env = {name: str(path) for name, path in folders.items()}
    for name in folders:  # each one wins once those before it are gone
        assert driver.run("find", env=env).only["found_by"] == name
        del env[name]


def test_explicit_choice_never_falls_through(driver, tmp_path):
    text = tmp_path / "libnvrtc.so.13"
    text.write_text("not a library")
    for value in (text, tmp_path / "missing.so", tmp_path):
        answer = driver.run("find", site=SITE, env={"DGJ_NVRTC": str(value)}).only
        assert answer["error"] == "compile"
        assert "DGJ_NVRTC" in answer["message"] and str(value) in answer["message"]
    library, _ = wheel_library()
    assert driver.run("find", env={"DGJ_NVRTC": str(library)}).only["found_by"] == "DGJ_NVRTC"


def test_alternative_builds_are_ignored(driver, tmp_path):
    library, version = wheel_library()
    major, minor = version.split(".")[:2]
    (tmp_path / f"libnvrtc.alt.so.{major}").symlink_to(library)
    builtins = library.parent / f"libnvrtc-builtins.so.{major}.{minor}"
    (tmp_path / f"libnvrtc-builtins.alt.so.{major}.{minor}").symlink_to(builtins)
    assert driver.run("find", env={"DGJ_NVRTC": str(tmp_path)}).only["error"] == "compile"


def test_newer_than_the_driver_is_skipped(driver):
    found = driver.run("find", site=SITE).only
    same = driver.run("find", site=SITE, driver=1000 * found["major"]).only
    assert same["path"] == found["path"]
    older = driver.run("find", site=SITE, driver=1000 * (found["major"] - 1) + 80).only
    expected = f"{found['path']}: CUDA {found['major']} is newer than the driver's {found['major'] - 1}.8"
    assert older.get("path") != found["path"]
    if "message" in older:  # unless the machine has an older one as well
        assert expected in older["message"]


def test_libraries_without_builtins_are_no_candidates(driver, tmp_path):
    library, _ = wheel_library()
    shutil.copy(library, tmp_path)
    answer = driver.run("find", env={"DGJ_NVRTC": str(tmp_path)}).only
    assert "libnvrtc-builtins.so" in answer["message"] and "beside it" in answer["message"]


# ---- machines without a toolkit ----------------------------------------------------------------


@pytest.fixture
def without_toolkit(tmp_path):
    """A mount namespace where no toolkit is visible: neither in /usr/local nor through the loader's cache."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not create mount namespaces (unshare -m)")
    empty = tmp_path / "no-toolkit"
    empty.mkdir()
    hide = [
        f"mount --bind {empty} {path.resolve()}" for path in Path("/usr/local").glob("cuda*") if path.is_dir()
    ]
    hide.append("if [ -e /etc/ld.so.cache ]; then mount --bind /dev/null /etc/ld.so.cache; fi")
    script = "set -e; " + "; ".join(dict.fromkeys(hide)) + '; exec "$@"'
    return (unshare, "-m", "--propagation", "private", "sh", "-c", script, "sh")


def test_error_lists_every_place(driver, without_toolkit, tmp_path):
    env = {"CUDA_HOME": "/opt/old-cuda", "CONDA_PREFIX": str(tmp_path), "PATH": os.environ["PATH"]}
    answer = driver.run("find", site=tmp_path, driver=12080, env=env, prefix=without_toolkit).only
    assert answer["error"] == "compile"
    message = answer["message"]
    for part in (
        "Version 12.3 or newer",
        "the driver supports CUDA 12.8",
        "pip install nvidia-cuda-nvrtc",
        "DGJ_NVRTC: not set",
        TORCH_ROW,
        "already loaded in this process: none",
        "pip wheel nvidia-cuda-nvrtc: not installed",
        f"{tmp_path}/lib: No such file or directory",
        "/opt/old-cuda/lib64: No such file or directory",
        "CUDA_PATH: not set",
        "/usr/local/cuda",
        "dynamic loader",
    ):
        assert part in message, part
    assert "opened" not in answer


def test_wheel_compiles_where_no_toolkit_is(driver, without_toolkit, kernel_file, tmp_path):
    """libnvrtc of CUDA 13.0 has no run path: unless its builtins are opened first, the compile fails here."""
    wheel_library()
    env = {"PATH": os.environ["PATH"]}
    words = ("compile", kernel_file, "twice", "sm_90a", tmp_path / "out.cubin")
    answer = driver.run(*words, site=SITE, env=env, prefix=without_toolkit).only
    assert answer.get("bytes", 0) > 500, answer
    assert Path(answer["path"]).is_relative_to(SITE)


# ---- compiling ---------------------------------------------------------------------------------


def test_options(driver):
    options = driver.run("options", "sm_90a").only["options"]
    assert options[:2] == ["--gpu-architecture=sm_90a", "-std=c++20"]
    assert "--ptxas-options=-v" in options
    assert not any("default-device" in option or "no-cache" in option for option in options)


def test_compile_is_deterministic_and_reports(driver, kernel_file, tmp_path):
    out = tmp_path / "out.cubin"
    first = driver.run("compile", kernel_file, "twice", "sm_90a", out, site=SITE).only
    image = out.read_bytes()
    second = driver.run("compile", kernel_file, "twice", "sm_90a", out, site=SITE).only
    assert first["digest"] == second["digest"] == hashlib.sha256(image).hexdigest()
    assert image[:4] == b"\x7fELF" and int.from_bytes(image[18:20], "little") == 190
    assert "ptxas info" in first["log"] and "\0" not in first["log"]
    assert first["registers"] > 0


def test_every_truncation_of_a_real_image_is_refused(driver, kernel_file, tmp_path):
    out = tmp_path / "out.cubin"
    driver.run("compile", kernel_file, "twice", "sm_90a", out, site=SITE).only  # noqa: B018
    assert driver.run("image", out, "twice").only["problem"] == ""
    assert "does not define the kernel thrice" in driver.run("image", out, "thrice").only["problem"]
    assert driver.run("truncate", out, "twice").only["accepted"] == 0
    out.write_bytes(Path(sys.executable).resolve().read_bytes()[:100_000])
    assert "not 190 (CUDA)" in driver.run("image", out, "twice").only["problem"]
    out.write_bytes(b"")
    assert driver.run("image", out, "twice").only["problem"] == "it is empty"


def test_headers_come_from_the_call_only(driver, tmp_path):
    """A header that lies beside the process must not be read: it would not be in the cache key."""
    source = tmp_path / "k.cu"
    source.write_text('#include "parts/value.cuh"\nextern "C" __global__ void k(int* x) { *x = kValue; }\n')
    given = driver.run(
        "compile", source, "k", "sm_90a", "", site=SITE, header="parts/value.cuh=#define kValue 3\n"
    )
    assert given.only["bytes"] > 0
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "value.cuh").write_text("#define kValue 4\n")
    outside = subprocess.run(
        driver.command("compile", source, "k", "sm_90a", "", site=SITE, failed=tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert '"error": "compile"' in outside.stdout and "parts/value.cuh" in outside.stdout


def test_error_has_all_one_needs(driver, tmp_path):
    source = tmp_path / "bad.cu"
    source.write_text('extern "C" __global__ void bad() { this_is_not_declared(); }\n')
    failed = tmp_path / "failed"
    words = ("compile", source, "bad", "sm_90a", "")
    answer = driver.run(*words, site=SITE, failed=failed).only
    assert answer["error"] == "compile"
    for part in ("this_is_not_declared", "sm_90a", "--gpu-architecture=sm_90a -std=c++20", "bad"):
        assert part in answer["message"], part
    saved = list(failed.iterdir())
    assert len(saved) == 1 and str(saved[0]) in answer["message"]
    assert saved[0].read_text() == source.read_text()
    assert failed.stat().st_mode & 0o777 == 0o700

    chosen = tmp_path / "chosen"
    answer = driver.run(*words, site=SITE, failed=failed, env={"DGJ_SAVE_SOURCE": str(chosen)}).only
    assert str(chosen) in answer["message"] and len(list(chosen.iterdir())) == 1

    private = driver.run(*words, site=SITE, env={"TMPDIR": str(tmp_path)}).only["message"]
    folder = Path(re.search(r"was saved as (\S+)", private).group(1)).parent
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700


def test_save_source_keeps_every_compiled_source(driver, kernel_file, tmp_path):
    env = {"DGJ_SAVE_SOURCE": str(tmp_path / "sources")}
    words = ("compile", kernel_file, "twice", "sm_90a", "")
    driver.run(*words, site=SITE, header="unused.cuh=// a header\n", env=env).only  # noqa: B018
    (saved,) = (tmp_path / "sources").iterdir()
    assert saved.read_text().startswith(KERNEL)
    assert 'header "unused.cuh"' in saved.read_text() and saved.name.startswith("twice.sm_90a.")


def test_a_folder_for_sources_that_cannot_be_written_is_named_in_the_error(driver, tmp_path):
    source = tmp_path / "bad.cu"
    source.write_text('extern "C" __global__ void bad() { this_is_not_declared(); }\n')
    blocked = source / "below a file"
    message = driver.run(
        "compile", source, "bad", "sm_90a", "", site=SITE, failed=tmp_path / "failed",
        env={"DGJ_SAVE_SOURCE": str(blocked)},
    ).only["message"]  # fmt: skip
    assert f"DGJ_SAVE_SOURCE is '{blocked}', where no file can be written" in message
    assert f"was saved as {tmp_path / 'failed'}" in message


def test_forked_child_compiles(driver, kernel_file):
    result = driver.run("fork", kernel_file, "twice", "sm_90a", site=SITE)
    assert result.code == 0 and len(result.lines) == 2
    assert result.lines[0]["digest"] == result.lines[1]["digest"]


def test_unknown_architecture(driver, kernel_file):
    answer = driver.run(
        "compile", kernel_file, "twice", "sm_3", "", site=SITE, failed=kernel_file.parent
    ).only
    assert answer["error"] == "compile" and "sm_3" in answer["message"]


def test_log_parser(driver, tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n"
        "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
        "ptxas info    : Function properties for a\n"
        "ptxas         .     48 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 5 barriers, 48 bytes cumulative stack size\n"
        "ptxas info    : Function properties for helper\n"
        "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 24 registers\n"
        'k.cu(3): warning #177-D: variable "ABC7510" was declared\n'
        "ptxas info    : (C7510) wgmma serialized"
    )
    report = driver.run("log", log).only
    assert report["registers"] == 168
    assert (report["stack_bytes"], report["spill_stores"], report["spill_loads"]) == (56, 20, 20)
    assert [re.search(r"\((C\d+)\)", line).group(1) for line in report["advisories"]] == ["C7508", "C7510"]

"""P11, P12, P16, P17, P25: disks that fail, folders of others, seeds, versions, switches."""

import json
import os
import pwd
import resource
import signal
import subprocess
from pathlib import Path

import pytest
from cpp.cache import (
    NOBODY,
    compiles,
    damage_bit,
    entries,
    make_old,
    reach,
    read_only,
    snapshot,
    unfinished,
)

ERRORS = ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO", "EXDEV", "ENAMETOOLONG", "EMFILE"]


@pytest.mark.parametrize("errno_name", ERRORS)
@pytest.mark.parametrize(
    "step", ["open", "write", "fsync", "close", "rename", "mkdir", "lstat", "fstat", "read"]
)
def test_p11_any_error_at_any_call(driver, root, env, step, errno_name):
    result = driver.run("keys", 3, env=env, fault=f"{step}:1+:{errno_name}", lock_wait=60_000)
    assert [(line["origin"], line["right_bytes"]) for line in result.lines] == [("compiled", 1)] * 3
    others = [line for line in result.warnings if not line.startswith("compiled plan")]
    assert len(others) <= 2, others
    if step in ("write", "fsync", "close", "rename", "mkdir"):
        assert len(others) == 1 and str(root) in others[0]
        assert entries(root) == [] and unfinished(root) == []


def test_p11_full_disk(driver, root, env):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # a short write, then EFBIG

    done = subprocess.run(
        driver.command("get-twice"), env=env, capture_output=True, text=True, preexec_fn=limit
    )
    assert [json.loads(line)["origin"] for line in done.stdout.splitlines()] == ["compiled", "memory"]
    assert "memory only" in done.stderr and str(root) in done.stderr
    assert entries(root) == [] and unfinished(root) == []


def test_p11_read_only_for_this_user(driver, tmp_path):
    """As another user: to root a folder of mode 0500 is writable."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    home.chmod(0o500)
    reach(tmp_path)
    result = driver.run("get-twice", env={"HOME": str(home)}, setuid=NOBODY)
    assert [line["origin"] for line in result.lines] == ["compiled", "memory"]
    assert sum("memory only" in line and str(home) in line for line in result.warnings) == 1
    home.chmod(0o700)
    assert driver.run("get", env={"HOME": str(home)}, setuid=NOBODY).only["origin"] == "compiled"
    assert driver.run("get", env={"HOME": str(home)}, setuid=NOBODY).only["origin"] == "disk"


def fill(driver, root, env):
    """A filled cache whose entries are due for a new stamp."""
    driver.run("keys", 3, env=env)
    for path in entries(root):
        make_old(path, 5)


def check_silent_hits(result):
    assert [(line["origin"], line["right_bytes"]) for line in result.lines] == [("disk", 1)] * 3
    assert result.warnings == [] and not any("lock" in line["calls"] for line in result.lines)


def test_p16_hits_on_a_read_only_mount(driver, root, env):
    fill(driver, root, env)
    prefix = read_only(root)
    before = snapshot(root)
    env = {**env, "PATH": os.environ["PATH"]}
    check_silent_hits(driver.run("keys", 3, env=env, prefix=prefix))
    assert snapshot(root) == before
    result = driver.run("get-twice", env=env, prefix=prefix, text="new")
    assert [line["origin"] for line in result.lines] == ["compiled", "memory"]
    assert sum("memory only" in line and str(root) in line for line in result.warnings) == 1


def test_p16_hits_for_a_user_who_may_only_read(driver, root, env):
    """The twin of the mount: an image that root baked, used by another user, or folders without w bits."""
    fill(driver, root, env)
    by_root = os.geteuid() == 0
    for path in [root, *root.rglob("*")]:
        path.chmod((0o755 if by_root else 0o500) if path.is_dir() else (0o644 if by_root else 0o400))
    reach(root.parent)
    before = snapshot(root)
    options = {"setuid": NOBODY} if by_root else {}
    try:
        check_silent_hits(driver.run("keys", 3, env=env, **options))
        result = driver.run("get-twice", env=env, text="new", **options)
        after = snapshot(root)
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
    assert [line["origin"] for line in result.lines] == ["compiled", "memory"]
    assert sum("memory only" in line and str(root) in line for line in result.warnings) == 1
    if by_root:  # otherwise a hit may renew the stamp of a file that is ours
        assert after == before


def test_p11_no_more_file_descriptors(driver, root, env):
    result = driver.run("get-twice", env=env, file_descriptors=3)
    assert [line["origin"] for line in result.lines] == ["compiled", "memory"]
    assert sum("Too many open files" in line and "memory only" in line for line in result.warnings) == 1


def test_p11_without_home_the_password_file_says_where(driver, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("becoming a user with a known home needs root")
    home = pwd.getpwuid(NOBODY).pw_dir
    assert not Path(home).exists()
    result = driver.run("get", env={}, setuid=NOBODY)
    assert result.only["origin"] == "compiled"
    assert sum(home in line and "no disk cache" in line for line in result.warnings) == 1
    assert not Path(home).exists()


@pytest.mark.parametrize("home", ["/nonexistent/home", "/dev/null", "other-user"])
def test_p11_no_usable_home(driver, tmp_path, home):
    result = driver.run("get", env={"HOME": str(tmp_path) if home == "other-user" else home}, euid=4242)
    assert result.only["origin"] == "compiled"
    assert sum("no disk cache" in line and "DGJ_CACHE_DIR" in line for line in result.warnings) == 1
    assert not Path("/nonexistent").exists() and list(tmp_path.iterdir()) == []


def test_p12_created_private_whatever_the_umask(driver, root, env):
    previous = os.umask(0)
    try:
        driver.run("get", env=env)
    finally:
        os.umask(previous)
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(("mode", "used"), [(0o777, False), (0o770, False), (0o755, True), (0o2700, True)])
def test_p12_modes_of_an_existing_root(driver, root, env, mode, used):
    root.mkdir()
    root.chmod(mode)
    result = driver.run("get", env=env)
    assert result.only["right_bytes"] == 1
    assert bool(entries(root)) == used
    assert any(str(root) in line and "mode" in line for line in result.warnings) != used


def test_p12_folders_in_the_root_that_others_may_write(driver, root, env):
    driver.run("get", env=env)
    (root / "v1" / "tmp").chmod(0o777)
    result = driver.run("get", env=env, text="new")
    assert result.only["origin"] == "compiled" and len(entries(root)) == 1
    assert sum(str(root / "v1" / "tmp") in line and "memory only" in line for line in result.warnings) == 1
    (root / "v1").chmod(0o777)
    result = driver.run("get", env=env)
    assert result.only["origin"] == "compiled" and len(entries(root)) == 1
    assert sum(str(root / "v1") in line and "not used" in line for line in result.warnings) == 1


def test_p12_no_lock_is_made_through_a_link(driver, root, env, tmp_path):
    driver.run("get", env=env)
    (root / "v1" / "lock").unlink()
    (root / "v1" / "lock").symlink_to(tmp_path / "elsewhere")
    assert driver.run("get", env=env, text="new").only["origin"] == "compiled"
    assert not (tmp_path / "elsewhere").exists() and len(entries(root)) == 2


def test_p12_symbolic_link_is_refused(driver, root, env, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    root.symlink_to(tmp_path / "real")
    result = driver.run("get", env=env)
    assert result.only["right_bytes"] == 1 and any("symbolic link" in line for line in result.warnings)
    assert list((tmp_path / "real").iterdir()) == []


def test_p12_root_or_entry_of_another_user(driver, root, env):
    driver.run("get", env=env)
    stranger = driver.run("get", env=env, euid=4242)
    if os.geteuid() == 0:  # root's folders are readable for all as seeds
        assert stranger.only["origin"] == "disk" and stranger.warnings == []
        os.chown(entries(root)[0], NOBODY, NOBODY)
        result = driver.run("get", env=env)
        assert result.only["origin"] == "compiled" and any("another user" in line for line in result.warnings)
        os.chown(root, NOBODY, NOBODY)
        refused = driver.run("get", env=env)
        assert refused.only["origin"] == "compiled" and any(
            "belongs to user" in line for line in refused.warnings
        )
    else:
        assert stranger.only["origin"] == "compiled"


@pytest.mark.parametrize("fault", ["owner", "mode", "entry"])
def test_p12_seeds_that_another_user_may_have_written(driver, root, tmp_path, fault):
    seed = tmp_path / "seed"
    driver.run("get", env={"DGJ_CACHE_DIR": str(seed)})
    if fault == "mode":
        seed.chmod(0o777)
    elif os.geteuid() != 0:
        pytest.skip("giving a file to another user needs root")
    else:
        os.chown(seed if fault == "owner" else entries(seed)[0], NOBODY, NOBODY)
    result = driver.run("get", env={"DGJ_CACHE_DIR": f"{root}:{seed}"})
    assert result.only["origin"] == "compiled"
    assert sum(str(seed) in line and "not used" in line for line in result.warnings) == 1


def test_p12_folders_of_frameworks_may_be_wide(driver, tmp_path):
    """DG_JIT_CACHE_DIR exists with mode 0777 and has locks of others in it: ours is a folder of its own."""
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    (wide / "x.lock").write_text("")
    env = {"DG_JIT_CACHE_DIR": str(wide)}
    assert driver.run("get", env=env).only["origin"] == "compiled"
    assert driver.run("get", env=env).only["origin"] == "disk"
    assert (wide / "deep_gemm_jit").stat().st_mode & 0o7777 == 0o700
    assert sorted(path.name for path in wide.iterdir()) == ["deep_gemm_jit", "x.lock"]


def test_p12_entry_that_others_may_write(driver, root, env):
    driver.run("get", env=env)
    entries(root)[0].chmod(0o666)
    assert driver.run("get", env=env).only["origin"] == "compiled"


def test_order_of_the_places(driver, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {
        "DGJ_CACHE_DIR": str(tmp_path / "own"),
        "DG_JIT_CACHE_DIR": str(tmp_path / "deep_gemm"),
        "XDG_CACHE_HOME": str(tmp_path / "xdg"),
        "HOME": str(home),
    }
    expected = ["own", "deep_gemm/deep_gemm_jit", "xdg/deep_gemm_jit", "home/.cache/deep_gemm_jit"]
    for name, place in zip(list(env), expected, strict=True):
        assert driver.run("root", env=env).only["root"] == str(tmp_path / place)
        del env[name]
    assert (
        driver.run("root", env={"XDG_CACHE_HOME": "relative", "HOME": str(home)})
        .only["root"]
        .startswith(str(home))
    )


def test_nothing_is_made_before_something_is_written(driver, root, env):
    assert driver.run("root", env=env).only["root"] == str(root)
    assert driver.run("find", env=env).only["origin"] == "none"
    assert driver.run("get", env={**env, "DGJ_JIT": "forbid"}).only["error"] == "jit_forbidden"
    assert not root.exists()


def test_p16_seeds_are_read_and_never_written(driver, root, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    driver.run("get", env={"DGJ_CACHE_DIR": str(first)}, text="a")
    driver.run("get", env={"DGJ_CACHE_DIR": str(second)}, text="b")
    for path in entries(first) + entries(second):
        make_old(path, 5)
    before = snapshot(first, second)
    env = {"DGJ_CACHE_DIR": f"{root}:{first}:{second}"}
    for text in ("a", "b"):
        result = driver.run("get", env=env, text=text)
        assert result.only["origin"] == "disk" and result.warnings == []
    assert not root.exists(), "a hit writes nowhere"
    assert driver.run("get", env=env, text="new").only["origin"] == "compiled"
    assert len(entries(root)) == 1 and snapshot(first, second) == before
    damage_bit(entries(first)[0])
    before = snapshot(first, second)
    assert driver.run("get", env=env, text="a").only["origin"] == "compiled"
    assert snapshot(first, second) == before, "a damaged seed is not ours to remove"


def test_p16_a_seed_stands_in_for_a_damaged_entry_which_goes_and_is_reported(driver, root, env, tmp_path):
    seed = tmp_path / "seed"
    driver.run("get", env={"DGJ_CACHE_DIR": str(seed)})
    driver.run("get", env=env)
    (own,) = entries(root)
    damage_bit(own)
    result = driver.run("get", env={"DGJ_CACHE_DIR": f"{root}:{seed}"})
    assert (result.only["origin"], result.only["right_bytes"]) == ("disk", 1)
    assert len(result.warnings) == 1 and str(own) in result.warnings[0]
    assert not own.exists()


def test_p1_seeds_serve_another_nvrtc(driver, root, tmp_path):
    seed = tmp_path / "seed"
    driver.run("get", env={"DGJ_CACHE_DIR": str(seed)})
    env = {"DGJ_CACHE_DIR": f"{root}:{seed}"}
    for fingerprint in ("nvrtc-12.9-zzz-2", "none"):
        result = driver.run("get", env=env, fingerprint=fingerprint)
        assert (result.only["origin"], result.only["right_bytes"]) == ("disk", 1)
        assert sum("another NVRTC" in line for line in result.warnings) == 1
    assert (
        driver.run("get", env={"DGJ_CACHE_DIR": str(seed)}, fingerprint="other").only["origin"] == "compiled"
    )
    lines = driver.run("drop", env=env).lines
    assert [line["origin"] for line in lines] == ["disk", "compiled"], "a refused seed is not asked again"


def test_p17_other_versions_miss_and_downgrades_hit(driver, env):
    for package, fingerprint in (("0.1.0", "a"), ("0.2.0", "a"), ("0.2.0", "b")):
        assert (
            driver.run("get", env=env, package=package, fingerprint=fingerprint).only["origin"] == "compiled"
        )
    assert driver.run("get", env=env, package="0.1.0", fingerprint="a").only["origin"] == "disk"


def test_p25_disk_cache_off(driver, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)  # an empty name must not become the current folder
    result = driver.run("get-twice", env={"DGJ_CACHE_DIR": "", "HOME": str(home)})
    assert [line["origin"] for line in result.lines] == ["compiled", "memory"]
    assert list(home.iterdir()) == [] and len(result.warnings) == 1


@pytest.mark.parametrize("name", ["DGJ_CACHE_DIR", "DG_JIT_CACHE_DIR"])
def test_a_tilde_in_a_list_of_folders_is_the_home_folder(driver, tmp_path, monkeypatch, name):
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    env = {name: "~/cache", "HOME": str(home)}
    assert driver.run("get", env=env).only["origin"] == "compiled"
    assert driver.run("get", env=env | {name: f"{tmp_path / 'other'}:~/cache"}).only["origin"] == "disk"
    own = home / "cache" if name == "DGJ_CACHE_DIR" else home / "cache" / "deep_gemm_jit"
    assert list(own.glob("v1/*/*.dgk")) and list(here.iterdir()) == []
    env = {name: "~nobody/cache", "HOME": str(home)}  # another user's: a name as any other
    driver.run("get", env=env, text="new")
    assert [path.name for path in here.iterdir()] == ["~nobody"]


def test_p25_read_only_mode(driver, tmp_path, monkeypatch):
    """An empty first folder: seeds are read, nothing is written anywhere."""
    seed, home = tmp_path / "seed", tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    driver.run("get", env={"DGJ_CACHE_DIR": str(seed)})
    before = snapshot(tmp_path)
    env = {"DGJ_CACHE_DIR": f":{seed}", "HOME": str(home)}
    assert driver.run("get", env=env).only["origin"] == "disk"
    result = driver.run("get-twice", env=env, text="new")
    assert [line["origin"] for line in result.lines] == ["compiled", "memory"]
    assert len(result.warnings) == 1 and result.warnings[0].startswith("compiled plan")
    assert snapshot(tmp_path) == before


def test_p25_compiling_forbidden(driver, env, marker):
    forbid = {**env, "DGJ_JIT": "forbid"}
    answer = driver.run("get", env=forbid, marker=marker).only
    assert answer["error"] == "jit_forbidden" and compiles(marker) == 0
    for part in ("plan of kernel text", "python -m deep_gemm_jit warmup", "sm_90a", key_of(driver)):
        assert part in answer["message"]
    driver.run("get", env=env)
    assert driver.run("get", env=forbid).only["origin"] == "disk"
    other = driver.run("get", env=forbid, fingerprint="nvrtc-12.8-x-1")
    assert other.only["origin"] == "disk", "forbidden: the same kernel from another NVRTC is better than none"
    assert driver.run("get", env={**env, "DGJ_JIT": "forbidden"}).only["error"] == "value"


def key_of(driver):
    return driver.run("key").only["key"]


def test_no_nvrtc_is_reported_as_such(driver, env):
    answer = driver.run("get", env=env, fingerprint="none").only
    assert answer["error"] == "compile" and "there is no NVRTC" in answer["message"]
    driver.run("get", env=env)  # in the writable root only the exact compiler counts
    assert driver.run("get", env=env, fingerprint="none").only["error"] == "compile"

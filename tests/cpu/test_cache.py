"""The promises of docs/cache.md that the first form of the cache keeps, each by its number there.

The C++ cache runs in small processes of its own with a compiler that only counts, so hundreds of crashes
are cheap.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from cpp.build import Driver, build, finished

NOBODY = 65534
FINGERPRINT = "nvrtc-13.0-abc-1"


@pytest.fixture(scope="session")
def driver(request):
    return Driver(build("cache_driver", request.config.cache.mkdir("cpp")))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def env(root):
    return {"DGJ_CACHE_DIR": str(root)}


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "compiled"


def entries(root):
    return sorted(root.glob("v1/??/*.dgk"))


def compiles(marker):
    return len(marker.read_text().splitlines()) if marker.exists() else 0


def wait_for_line(process):
    return json.loads(process.stdout.readline())


# ---- P1, P2: the key ---------------------------------------------------------------------------


def field(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def expected_key(text, entry, headers, options, arch, fingerprint, package):
    """The grammar of csrc/cache/key.hpp, written a second time."""
    data = field("deep_gemm_jit kernel") + field("1") + field(package) + field(text) + field(entry)
    data += struct.pack("<Q", len(headers)) + b"".join(field(name) + field(body) for name, body in headers)
    data += struct.pack("<Q", len(options)) + b"".join(map(field, options)) + field(arch)
    first = hashlib.sha256(data).digest()[:16]
    return (first + hashlib.sha256(data + field(fingerprint)).digest()[:16]).hex()


BASE = dict(
    text="source",
    entry="kernel",
    header=["a.cuh=one", "b.cuh=two"],
    option=["-std=c++20", "--ptxas-options=-v"],
    arch="sm_90a",
    fingerprint=FINGERPRINT,
    package="0.1.0",
)


def key(driver, env=None, **changes):
    return driver.run("key", env=env, **{**BASE, **changes}).only["key"]


def test_p1_key_follows_its_grammar(driver):
    expected = expected_key(
        "source",
        "kernel",
        [("a.cuh", "one"), ("b.cuh", "two")],
        ["--gpu-architecture=sm_90a", "-std=c++20", "--ptxas-options=-v"],
        "sm_90a",
        FINGERPRINT,
        "0.1.0",
    )
    assert key(driver) == expected
    # Golden: a change here orphans every cache in the world, so it has to come with a new schema.
    assert expected == "443f6b0f944536c4be38c7df994dddf43e638f611b6bd69e81742164fa744480"


def test_p1_every_field_counts(driver):
    changes = [
        dict(),
        dict(text="sourcE"),
        dict(entry="kernel2"),
        dict(header=["a.cuh=onE", "b.cuh=two"]),
        dict(header=["a.cuh=one", "b.cuh=twO"]),
        dict(header=["A.cuh=one", "b.cuh=two"]),
        dict(header=["b.cuh=two", "a.cuh=one"]),
        dict(header=["a.cuh=one"]),
        dict(option=["--ptxas-options=-v", "-std=c++20"]),
        dict(option=["-std=c++20"]),
        dict(option=["-std=c++20--ptxas-options=-v"]),
        dict(arch="sm_100a"),
        dict(fingerprint="nvrtc-13.0-abd-1"),
        dict(package="0.1.1"),
        dict(text="ab", entry="c"),
        dict(text="a", entry="bc"),
    ]
    keys = [key(driver, **change) for change in changes]
    assert len(set(keys)) == len(keys)
    same_kernel = {k[:32] for change, k in zip(changes, keys, strict=True) if set(change) <= {"fingerprint"}}
    assert len(same_kernel) == 1, "another NVRTC changes the second half only"


def test_p2_key_does_not_depend_on_the_process(driver, tmp_path, monkeypatch):
    copy = tmp_path / "installed-elsewhere"
    shutil.copy(driver.program, copy)
    monkeypatch.chdir(tmp_path)
    env = {"LANG": "tr_TR.UTF-8", "LC_ALL": "C", "HOME": str(tmp_path), "PATH": "/x", "PYTHONHASHSEED": "7"}
    assert key(Driver(copy), env=env) == key(driver)


def test_sha256(driver, tmp_path):
    data = bytes((7 * i + i // 256) % 128 for i in range(400))
    (tmp_path / "data").write_bytes(data)
    lines = driver.run("sha", tmp_path / "data").lines
    assert len(lines) == len(data) + 1
    for n, line in enumerate(lines):
        assert set(line.values()) == {hashlib.sha256(data[:n]).hexdigest()}


# ---- the entry ---------------------------------------------------------------------------------


def test_entry_follows_its_grammar(driver, root, env):
    got = driver.run("get", env=env).only
    assert got["origin"] == "compiled" and got["right_bytes"] == 1
    (path,) = entries(root)
    assert path.name == got["key"] + ".dgk" and path.parent.name == got["key"][:2]
    data = path.read_bytes()
    magic, form, meta_size, image_size = struct.unpack_from("<8sIIQ", data)
    assert (magic, form, data[24:56].hex()) == (b"DGJCUBIN", 1, got["key"])
    assert len(data) == 56 + meta_size + image_size + 32
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    meta = json.loads(data[56 : 56 + meta_size])
    assert meta == json.loads(got["meta"])
    assert (meta["arch"], meta["kernel"], meta["plan"]) == ("sm_90a", "kernel", "plan of kernel text")
    assert (meta["nvrtc"], meta["registers"]) == (FINGERPRINT, 7)
    assert meta["log"].endswith('"quoted" \x01 \ufffd back\\slash')
    assert data[56 + meta_size :][:4] == b"\x7fELF"
    again = driver.run("get", env=env).only
    assert (again["origin"], again["right_bytes"], again["meta"]) == ("disk", 1, got["meta"])


def test_memory_then_disk(driver, env):
    assert [line["origin"] for line in driver.run("get-twice", env=env).lines] == ["compiled", "memory"]
    assert [line["origin"] for line in driver.run("forget", env=env, text="b").lines] == ["compiled", "disk"]


def test_find_never_compiles(driver, env):
    assert driver.run("find", env=env).only == {"origin": "none", "compiles": 0}
    driver.run("get", env=env)
    assert driver.run("find", env=env).only["origin"] == "disk"


def test_one_line_in_the_log_for_each_compile(driver, env):
    result = driver.run("get-twice", env=env)
    assert result.warnings == ["compiled plan of kernel text for sm_90a in 2 ms"]
    assert driver.run("get", env=env).warnings == []


# ---- P3: nothing that failed is published ------------------------------------------------------


@pytest.mark.parametrize("compiler", ["error", "empty", "garbage", "truncated", "wrong-symbol"])
def test_p3_failures_are_not_published(driver, root, env, marker, compiler):
    result = driver.run("get-twice", env=env, compiler=compiler, marker=marker)
    assert [line["error"] for line in result.lines] == ["compile", "compile"]
    assert compiles(marker) == 2, "the second call compiles again"
    assert entries(root) == [] and list(root.glob("v1/tmp/*")) == []
    if compiler == "error":
        assert "no such thing" in result.lines[1]["message"]
    else:
        assert "ptxas info" in result.lines[1]["message"]
    assert driver.run("get", env=env).only["origin"] == "compiled"


# ---- P4: publishing is atomic ------------------------------------------------------------------

STEPS = ["open", "write", "fsync", "close", "rename", "mkdir", "fstat", "lstat", "lock_byte", "unlock_byte"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["kill", "die"])
def test_p4_killed_at_any_step(driver, root, env, step, how):
    """Whatever a crash leaves behind, the next process sees a sound entry or none, and is not held up."""
    for at in range(1, 30):
        shutil.rmtree(root, ignore_errors=True)
        crashed = driver.run("get", env=env, fault=f"{step}:{at}:{how}")
        if crashed.code == 0:
            assert at > 1
            return
        assert crashed.code == -signal.SIGKILL
        visible = entries(root)
        after = driver.run("get", env=env)
        assert after.only["right_bytes"] == 1
        assert after.only["origin"] == ("disk" if visible else "compiled")
        assert not any("not used" in line for line in after.warnings)
    pytest.fail("more steps than expected")


def test_p4_killed_at_a_random_moment(driver, root, env):
    for turn in range(40):
        process = driver.start(
            "keys", 200, env=env, fault="write:1+:short" if turn % 2 else "write:999:short"
        )
        time.sleep(0.002 * turn % 0.05)
        process.kill()
        process.communicate()
    after = driver.run("keys", 200, env=env)
    assert all(line["right_bytes"] == 1 for line in after.lines)
    assert not any("not used" in line for line in after.warnings)


def test_short_writes_are_continued(driver, root, env):
    driver.run("get", env=env, fault="write:1+:short")
    assert driver.run("get", env=env).only["origin"] == "disk"


# ---- P5: the reader trusts nothing -------------------------------------------------------------


def test_p5_every_length_and_every_bit(driver, root, env):
    driver.run("get", env=env)
    (path,) = entries(root)
    assert driver.run("parse", path, env=env).only == {
        "sound": 1,
        "truncated": 0,
        "flipped": 0,
        "extended": 0,
    }


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_empty(path):
    path.write_bytes(b"")


def damage_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_longer(path):
    path.write_bytes(path.read_bytes() + b"\0")


def damage_folder(path):
    path.unlink()
    path.mkdir()


def damage_fifo(path):
    path.unlink()
    os.mkfifo(path, 0o600)


def damage_link(path):
    elsewhere = path.with_suffix(".moved")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


DAMAGES = [damage_cut, damage_empty, damage_bit, damage_longer, damage_folder, damage_fifo, damage_link]


@pytest.mark.parametrize("damage", DAMAGES)
def test_p5_damage_is_a_miss_and_heals(driver, root, env, damage):
    driver.run("get", env=env)
    (path,) = entries(root)
    damage(path)
    result = driver.run("get", env=env)
    assert (result.only["origin"], result.only["right_bytes"]) == ("compiled", 1)
    assert sum(str(path) in line and "not used" in line for line in result.warnings) == 1
    assert driver.run("get", env=env).only["origin"] == "disk"


@pytest.mark.parametrize(("at", "change"), [(8, 1), (12, -1), (12, 1), (16, -1), (16, 1), (24, 1)])
def test_p5_header_with_a_right_checksum(driver, root, env, at, change):
    """The checksum alone does not make an entry: format, both lengths and the key are checked as well."""
    driver.run("get", env=env)
    (path,) = entries(root)
    body = bytearray(path.read_bytes()[:-32])
    body[at] = (body[at] + change) % 256
    path.write_bytes(body + hashlib.sha256(body).digest())
    result = driver.run("get", env=env)
    assert result.only["origin"] == "compiled" and any("not used" in line for line in result.warnings)


def test_p5_key_echo(driver, root, env):
    driver.run("keys", 2, env=env)
    first, second = entries(root)
    spare = first.with_suffix(".spare")
    first.rename(spare), second.rename(first), spare.rename(second)
    result = driver.run("keys", 2, env=env)
    assert [(line["origin"], line["right_bytes"]) for line in result.lines] == [("compiled", 1)] * 2


def test_p6_rejected_by_the_driver_compiles_once(driver, root, env, marker):
    driver.run("get", env=env, marker=marker)
    lines = driver.run("drop", env=env, marker=marker).lines
    assert [line["origin"] for line in lines] == ["disk", "compiled"]
    assert compiles(marker) == 2 and len(entries(root)) == 1


# ---- P7, P8, P9, P10: one compile for all ------------------------------------------------------


def test_p7_eight_processes_compile_once(driver, env, marker):
    group = [driver.start("get", env=env, marker=marker, sleep=400, lock_wait=30_000) for _ in range(8)]
    results = [finished(process) for process in group]
    assert [result.only["right_bytes"] for result in results] == [1] * 8
    assert compiles(marker) == 1
    assert sorted(result.only["origin"] for result in results) == ["compiled"] + ["disk"] * 7


def test_p7_other_keys_are_not_held_up(driver, env, marker):
    slow = driver.start("get", env=env, marker=marker, sleep=5000, text="slow")
    while compiles(marker) == 0:
        time.sleep(0.01)
    assert driver.run("get", env=env, marker=marker, text="quick").only["origin"] == "compiled"
    assert slow.poll() is None
    slow.kill()
    slow.communicate()


def test_p8_sixteen_threads_compile_once(driver, env, marker):
    lines = driver.run("threads", 16, env=env, marker=marker, sleep=300).lines
    assert compiles(marker) == 1 and len(lines) == 16
    assert all(line["right_bytes"] == 1 and line["compiles"] == 1 for line in lines)
    assert sorted(line["origin"] for line in lines) == ["compiled"] + ["memory"] * 15


def test_p8_threads_share_the_failure_too(driver, env, marker):
    lines = driver.run("threads", 4, env=env, marker=marker, sleep=300, compiler="error").lines
    assert len(lines) == 4 and all("no such thing" in line["message"] for line in lines)


@contextlib.contextmanager
def lock_holder(driver, env, command="hold"):
    holder = driver.start(command, env=env)
    line = wait_for_line(holder)
    assert line["held"] == 1
    try:
        yield holder
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close(), holder.stderr.close()
        if line["child"] > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(line["child"], signal.SIGKILL)


def test_p9_killed_holder_frees_the_lock(driver, env):
    with lock_holder(driver, env) as holder:
        waiter = driver.start("get", env=env, lock_wait=30_000)
        time.sleep(0.3)
        assert waiter.poll() is None
        start = time.monotonic()
        holder.send_signal(signal.SIGKILL)
        assert finished(waiter).only["origin"] == "compiled"
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("state", [signal.SIGSTOP, signal.SIGCONT])
def test_p9_waiting_is_bounded(driver, env, state):
    with lock_holder(driver, env) as holder:
        holder.send_signal(state)
        result = driver.run("get", env=env, lock_wait=200)
        assert (result.only["origin"], result.only["right_bytes"]) == ("compiled", 1)


def test_p9_a_forked_child_does_not_keep_the_lock(driver, env):
    with lock_holder(driver, env, "hold-fork") as holder:
        holder.send_signal(signal.SIGKILL)
        start = time.monotonic()
        assert driver.run("get", env=env, lock_wait=60_000).only["origin"] == "compiled"
        assert time.monotonic() - start < 30


def test_p9_lock_file_removed_under_the_holder(driver, root, env):
    with lock_holder(driver, env):
        (root / "v1" / "lock").unlink()
        assert driver.run("get", env=env, lock_wait=60_000).only["origin"] == "compiled"


@pytest.mark.parametrize("errno_name", ["ENOLCK", "ENOSYS", "EINVAL", "EOPNOTSUPP"])
@pytest.mark.parametrize("flock_too", [False, True])
def test_p9_file_systems_without_locks(driver, root, env, errno_name, flock_too):
    faults = [f"lock_byte:1+:{errno_name}"] + ([f"lock_file:1+:{errno_name}"] if flock_too else [])
    assert driver.run("get", env=env, fault=faults).only["right_bytes"] == 1
    assert driver.run("get", env=env).only["origin"] == "disk"
    assert bool(list(root.glob("v1/lock.*"))), "flock on a stripe file is tried in between"


def test_p9_stripe_files_exclude_too(driver, env, marker):
    group = [
        driver.start("get", env=env, marker=marker, sleep=300, lock_wait=30_000, fault="lock_byte:1+:EINVAL")
        for _ in range(4)
    ]
    assert [finished(process).only["right_bytes"] for process in group] == [1] * 4
    assert compiles(marker) == 1


@pytest.mark.parametrize("errno_name", ["EEXIST", "ESTALE", "ENOENT"])
def test_p10_loser_of_the_race_has_its_own_bytes(driver, env, errno_name):
    assert driver.run("get", env=env, fault=f"rename:1+:{errno_name}").only["right_bytes"] == 1


# ---- P11: a cache failure never fails a call ---------------------------------------------------

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
        assert entries(root) == [] and list(root.glob("v1/tmp/*")) == []


def test_p11_full_disk(driver, root, env):
    def limit():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # a short write, then EFBIG

    done = subprocess.run(
        driver.command("get-twice"), env=env, capture_output=True, text=True, preexec_fn=limit
    )
    assert [json.loads(line)["origin"] for line in done.stdout.splitlines()] == ["compiled", "memory"]
    assert "memory only" in done.stderr and str(root) in done.stderr
    assert entries(root) == [] and list(root.glob("v1/tmp/*")) == []


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


def reach(folder):
    """Lets another user walk down to `folder`: pytest makes its own folders 0700."""
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == os.geteuid() and str(parent) not in ("/", "/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)


def test_p11_read_only_mount(driver, root, env):
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not create mount namespaces (unshare -m)")
    driver.run("get", env=env)
    script = f'mount --bind {root} {root} && mount -o remount,bind,ro {root} && exec "$@"'
    prefix = (unshare, "-m", "--propagation", "private", "sh", "-c", script, "sh")
    env = {**env, "PATH": os.environ["PATH"]}
    assert driver.run("get", env=env, prefix=prefix).only["origin"] == "disk"
    result = driver.run("get", env=env, prefix=prefix, text="new")
    assert result.only["origin"] == "compiled" and any("memory only" in line for line in result.warnings)


@pytest.mark.parametrize("home", ["/nonexistent/home", "/dev/null", "other-user"])
def test_p11_no_usable_home(driver, tmp_path, home):
    result = driver.run("get", env={"HOME": str(tmp_path) if home == "other-user" else home}, euid=4242)
    assert result.only["origin"] == "compiled"
    assert sum("no disk cache" in line and "DGJ_CACHE_DIR" in line for line in result.warnings) == 1
    assert not Path("/nonexistent").exists() and list(tmp_path.iterdir()) == []


# ---- P12: private ------------------------------------------------------------------------------


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
        assert stranger.only["origin"] == "disk" and any(
            "belongs to user 0" in line for line in stranger.warnings
        )
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


def test_p12_entry_that_others_may_write(driver, root, env):
    driver.run("get", env=env)
    entries(root)[0].chmod(0o666)
    assert driver.run("get", env=env).only["origin"] == "compiled"


# ---- P16, P17, P19, P25: places, versions, forks, switches -------------------------------------


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


def test_p16_seeds_are_read_and_never_written(driver, root, tmp_path):
    seed = tmp_path / "seed"
    driver.run("get", env={"DGJ_CACHE_DIR": str(seed)})
    before = {path: path.stat().st_mtime_ns for path in [seed, *seed.rglob("*")]}
    env = {"DGJ_CACHE_DIR": f"{root}:{seed}"}
    assert driver.run("get", env=env).only["origin"] == "disk"
    assert driver.run("get", env=env, text="new").only["origin"] == "compiled"
    assert {path: path.stat().st_mtime_ns for path in [seed, *seed.rglob("*")]} == before
    damage_bit(entries(seed)[0])
    assert driver.run("get", env=env).only["origin"] == "compiled"
    assert len(entries(seed)) == 1, "a damaged seed is not ours to remove"


def test_p1_seeds_serve_another_nvrtc(driver, root, tmp_path):
    seed = tmp_path / "seed"
    driver.run("get", env={"DGJ_CACHE_DIR": str(seed)})
    env = {"DGJ_CACHE_DIR": f"{root}:{seed}"}
    for fingerprint in ("nvrtc-12.9-zzz-2", "none"):
        result = driver.run("get", env=env, fingerprint=fingerprint)
        assert (result.only["origin"], result.only["right_bytes"]) == ("disk", 1)
        assert sum("another NVRTC" in line for line in result.warnings) == 1
    lines = driver.run("drop", env=env).lines
    assert [line["origin"] for line in lines] == ["disk", "compiled"], "a refused seed is not asked again"


def test_p17_other_versions_miss_and_downgrades_hit(driver, env):
    for package, fingerprint in (("0.1.0", "a"), ("0.2.0", "a"), ("0.2.0", "b")):
        assert (
            driver.run("get", env=env, package=package, fingerprint=fingerprint).only["origin"] == "compiled"
        )
    assert driver.run("get", env=env, package="0.1.0", fingerprint="a").only["origin"] == "disk"


def test_p18_a_disk_hit_is_quick(driver, env):
    driver.run("get", env=env)
    times = [driver.run("get", env=env).only["ms"] for _ in range(5)]
    assert min(times) < 3, times


def test_p19_fork_while_another_thread_compiles(driver, env, marker):
    result = driver.run("fork", env=env, marker=marker, sleep=600, lock_wait=200)
    assert result.code == 0
    # Parent: before, busy. Child: the first from memory, another one, and the busy one by itself after
    # the bounded wait.
    assert len(result.lines) == 5 and all(line["right_bytes"] == 1 for line in result.lines)
    assert [line["origin"] for line in result.lines].count("memory") == 1


def test_p25_disk_cache_off(driver, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    result = driver.run("get-twice", env={"DGJ_CACHE_DIR": "", "HOME": str(home)})
    assert [line["origin"] for line in result.lines] == ["compiled", "memory"]
    assert list(home.iterdir()) == [] and len(result.warnings) == 1


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

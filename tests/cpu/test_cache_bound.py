"""P14, P15: the bound on the size, full disks, and what a crash left behind."""

import os
import shutil
import time
from pathlib import Path

import pytest
from cpp.build import finished
from cpp.cache import compiles, entries, in_mount_namespace, make_old, unfinished


@pytest.fixture
def size(driver, tmp_path):
    """Bytes of one entry."""
    folder = tmp_path / "one"
    driver.run("keys", 1, env={"DGJ_CACHE_DIR": str(folder)})
    return entries(folder)[0].stat().st_size


def fill(driver, env, count):
    """Entries of kernels 0, 1, ...: the first was used longest ago. Returns their paths."""
    paths = []
    for i in range(count):
        key = driver.run("keys", i + 1, env=env).lines[i]["key"]
        paths += [path for path in entries_of(env) if path.stem == key]
    for i, path in enumerate(paths):
        make_old(path, 2 * (count - i))
    return paths


def entries_of(env):
    return entries(Path(env["DGJ_CACHE_DIR"]))


def bounded(env, size, count):
    """Room for `count` entries; the bound is kept to a sixteenth."""
    return {**env, "DGJ_CACHE_MAX_SIZE": str(int(size * (count + 0.6)))}


def left(paths):
    return [path.exists() for path in paths]


def test_p14_the_entry_used_longest_ago_goes(driver, env, size):
    paths = fill(driver, env, 3)
    result = driver.run("get", env=bounded(env, size, 3), text="new")
    assert left(paths) == [False, True, True] and len(entries_of(env)) == 3
    assert len(result.warnings) == 1


def test_p14_a_hit_counts_as_a_use(driver, env, size):
    paths = fill(driver, env, 3)
    assert driver.run("keys", 1, env=env).only["origin"] == "disk"
    driver.run("get", env=bounded(env, size, 3), text="new")
    assert left(paths) == [True, False, True]


@pytest.mark.parametrize(("hours", "renewed"), [(0.5, False), (2, True), (-48, True)])
def test_p14_a_stamp_is_renewed_once_an_hour(driver, root, env, hours, renewed):
    driver.run("get", env=env)
    (path,) = entries(root)
    make_old(path, hours)
    before = path.stat().st_mtime_ns
    line = driver.run("get", env=env).only
    assert ("touch" in line["calls"]) == renewed and (path.stat().st_mtime_ns != before) == renewed
    assert not renewed or abs(time.time() - path.stat().st_mtime) < 60
    assert "touch" not in driver.run("get", env=env).only["calls"]


@pytest.mark.parametrize(("bound", "kept"), [(None, 6), ("", 6), ("0", 6), ("1G", 6), ("1k", 1), ("1", 1)])
def test_p14_bounds(driver, env, bound, kept):
    env = env if bound is None else {**env, "DGJ_CACHE_MAX_SIZE": bound}
    result = driver.run("keys", 6, env=env)
    assert all(line["right_bytes"] == 1 for line in result.lines)
    assert len(entries_of(env)) == kept, "the entry that was just written always stays"
    notices = [line for line in result.warnings if "DGJ_CACHE_MAX_SIZE" in line]
    assert len(notices) == (kept < 6), "a bound too small for one process is said once"


@pytest.mark.parametrize("bound", ["many", "1.5G", "-1", "1GB", " 1G", "99999999999G", "G"])
def test_p14_a_bound_that_is_no_size_is_reported(driver, env, bound):
    result = driver.run("get", env={**env, "DGJ_CACHE_MAX_SIZE": bound})
    assert result.only["right_bytes"] == 1
    assert sum("DGJ_CACHE_MAX_SIZE" in line and repr(bound) in line for line in result.warnings) == 1


@pytest.mark.parametrize("change", ["rename", "touch"])
def test_p14_what_is_replaced_or_used_meanwhile_stays(driver, env, size, root, tmp_path, change):
    """It happens before the N-th lstat, for every N: also between the look at a file and its removal."""
    paths = fill(driver, env, 3)
    template, copy = tmp_path / "template", tmp_path / "copy"
    shutil.copytree(root, template)
    ran = 0
    for at in range(1, 60):
        shutil.rmtree(root)
        shutil.copytree(template, root)
        shutil.copy(paths[0], copy)
        words = ["rename", str(copy), str(paths[0])] if change == "rename" else ["touch", str(paths[0])]
        result = driver.run(
            "get", env=bounded(env, size, 3), text="new", fault=f"lstat:{at}:hook", hook=words
        )
        if result.code != 0 or not result.only["hooked"]:
            break  # it was gone before that call, or there are not that many calls
        assert result.only["right_bytes"] == 1
        ran += 1
        assert paths[0].exists(), f"before call {at}"
    assert ran > 5


def test_p14_a_reader_keeps_what_is_removed_under_it(driver, root, env):
    driver.run("get", env=env)
    (path,) = entries(root)
    line = driver.run("get", env=env, fault="read:1:hook", hook=["unlink", str(path)]).only
    assert (line["origin"], line["right_bytes"], path.exists()) == ("disk", 1, False)


def test_p14_stamps_in_the_future(driver, env, size):
    """Another machine's clock was ahead: such an entry counts as used now, and is stamped anew."""
    paths = fill(driver, env, 3)
    make_old(paths[0], -48)
    driver.run("get", env=bounded(env, size, 3), text="new")
    assert left(paths) == [True, False, True]
    assert paths[0].stat().st_mtime < time.time() + 60


def test_p14_a_wrong_clock_of_this_machine_keeps_the_order(driver, env, size):
    paths = fill(driver, env, 3)
    for path in paths:
        make_old(path, -1000)
    driver.run("get", env=bounded(env, size, 3), text="new")
    assert left(paths) == [False, True, True]


def test_p14_entries_of_other_schemas_count_and_go(driver, root, env, size):
    old = root / "v0" / "ab" / ("ab" * 32 + ".dgk")
    old.parent.mkdir(parents=True)
    old.write_bytes(b"x" * 5 * size)
    make_old(old, 24)
    (root / "v0" / "ab" / "notes.txt").write_text("not ours")
    root.chmod(0o700)
    driver.run("keys", 2, env=bounded(env, size, 3))
    assert not old.exists() and len(entries(root)) == 2
    assert (root / "v0" / "ab" / "notes.txt").exists(), "only entries are removed"


def test_p14_nothing_is_removed_through_a_link(driver, root, env, size, tmp_path):
    driver.run("get", env=env)
    elsewhere = tmp_path / "elsewhere" / "ab"
    elsewhere.mkdir(parents=True)
    (elsewhere / "valuable.dgk").write_bytes(b"x" * 100 * size)
    (root / "v0").symlink_to(elsewhere.parent)
    driver.run("get", env=bounded(env, size, 3), text="new")
    assert (elsewhere / "valuable.dgk").exists() and len(entries(root)) == 2


def test_p14_the_folder_is_looked_at_only_when_it_may_have_grown_too_far(driver, env):
    lines = driver.run("keys", 20, env=env).lines
    assert "list" in lines[0]["calls"] and not any("list" in line["calls"] for line in lines[1:])


@pytest.mark.parametrize("errno_name", ["ENOSPC", "EDQUOT"])
def test_p14_a_full_disk_makes_room_once(driver, env, errno_name):
    paths = fill(driver, env, 6)
    result = driver.run("get", env=env, text="new", fault=f"write:1:{errno_name}")
    assert result.only["origin"] == "compiled" and len(result.warnings) == 1
    assert left(paths) == [False] * 4 + [True] * 2 and len(entries_of(env)) == 3
    assert driver.run("get", env=env, text="new").only["origin"] == "disk"


def test_p14_a_disk_that_stays_full_costs_one_removal_for_each_kernel(driver, env):
    paths = fill(driver, env, 6)
    result = driver.run("get", env=env, text="new", fault="write:1+:ENOSPC")
    assert result.only["right_bytes"] == 1
    assert sum("memory only" in line and "No space left" in line for line in result.warnings) == 1
    assert left(paths) == [False] * 4 + [True] * 2


def test_p14_a_small_file_system(driver, root, env):
    root.mkdir(mode=0o700)
    prefix = in_mount_namespace(f"mount -t tmpfs -o size=64k,mode=700 none {root}")
    env = {**env, "PATH": os.environ["PATH"]}
    result = driver.run("keys", 30, env=env, prefix=prefix, padding=4000)
    assert all(line["right_bytes"] == 1 for line in result.lines)
    assert not any("memory only" in line for line in result.warnings), result.warnings


def test_p14_writers_and_evictors_at_once(driver, env, size, marker):
    tight = bounded(env, size, 4)
    group = [driver.start("keys", 25, env=tight, marker=marker) for _ in range(4)]
    for process in group:
        result = finished(process)
        assert len(result.lines) == 25 and all(line["right_bytes"] == 1 for line in result.lines)
        assert not any("not used" in line or "memory only" in line for line in result.warnings)
    assert len(entries_of(env)) <= 8 and compiles(marker) >= 25


# ---- P15 ---------------------------------------------------------------------------------------


def leave(path, hours):
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text("left behind")
    make_old(path, hours)
    return path


def test_p15_old_litter_goes_and_young_stays(driver, root, env):
    driver.run("get", env=env)
    tmp = root / "v1" / "tmp"
    old = [leave(tmp / "1.a", 1.1), leave(tmp / "1.b", 500), leave(tmp / "1.c", -48)]
    old += [leave(root / "v0" / "tmp" / "2.a", 2), leave(root / "failed" / "kernel.cu", 8 * 24)]
    young = [leave(tmp / "3.a", 0.9), leave(tmp / "3.b", 0), leave(tmp / "3.c", -2)]
    young += [leave(root / "failed" / "other.cu", 6 * 24)]
    assert driver.run("get", env=env).only["origin"] == "disk"
    assert left(old) == [True] * 5, "a hit writes nothing"
    assert driver.run("get", env=env, text="new").only["origin"] == "compiled"
    assert (left(old), left(young)) == ([False] * 5, [True] * 4)


@pytest.mark.parametrize(("hours", "swept"), [(0, False), (23, False), (25, True)])
def test_p15_at_most_once_a_day_for_each_process(driver, root, env, hours, swept, tmp_path):
    driver.run("get", env=env)
    late = leave(tmp_path / "late", 2)
    arrived = root / "v1" / "tmp" / "4.a"
    # The second entry of the process is written when the first sweep is over.
    options = dict(fault="write:2:hook", hook=["rename", str(late), str(arrived)], hours_between=hours)
    driver.run("keys", 2, env=env, **options)
    assert arrived.exists() != swept and not late.exists()
    assert len(unfinished(root)) == arrived.exists()

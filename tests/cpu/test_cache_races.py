"""P7-P10, P24: one compile for all threads and processes, and what happens without working locks."""

import contextlib
import os
import signal
import time

import pytest
from cpp.build import finished
from cpp.cache import compiles, entries, unfinished, wait_for_line


def test_p7_eight_processes_compile_once(driver, env, marker):
    group = [driver.start("get", env=env, marker=marker, sleep=400, lock_wait=30_000) for _ in range(8)]
    results = [finished(process) for process in group]
    assert [result.only["right_bytes"] for result in results] == [1] * 8
    assert compiles(marker) == 1
    assert sorted(result.only["origin"] for result in results) == ["compiled"] + ["disk"] * 7


def test_p7_four_keys_over_eight_processes(driver, env, marker):
    """Timed from a common start, after every process was loaded."""
    sleep, start = 1000, time.time() + 1.5
    group = [
        driver.start("get", env=env, marker=marker, sleep=sleep, text=f"kernel {i % 4}", start_at=start)
        for i in range(8)
    ]
    results = [finished(process).only for process in group]
    assert compiles(marker) == 4
    assert sorted(result["origin"] for result in results) == ["compiled"] * 4 + ["disk"] * 4
    assert max(result["wall_ms"] for result in results) < 2 * sleep


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
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("state", [signal.SIGSTOP, signal.SIGCONT])
def test_p9_waiting_is_bounded(driver, env, state):
    with lock_holder(driver, env) as holder:
        holder.send_signal(state)
        start = time.monotonic()
        result = driver.run("get", env=env, lock_wait=200)
        assert time.monotonic() - start < 20
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


def test_p9_a_lock_on_a_removed_file_does_not_count(driver, root, env, marker):
    """One waits for the lock of the old file; meanwhile others use the new file."""
    with lock_holder(driver, env) as holder:
        waiter = driver.start("get", env=env, marker=marker, lock_wait=60_000)
        time.sleep(0.5)
        (root / "v1" / "lock").unlink()
        newcomer = driver.start("get", env=env, marker=marker, lock_wait=60_000, sleep=2000)
        while compiles(marker) == 0:
            time.sleep(0.01)
        holder.send_signal(signal.SIGKILL)
        assert finished(waiter).only["origin"] == "disk"
        assert finished(newcomer).only["origin"] == "compiled" and compiles(marker) == 1


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


def test_p9_a_hit_takes_no_lock(driver, root, env):
    driver.run("get", env=env)
    with lock_holder(driver, env):
        start = time.monotonic()
        calls = driver.run("get", env=env, lock_wait=60_000).only["calls"]
        assert time.monotonic() - start < 10 and "lock" not in calls


@pytest.mark.parametrize("errno_name", ["EEXIST", "ESTALE", "ENOENT"])
def test_p10_loser_of_the_race_has_its_own_bytes(driver, env, errno_name):
    assert driver.run("get", env=env, fault=f"rename:1+:{errno_name}").only["right_bytes"] == 1


def test_p19_fork_while_another_thread_compiles(driver, env, marker):
    result = driver.run("fork", env=env, marker=marker, sleep=600, lock_wait=200)
    assert result.code == 0
    # Parent: before, busy. Child: the first from memory, another one, and the busy one by itself after
    # the bounded wait.
    assert len(result.lines) == 5 and all(line["right_bytes"] == 1 for line in result.lines)
    assert [line["origin"] for line in result.lines].count("memory") == 1


# ---- P24: network file systems -----------------------------------------------------------------


@pytest.mark.parametrize("step", ["open", "fstat", "read"])
def test_p24_a_stale_handle_is_a_miss(driver, root, env, step):
    driver.run("get", env=env)
    result = driver.run("get", env=env, fault=[f"{step}:1:ESTALE"])
    assert result.only["right_bytes"] == 1
    assert not any("not used" in line for line in result.warnings), result.warnings
    assert len(entries(root)) == 1
    assert driver.run("get", env=env).only["origin"] == "disk"


def test_p24_an_entry_that_cannot_be_seen_yet_is_compiled_again(driver, root, env):
    driver.run("get", env=env)
    # The first and the third open are the two looks for the entry; the second is the lock.
    result = driver.run("get", env=env, fault=["open:1:ENOENT", "open:3:ENOENT"])
    assert (result.only["origin"], result.only["right_bytes"]) == ("compiled", 1)
    assert len(result.warnings) == 1
    assert driver.run("get", env=env).only["origin"] == "disk"


def test_p24_without_any_lock_everyone_is_right(driver, root, env, marker):
    faults, start = ["lock_byte:1+:ENOLCK", "lock_file:1+:ENOLCK"], time.time() + 1
    group = [
        driver.start("get", env=env, marker=marker, sleep=300, start_at=start, fault=faults) for _ in range(4)
    ]
    assert [finished(process).only["right_bytes"] for process in group] == [1] * 4
    assert compiles(marker) > 1, "the locks are what saves compiles"
    assert len(entries(root)) == 1 and unfinished(root) == []
    assert driver.run("get", env=env).only["origin"] == "disk"


def test_p24_a_stale_folder_is_published_to_once_more(driver, root, env):
    result = driver.run("get", env=env, fault="rename:1:ESTALE")
    assert result.only["origin"] == "compiled" and len(result.warnings) == 1
    assert driver.run("get", env=env).only["origin"] == "disk"

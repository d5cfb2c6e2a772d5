"""P4, P13: processes killed at every system call, and a million damaged entries."""

import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cpp.build import build

SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PARSER = ("cache/entry.cpp", "cache/key.cpp", "base/sha256.cpp", "compile/elf.cpp")
FOUR_ENTRIES = "4500"  # bytes: publishing evicts


@pytest.fixture(scope="session")
def crasher(request):
    return build("cache_crash", request.config.cache.mkdir("cpp"))


@pytest.fixture(scope="session")
def fuzzer(request):
    return build("entry_fuzz", request.config.cache.mkdir("cpp"), extra_flags=SANITIZERS, only=PARSER)


def crash(program, folder, *options):
    env = {"DGJ_CACHE_DIR": str(folder), "DGJ_CACHE_MAX_SIZE": FOUR_ENTRIES}
    done = subprocess.run([str(program), *options], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(outcome):
    """Nothing unsound was visible, nobody got wrong bytes, was held up or warned, and no litter stays."""
    assert outcome["points"] > 50, outcome
    faults = {name: outcome[name] for name in ("unsound", "wrong", "warnings", "litter")}
    assert not any(faults.values()), outcome


def test_p4_two_hundred_kills(crasher, tmp_path):
    outcome = crash(crasher, tmp_path / "cache", "--kills", "200")
    assert outcome["kills"] == 200
    check(outcome)


@pytest.mark.long
def test_p4_every_fault_point_two_hundred_times(crasher):
    memory, parts, times = Path("/dev/shm"), 4, 200
    fast = memory if os.access(memory, os.W_OK) else None

    def run(part):
        options = ["--each", times, "--parts", parts, "--part", part, "--seed", 4 + part]
        return crash(crasher, Path(folder) / str(part), *map(str, options))

    with tempfile.TemporaryDirectory(dir=fast) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        for part, outcome in enumerate(pool.map(run, range(parts))):
            points = len(range(1 + part, outcome["points"] + 1, parts))
            assert outcome["kills"] == times * points, outcome
            check(outcome)


def fuzz(program, count, seed):
    done = subprocess.run([str(program), str(count), str(seed)], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
    outcome = json.loads(done.stdout)
    # Some mutations must get through, or the parser's far end was never reached.
    assert outcome["accepted"] > count / 100 and outcome["whole"] > count / 100, outcome


def test_p13_damaged_entries_under_sanitizers(fuzzer):
    fuzz(fuzzer, 100_000, 1)


@pytest.mark.long
def test_p13_a_million_damaged_entries_under_sanitizers(fuzzer):
    fuzz(fuzzer, 1_000_000, 2)

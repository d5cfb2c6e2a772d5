"""P22: python -m deep_gemm_jit cache path|ls|stats|show|verify|prune|clear, on entries of the C++ driver."""

import concurrent.futures
import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cpp.cache import DAMAGES, NOBODY, damage_bit, entries, make_old, snapshot

import deep_gemm_jit as dg

EVERY_PART = ["path", "ls", "stats", "verify", "prune", "clear"]


class Cli:
    """Runs one command; nothing of the caller's environment reaches it but the cache's folder."""

    def __init__(self, folder, env):
        self.folder, self.env = folder, {"HOME": str(folder), **env}

    def run(self, *words, code=0, env=None, binary=False):
        done = subprocess.run(
            [sys.executable, "-m", "deep_gemm_jit", "cache", *map(str, words)],
            capture_output=True,
            text=not binary,
            env={**self.env, **(env or {})},
            cwd=self.folder,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        self.err = done.stderr
        return done.stdout

    def json(self, *words, **options):
        return json.loads(self.run(*words, "--json", **options))


@pytest.fixture
def cli(tmp_path, env):
    return Cli(tmp_path, env)


@pytest.fixture
def filled(driver, root, env):
    """Three entries; kernel 0 was used longest ago. Their paths, in that order."""
    lines = driver.run("keys", 3, env=env).lines
    paths = [next(path for path in entries(root) if path.stem == line["key"]) for line in lines]
    for i, path in enumerate(paths):
        make_old(path, 72 - 24 * i)
    return paths


def entry_bytes(key, meta, image):
    body = b"DGJCUBIN" + struct.pack("<IIQ", 1, len(meta), len(image)) + bytes.fromhex(key) + meta + image
    return body + hashlib.sha256(body).digest()


def parts_of(path):
    data = path.read_bytes()
    meta_size = struct.unpack_from("<I", data, 12)[0]
    return data[56 : 56 + meta_size], data[56 + meta_size : -32]


@pytest.mark.parametrize("part", EVERY_PART)
def test_no_command_imports_torch(part, filled, env, tmp_path):
    code = f"""
import runpy, sys
sys.argv = ["deep_gemm_jit", "cache", {part!r}]
try:
    runpy.run_module("deep_gemm_jit", run_name="__main__")
except SystemExit as stop:
    assert stop.code == 0, stop.code
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("part", ["path", "ls", "stats", "verify"])
def test_looking_changes_nothing(cli, root, filled, part):
    before = snapshot(root)
    cli.run(part), cli.json(part)
    assert snapshot(root) == before
    missing = {"DGJ_CACHE_DIR": str(root.parent / "missing")}
    cli.run(part, env=missing)
    assert not (root.parent / "missing").exists()


@pytest.mark.parametrize("words", [[], ["empty"], ["show"], ["show", "xyz!"], ["show", "ab"], ["ls", "--no"]])
def test_wrong_use_is_exit_code_2(cli, words):
    cli.run(*words, code=2)
    assert "Traceback" not in cli.err and cli.err


def test_path(cli, root, tmp_path):
    assert cli.run("path") == f"{root}\n"
    seeds = {"DGJ_CACHE_DIR": f"{root}:{tmp_path / 'no-seed'}"}
    values = cli.json("path", env=seeds)
    assert (values["primary"], values["seeds"], len(values["warnings"])) == (str(root), [], 1)
    assert cli.json("path", code=1, env={"DGJ_CACHE_DIR": ""})["primary"] is None
    for nothing in ("", ":"):
        assert cli.run("path", code=1, env={"DGJ_CACHE_DIR": nothing}) == "" and "DGJ_CACHE_DIR" in cli.err
    root.mkdir()
    root.chmod(0o777)
    assert cli.run("path", code=1) == "" and "mode is 0777" in cli.err
    cli.run("clear", code=2)
    assert "mode is 0777" in cli.err and "DGJ_CACHE_DIR" in cli.err


def test_ls(cli, filled):
    rows = cli.json("ls")
    assert [row["path"] for row in rows] == [str(path) for path in reversed(filled)]
    row = rows[0]
    assert (row["arch"], row["kernel"], row["plan"]) == ("sm_90a", "kernel", "plan of kernel text 2")
    assert (row["bytes"], row["problem"], row["writable"]) == (filled[2].stat().st_size, None, True)
    assert abs(time.time() - 24 * 3600 - row["used"]) < 600
    lines = cli.run("ls").splitlines()
    assert len(lines) == 4 and lines[1].startswith(filled[2].stem[:12]) and " 24 h " in lines[1]
    damage_bit(filled[2])
    assert "checksum" in cli.run("ls").splitlines()[1]


def test_stats(cli, root, filled, env):
    values = cli.json("stats")
    total = sum(path.stat().st_size for path in filled)
    assert (values["entries"], values["bytes"], values["bytes_in_primary"]) == (3, total, total)
    assert (values["max_size"], values["unusable"], values["of_this_version"]) == (1 << 30, 0, 0)
    assert values["by_arch"] == {"sm_90a": 3} and values["by_package"] == {dg.__version__: 3}
    damage_bit(filled[0])
    (root / "v1" / "tmp" / "left").write_text("x")
    old = root / "v0" / "ab" / ("ab" * 32 + ".dgk")
    old.parent.mkdir(parents=True)
    old.write_bytes(b"of another schema")
    values = cli.json("stats", env={"DGJ_CACHE_MAX_SIZE": "0"})
    assert (values["entries"], values["unusable"], values["other_schemas"]) == (4, 1, 1)
    assert (values["unfinished_files"], values["max_size"]) == (1, None)
    assert f"writable    {root}" in cli.run("stats").splitlines()


def test_show(cli, filled, tmp_path):
    path = filled[1]
    values = cli.json("show", path.stem[:6])
    meta, image = parts_of(path)
    assert values["key"] == path.stem and values["log"] == json.loads(meta)["log"]
    text = cli.run("show", path.stem, "--cubin", tmp_path / "kernel.cubin")
    assert "plan of kernel text 1" in text and (tmp_path / "kernel.cubin").read_bytes() == image
    assert cli.run("show", path.stem, "--cubin", "-", binary=True) == image
    assert cli.run("show", path.stem, "--cubin", "/dev/stdout", binary=True).startswith(image[:64])
    cli.run("show", "0123456789", code=1)
    damage_bit(path)
    assert cli.json("show", path.stem, code=1)["problem"]


def test_show_leaves_no_part_of_a_file_where_the_disk_is_full(cli, filled, tmp_path):
    target = tmp_path / "out" / "kernel.cubin"
    target.parent.mkdir()
    image = parts_of(filled[1])[1]
    small = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({len(image) // 2},) * 2)\n"
    code = small + "import sys; from deep_gemm_jit.__main__ import main; sys.exit(main(sys.argv[1:]))"
    for before in ([], [b"what was there"]):
        for data in before:
            target.write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-c", code, "cache", "show", filled[1].stem, "--cubin", str(target)],
            env=cli.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and "File too large" in done.stderr, done
        assert [path.read_bytes() for path in target.parent.iterdir()] == before
    cli.run("show", filled[1].stem, "--cubin", target)
    assert target.read_bytes() == image and [path.name for path in target.parent.iterdir()] == [target.name]


def check_found(cli, path, words=""):
    found = cli.json("verify", code=1)["findings"]
    assert [finding["path"] for finding in found] == [str(path)], found
    assert words in found[0]["problem"]
    assert str(path) in cli.run("verify", code=1)


def test_verify_of_a_sound_cache(cli, filled):
    assert cli.json("verify") == {"checked": 3, "sound": 3, "other_schemas": 0, "findings": []}
    assert cli.run("verify") == "3 entries checked, 0 findings\n"


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_finds_damage(cli, filled, damage):
    damage(filled[1])
    moved = filled[1].with_suffix(".moved")
    if moved.exists():
        moved.unlink()
    check_found(cli, filled[1])
    cli.run("prune")
    assert cli.json("verify")["checked"] == 2, "prune removes what cannot be used"


@pytest.mark.parametrize("fault", ["image", "kernel", "meta", "no kernel", "key", "other key"])
def test_verify_finds_what_has_a_right_checksum(cli, filled, fault):
    path = filled[0]
    meta, image = parts_of(path)
    key, facts = path.stem, json.loads(meta)
    if fault == "image":
        image = image[:-1]
    elif fault == "kernel":
        meta = json.dumps({**facts, "kernel": "another"}).encode()
    elif fault == "meta":
        meta = meta[:-1]
    elif fault == "no kernel":
        meta = b"[]"
    elif fault == "key":
        key = "00" + key[2:]
    else:
        meta = json.dumps({**facts, "key": "0" * 64}).encode()
    path.write_bytes(entry_bytes(key, meta, image))
    check_found(cli, path)


BAD_META = {
    "null": "null",
    "number": "5",
    "deep": "[" * 100000,
    "plan": {"plan": ["x"]},
    "arch": {"arch": None},
    "log": {"log": 5},
    "package": {"package": {}},
    "compile_ms": {"compile_ms": "3"},
    "not a number": {"compile_ms": float("nan")},
    "infinite": {"registers": float("inf")},
    "infinite in text": '{"kernel": "kernel", "spill_loads": 1e999}',
    "too large to add": {"compile_ms": 10**400},
    "half a character": {"plan": "\udcff"},
    "half a character in a name": {"\ud800": 5},
}
BAD_BYTES = {
    "no UTF-8": lambda meta: meta.replace(b"plan of", b"plan\xff of"),
    "an escaped byte": lambda meta: meta.replace(b"plan of", b"plan\\\xff of"),
    "bytes of half a character": lambda meta: meta.replace(b"plan of", b"plan\xed\xa0\x80 of"),
    "UTF-16": lambda meta: meta.decode().encode("utf-16"),
}


@pytest.mark.parametrize("fault", BAD_META)
def test_a_description_with_values_of_other_types_is_a_finding_and_stops_no_command(cli, filled, fault):
    meta, image = parts_of(filled[0])
    bad = BAD_META[fault]
    text = bad if isinstance(bad, str) else json.dumps(json.loads(meta) | bad)
    check_bad_description(cli, filled[0], text.encode(), image)


@pytest.mark.parametrize("fault", BAD_BYTES)
def test_a_description_that_is_no_utf8_is_a_finding_and_stops_no_command(cli, filled, fault):
    meta, image = parts_of(filled[0])
    bad = BAD_BYTES[fault](meta)
    assert bad != meta
    check_bad_description(cli, filled[0], bad, image)


def test_a_description_of_any_depth_stops_no_command(cli, filled):
    path = filled[0]
    meta, image = parts_of(path)
    problems = []
    for depth in (100, *range(900, 1010, 6)):  # up to where Python's own limit is
        deep = meta.decode()[:-1] + ', "more": ' + "[" * depth + "]" * depth + "}"
        path.write_bytes(entry_bytes(path.stem, deep.encode(), image))
        (row,) = [row for row in cli.json("ls") if row["path"] == str(path)]
        problems.append(row["problem"])
        cli.json("show", path.stem, code=1 if row["problem"] else 0)
    assert problems[0] is None and "description" in problems[-1]


def check_bad_description(cli, path, meta, image):
    path.write_bytes(entry_bytes(path.stem, meta, image))
    check_found(cli, path, "description")
    for part in ("ls", "stats"):
        cli.run(part), cli.json(part)
    cli.run("show", path.stem, code=1), cli.json("show", path.stem, code=1)
    assert cli.json("stats")["unusable"] == 1


def test_verify_finds_names_modes_and_owners(cli, filled, root):
    stray = filled[0].parent / "notes.txt"
    stray.write_text("not an entry")
    check_found(cli, stray, "name")
    cli.run("prune"), cli.run("clear")
    assert stray.exists(), "what is not ours stays"
    stray.unlink()


def test_verify_finds_misplaced_and_writable_entries(cli, filled, root):
    other = root / "v1" / ("00" if not filled[0].stem.startswith("00") else "11")
    other.mkdir(exist_ok=True)
    moved = filled[0].rename(other / filled[0].name)
    check_found(cli, moved, "folder of other keys")
    moved.unlink()
    filled[1].chmod(0o666)
    check_found(cli, filled[1], "may write")


def test_verify_reports_a_refused_root(cli, filled, root):
    root.chmod(0o777)
    assert "0777" in cli.json("verify", code=1)["findings"][0]["problem"]


def test_verify_of_real_kernels(cli, root, tmp_path):
    code = 'import deep_gemm_jit as dg; dg.compile(dg.plan(dg.GemmProblem(n=64, k=128), 8, "h200"))'
    subprocess.run([sys.executable, "-c", code], env={"DGJ_CACHE_DIR": str(root)}, cwd=tmp_path, check=True)
    assert cli.json("verify")["sound"] == 1
    values = cli.json("stats")
    assert values["of_this_version"] == 1 and values["compile_seconds"] > 0


def test_prune_to_a_size_and_by_age(cli, filled, root):
    young, old = root / "v1" / "tmp" / "1.young", root / "v1" / "tmp" / "2.old"
    for path, hours in ((young, 0), (old, 2)):
        path.write_text("x")
        make_old(path, hours)
    lock = root / "v1" / "lock"
    inode = lock.stat().st_ino
    size = filled[0].stat().st_size
    assert cli.json("prune")["bytes"] == 0 and not old.exists() and young.exists()
    assert cli.json("prune", "--older-than", 2.5) == {
        "unusable": 0, "old": 1, "over_bound": 0, "litter": 0, "bytes": size,
    }  # fmt: skip
    assert [path.exists() for path in filled] == [False, True, True]
    assert cli.json("prune", "--max-size", int(1.5 * size))["over_bound"] == 1
    assert [path.exists() for path in filled] == [False, False, True]
    assert cli.json("prune", env={"DGJ_CACHE_MAX_SIZE": "100"})["over_bound"] == 1
    assert entries(root) == [] and lock.stat().st_ino == inode
    for words in (["--max-size", "much"], ["--older-than", "-1"], ["--older-than", "nan"]):
        cli.run("prune", *words, code=2)


def test_clear(cli, driver, filled, root, tmp_path):
    seed = tmp_path / "seed"
    driver.run("get", env={"DGJ_CACHE_DIR": str(seed)})
    young = root / "v1" / "tmp" / "1.young"
    young.write_text("somebody is writing this")
    lock = root / "v1" / "lock"
    inode = lock.stat().st_ino
    before = snapshot(seed)
    values = cli.json("clear", env={"DGJ_CACHE_DIR": f"{root}:{seed}"})
    assert values["entries"] == 3 and entries(root) == []
    assert young.exists() and lock.stat().st_ino == inode and snapshot(seed) == before


def test_clear_while_four_processes_work(cli, driver, root, env):
    driver.run("keys", 5, env=env)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        group = [pool.submit(driver.run, "keys", 150, env=env, sleep=10) for _ in range(4)]
        removed = 0
        while not all(one.done() for one in group):
            removed += cli.json("clear")["entries"]
    assert removed > 5
    for result in (one.result() for one in group):
        assert len(result.lines) == 150 and all(line["right_bytes"] == 1 for line in result.lines)
        assert all(line.startswith("compiled plan") for line in result.warnings)
    assert cli.json("verify")["findings"] == []


def test_a_reader_that_stops_early_is_no_error(cli, filled, tmp_path):
    command = f"{sys.executable} -m deep_gemm_jit cache ls | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=cli.env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.startswith("key") and "Traceback" not in done.stderr


@pytest.mark.parametrize("part", EVERY_PART)
def test_closed_outputs_are_no_error(cli, filled, tmp_path, part):
    for closed, silent in ((">&-", "stdout"), ("2>&-", "stderr"), (">&- 2>&-", "stdout")):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m deep_gemm_jit cache {part} {closed}"],
            env=cli.env, cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0 and getattr(done, silent) == "" and done.stderr == "", done


def test_files_of_another_user(cli, filled):
    if os.geteuid() != 0:
        pytest.skip("giving a file to another user needs root")
    os.chown(filled[0], NOBODY, NOBODY)
    check_found(cli, filled[0], "another user")


@pytest.mark.parametrize("part", EVERY_PART)
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_a_cache_folder_whose_name_is_no_utf8_works(part, locale, filled, cli, tmp_path, env):
    folder = os.fsdecode(bytes(tmp_path) + b"/caf\xe9 \xff")
    os.rename(env["DGJ_CACHE_DIR"], folder)
    changed = {"DGJ_CACHE_DIR": folder, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0"}
    text = os.fsdecode(cli.run(part, env=changed, binary=True))
    assert part in ("stats", "verify", "prune") or part == "ls" or folder in text, text
    cli.run(part, "--json", env=changed, binary=True)
    if part == "ls":
        assert [record["path"].startswith(folder) for record in cli.json(part, env=changed)] == [True] * 3
        key = filled[0].stem
        assert key in cli.run("show", key, env=changed, binary=True).decode(errors="replace")
    left = len(list(Path(folder).rglob("*.dgk")))
    assert left == (0 if part == "clear" else 3)


# The environment, and how the letter lambda comes out in a path and in a description.
STREAMS = {
    "ascii": ({"PYTHONIOENCODING": "ascii:strict"}, rb"\u03bb", rb"\u03bb"),
    # Paths are bytes to Python there.
    "ascii in the C locale": (
        {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        b"\xce\xbb",
        rb"\u03bb",
    ),
    "latin-1": ({"PYTHONIOENCODING": "latin-1:strict"}, rb"\u03bb", rb"\u03bb"),
    "utf-8": ({"PYTHONIOENCODING": "utf-8:strict"}, b"\xce\xbb", b"\xce\xbb"),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_texts_go_to_streams_that_lack_their_characters(stream, cli, filled, tmp_path, env):
    variables, in_path, in_text = STREAMS[stream]
    folder = os.fsdecode(bytes(tmp_path) + b"/\xce\xbb \xff")
    os.rename(env["DGJ_CACHE_DIR"], folder)
    broken, described = (Path(folder) / path.relative_to(env["DGJ_CACHE_DIR"]) for path in filled[:2])
    broken.write_bytes(b"no entry")  # ls, show and verify name its path
    meta, image = parts_of(described)
    facts = json.loads(meta) | {"plan": "plan of \u03bb", "log": "\u03bb\n"}
    text = json.dumps(facts, ensure_ascii=False).encode()
    described.write_bytes(entry_bytes(described.stem, text, image))
    changed = {"DGJ_CACHE_DIR": folder, **variables}

    def run(*words, code=0):
        cli.run(*words, "--json", env=changed, code=code, binary=True)
        return cli.run(*words, env=changed, code=code, binary=True)

    assert run("path").endswith(b"/" + in_path + b" \xff\n")
    listed = run("ls")
    assert b"plan of " + in_text + b"\n" in listed and b"/" + in_path + b" \xff/v1" in listed
    shown = run("show", described.stem)
    assert b"/" + in_path + b" \xff/v1" in shown and shown.endswith(b"\n  " + in_text + b"\n")
    assert b"/" + in_path + b" \xff/v1" in run("verify", code=1)
    run("show", broken.stem, code=1), run("stats"), run("prune"), run("clear")

"""P1-P3, P5, P6: the key, the entry, what is published and what a reader believes (docs/cache.md)."""

import hashlib
import json
import os
import shutil
import struct
from pathlib import Path
from random import Random

import pytest
from cpp.build import Driver
from cpp.cache import DAMAGES, FINGERPRINT, compiles, entries, unfinished


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


def cpu_flags():
    text = Path("/proc/cpuinfo").read_text()
    return set(text[text.find("flags") :].split("\n")[0].split())


def test_sha256(driver, tmp_path):
    data = bytes((7 * i + i // 256) % 128 for i in range(400))
    (tmp_path / "data").write_bytes(data)
    lines = driver.run("sha", tmp_path / "data").lines
    assert len(lines) == len(data) + 1
    assert ("hardware" in lines[0]) == ("sha_ni" in cpu_flags()), (
        "the SHA instructions are used where they are"
    )
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
    assert entries(root) == [] and unfinished(root) == []
    if compiler == "error":
        assert "no such thing" in result.lines[1]["message"]
    else:
        assert "ptxas info" in result.lines[1]["message"]
    assert driver.run("get", env=env).only["origin"] == "compiled"


def test_short_writes_are_continued(driver, root, env):
    driver.run("get", env=env, fault="write:1+:short")
    assert driver.run("get", env=env).only["origin"] == "disk"


def test_p4_an_entry_and_its_folder_reach_the_disk(driver, env):
    """The second key: the first one's publishing also makes folders and the tag."""
    assert " fsync=2 " in driver.run("keys", 2, env=env).lines[1]["calls"]


def test_p5_what_is_larger_than_any_kernel_is_not_read(driver, root, env):
    driver.run("get", env=env)
    (path,) = entries(root)
    os.truncate(path, 1 << 40)
    result = driver.run("get", env=env)
    assert result.only["origin"] == "compiled" and "read=" not in result.only["calls"]
    assert sum("larger than any kernel" in line for line in result.warnings) == 1
    assert driver.run("get", env=env).only["origin"] == "disk"


def test_p5_every_length_and_every_bit(driver, root, env):
    driver.run("get", env=env)
    (path,) = entries(root)
    assert driver.run("parse", path, env=env).only == {
        "sound": 1,
        "truncated": 0,
        "flipped": 0,
        "extended": 0,
    }


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


@pytest.mark.parametrize("change", [lambda image: image[:-1], lambda image: b"", lambda image: b"\0" * 500])
def test_p5_an_image_with_a_right_checksum_that_is_no_kernel(driver, root, env, change):
    driver.run("get", env=env)
    (path,) = entries(root)
    data = path.read_bytes()
    image_at = 56 + struct.unpack_from("<I", data, 12)[0]
    image = change(data[image_at:-32])
    body = data[:16] + struct.pack("<Q", len(image)) + data[24:image_at] + image
    path.write_bytes(body + hashlib.sha256(body).digest())
    assert driver.run("find", env=env).only["origin"] == "none"
    result = driver.run("get", env=env)
    assert (result.only["origin"], result.only["right_bytes"]) == ("compiled", 1)
    assert sum("its image is no kernel" in line for line in result.warnings) == 1
    assert driver.run("get", env=env).only["origin"] == "disk"


def test_p5_random_bits_of_a_big_entry(driver, root, env):
    driver.run("get", env=env, padding=60_000)
    (path,) = entries(root)
    sound = path.read_bytes()
    assert len(sound) > 60_000
    random = Random(5)
    for _ in range(30):
        data = bytearray(sound)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        result = driver.run("get", env=env, padding=60_000)
        assert (result.only["origin"], result.only["right_bytes"]) == ("compiled", 1)
        assert path.read_bytes()[:24] == sound[:24], "it heals"


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

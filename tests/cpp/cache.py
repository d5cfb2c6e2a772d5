"""What the tests of the cache share: the folder's layout, damages, and other users and read-only disks."""

import json
import os
import shutil
import subprocess

import pytest

NOBODY = 65534
FINGERPRINT = "nvrtc-13.0-abc-1"


def entries(root):
    return sorted(root.glob("v1/??/*.dgk"))


def unfinished(root):
    return sorted(root.glob("v1/tmp/*"))


def compiles(marker):
    return len(marker.read_text().splitlines()) if marker.exists() else 0


def wait_for_line(process):
    return json.loads(process.stdout.readline())


def snapshot(*folders):
    """Every path with all that a write would change."""
    paths = [path for folder in folders for path in [folder, *folder.rglob("*")]]
    return {
        path: (info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode)
        for path, info in ((path, path.lstat()) for path in paths)
    }


def make_old(path, hours):
    """Last changed `hours` ago; negative: in the future."""
    info = path.stat()
    then = info.st_mtime_ns - int(hours * 3600 * 10**9)
    os.utime(path, ns=(then, then))


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


def reach(folder):
    """Lets another user walk down to `folder`: pytest makes its own folders 0700."""
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == os.geteuid() and str(parent) not in ("/", "/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)


def in_mount_namespace(script: str) -> tuple[str, ...]:
    """A command prefix: what follows runs after `script`, which may mount. Skips where that is forbidden."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not create mount namespaces (unshare -m)")
    return (unshare, "-m", "--propagation", "private", "sh", "-c", f'{script} && exec "$@"', "sh")


def read_only(folder) -> tuple[str, ...]:
    return in_mount_namespace(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")

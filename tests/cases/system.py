#!/usr/bin/env python3
"""Machines as people have them: containers, quotas, refused system calls, odd file systems, neighbours."""
import os
import pathlib
import re
import subprocess
import sys

from harness import *

STREAMING = ["--memory", "24M"]


def needs_refusals():
    if os.uname().machine != "x86_64" or start([TOOLS / "refuse.py", "--uring", "true"]).status != 0:
        skip("needs seccomp filters on x86-64")


def io_uring_refused():
    """Where io_uring is forbidden, whole or in part, reads go another way, and the statistics say why."""
    needs_refusals()
    expected = text(MOE, *STREAMING)
    for options in (["--uring"], ["--uring", "--errno", 38], ["--uring", "--errno", 12], ["--syscalls", 426],
                    ["--syscalls", 427]):
        result = start([TOOLS / "refuse.py", *options, PROGRAM, "run", MOE, "-p", FOX, "-n", 12, *PLAIN, *STREAMING,
                        "--stats"], timeout=30)
        assert result.status == 0, (options, result)
        assert expected.strip() in result.out, (options, result.out)
        backend = re.search(r"backend\s+(.*)", result.all)
        assert backend, (options, result)
        if options != ["--syscalls", 427]:  # Registering is not needed for reading.
            assert "pread" in backend.group(1) and "io_uring" in backend.group(1), (options, backend.group(1))
    refused(start([TOOLS / "refuse.py", "--uring", PROGRAM, "run", MOE, "--io", "uring", "-p", "x", "-n", 1, *PLAIN]),
            "io_uring")


def no_locked_memory():
    """Without the right to lock memory the text is the same."""
    result = start(["sh", "-c", 'ulimit -l 0; exec "$@"', "sh", PROGRAM, "run", MOE, "-p", FOX, "-n", 12, *PLAIN,
                    *STREAMING])
    assert result.status == 0, result
    same(result.out, text(MOE, *STREAMING))


def direct_reads_refused():
    """On a file system without direct reads the text is the same, and the statistics say that reads are buffered."""
    needs_refusals()
    result = start([TOOLS / "refuse.py", "--direct", PROGRAM, "run", MOE, "-p", FOX, "-n", 12, *PLAIN, *STREAMING, "--stats"])
    assert result.status == 0, result
    assert text(MOE, *STREAMING).strip() in result.out, result.out
    assert "buffered" in result.all, result


def overlay():
    """A model on an overlay of folders, as in a container image, gives the same text."""
    if os.geteuid() != 0:
        skip("needs root for a mount")
    for name in ("lo", "up", "wk", "ov"):
        os.mkdir(name)
    pathlib.Path("lo/m.gguf").write_bytes(pathlib.Path(MOE).read_bytes())
    mounted = start(["unshare", "-m", "sh", "-c",
                     'mount -t overlay overlay -o lowerdir=lo,upperdir=up,workdir=wk ov || exit 99; exec "$@"', "sh",
                     PROGRAM, "run", "ov/m.gguf", "-p", FOX, "-n", 12, *PLAIN, *STREAMING])
    if mounted.status == 99:
        skip("no overlay of folders can be mounted here")
    assert mounted.status == 0, mounted
    same(mounted.out, text(MOE, *STREAMING))


def sectors_of_4096():
    """A drive with sectors of 4096 bytes, and one of 512 beside it as second copy, give the same text."""
    if os.geteuid() != 0:
        skip("needs root for a loop device")
    script = """
      set -e
      truncate -s 64M img
      device=$(losetup --show -f -b 4096 img) || exit 99
      trap 'umount mnt 2>/dev/null; losetup -d "$device"' EXIT
      mkfs.ext4 -q "$device" || exit 99
      mkdir mnt; mount "$device" mnt || exit 99
      cp "$1" mnt/m.gguf
      shift
      "$@" run mnt/m.gguf $RUN
      "$@" run mnt/m.gguf --second-copy "$MODEL" $RUN
    """
    result = start(["unshare", "-m", "bash", "-c", script, "bash", MOE, PROGRAM],
                   env={"RUN": "-p Once -n 12 --temp 0 --heat off --memory 24M", "MODEL": MOE})
    if result.status == 99:
        skip("no loop device can be made here")
    assert result.status == 0, result
    expected = text(MOE, *STREAMING, prompt="Once")
    same(result.out, expected + expected)


def one_core():
    """A process that may use one core computes with one thread; very many threads come to an end, too."""
    result = start(["taskset", "-c", "0", PROGRAM, "run", MOE, "-p", "x", "-n", 2, *PLAIN, "--json"])
    same(result.json["stats"]["n_threads"], 1, "threads on one core")
    expected = text(MOE, n=30)
    for n in (2, 16, 256):
        same(text(MOE, "--threads", n, n=30, timeout=60), expected, f"{n} threads")


def quota_of_half_a_core():
    """Under a quota of half a core the default is one thread, and of a core and a half no more than two."""
    group = pathlib.Path("/sys/fs/cgroup/cpu", f"sluice-case-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        skip("no group with a quota can be made here")
    try:
        for quota, most in ((50000, 1), (150000, 2)):
            (group / "cpu.cfs_quota_us").write_text(str(quota))
            result = start(["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", PROGRAM, "run", MOE, "-p", "x",
                            "-n", 2, *PLAIN, "--json"])
            n = result.json["stats"]["n_threads"]
            assert 1 <= n <= most, f"{n} threads under a quota of {quota} us of each 100000"
    finally:
        group.rmdir()


def two_in_one_group():
    """Two that start at once in a group with room for little more than one: nobody is killed, same text."""
    group = pathlib.Path("/sys/fs/cgroup/memory", f"sluice-case-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        skip("no group with a limit can be made here")
    try:
        (group / "memory.limit_in_bytes").write_text(str(44 << 20))
        expected = text(MOE, n=1000)
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", PROGRAM, "run", MOE, "-p", FOX, "-n",
                   "1000", *PLAIN]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        n_whole = 0
        for process in both:
            out, err = process.communicate(timeout=60)
            assert process.returncode >= 0 and process.returncode != 137, (process.returncode, err[-400:])
            if process.returncode == 0:
                same(out.decode(), expected)
                n_whole += 1
            else:
                assert b"memory" in err, err[-400:]
        assert n_whole >= 1, "neither came to its end"
        control = (group / "memory.oom_control").read_text()
        assert "oom_kill 0" in control or "oom_kill" not in control, control
    finally:
        group.rmdir()


if __name__ == "__main__":
    sys.exit(main([io_uring_refused, no_locked_memory, direct_reads_refused, overlay, sectors_of_4096, one_core,
                   quota_of_half_a_core, two_in_one_group]))

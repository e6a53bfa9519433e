#!/usr/bin/env python3
"""What users type and see: control bytes, signals, numbers from other programs' habits, bytes of prompt files."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from harness import *


def control_bytes(raw):
    """Bytes that a terminal obeys: C0 but newline and tab, DEL, C1 in UTF-8."""
    return re.findall(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", raw)


def escape_sequences():
    """No control byte of a file's names and texts reaches the terminal, nor one of its path."""
    path = craft("escapes", DRAFT, "esc.gguf")
    commands = [["inspect", path, "--tensors"], ["inspect", path, "--tensors", "--json"], ["plan", path],
                ["plan", path, "--json"], ["doctor", path],
                ["run", path, "-p", "Once", "-n", 4, "-v", *PLAIN],
                ["run", path, "-p", "Once", "-n", 4, "--json", *PLAIN]]
    odd = "no\x1b[31mfile\u009b5m.gguf"
    commands += [[command, odd] for command in ("inspect", "run", "plan", "doctor")]
    for command in commands:
        result = sluice(*command)
        found = control_bytes(result.raw_out + result.raw_err)
        assert not found, f"{' '.join(map(str, command))!r}: {found[:4]}"
        # One of its tensors is none that the architecture knows, so only `inspect` gets so far.
        assert (result.status == 0) == (command[0] == "inspect" and command[1] == path), result
        if "--json" in command and result.status == 0:
            json.loads(result.out)


def ends_by(signal_number, command, ready):
    """Starts the command, calls ready(process), sends the signal; its status and the seconds it then took."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL)
    try:
        ready(process)
        began = time.monotonic()
        process.send_signal(signal_number)
        process.communicate(timeout=20)
        return process.returncode, time.monotonic() - began
    finally:
        process.kill()


def signals_while_a_prompt_is_awaited():
    """A program that waits for its prompt ends by a signal, with the status that shells expect."""
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        name = f"p{number}"
        os.mkfifo(name)
        writers = []

        def ready(process):
            # Opening the other end returns when the program has opened its own: it waits for text from then on.
            writers.append(os.open(name, os.O_WRONLY))

        got, seconds = ends_by(number, [PROGRAM, "run", DRAFT, "-f", name, *PLAIN], ready)
        os.close(writers[0])
        assert got in (status, -number), (number, got)
        assert seconds < 3, f"{seconds:.1f} s after {number}"


def signals_as_process_one():
    """As process 1 of a container the program ends by a signal in every phase."""
    if os.geteuid() != 0 or start(["unshare", "--pid", "--fork", "--mount-proc", "true"]).status != 0:
        skip("needs root for a namespace of processes")
    os.mkfifo("p")
    keeper = os.open("p", os.O_RDWR)
    for seconds, name, command in ((2, "INT", ["run", DRAFT, "-f", "p", *PLAIN]), (0.3, "TERM", ["doctor", DRAFT]),
                                   (0.3, "TERM", ["profile", MOE, "--seconds", 20])):
        result = start([TOOLS / "pid1.sh", seconds, name, PROGRAM, *command], timeout=60)
        found = re.search(r"exit status (\d+) after ([\d.]+) s", result.out)
        assert found, result
        status, took = int(found.group(1)), float(found.group(2))
        assert status == {"INT": 130, "TERM": 143}[name], (command, result.out[-200:])
        # unshare and the model's opening count, too.
        assert took < seconds + 4, (command, result.out[-200:])
    os.close(keeper)


def minus_one():
    """-1, as other programs take it, is random or refused for the seed, never one fixed seed; others tell what 0 means."""
    seeds = set()
    for _ in range(3):
        result = sluice("run", DRAFT, "-p", "Once upon a time", "--seed", -1, "--temp", 1, "-n", 8, "--heat", "off", "--json")
        if result.status != 0:
            refused(result, "--seed", "0")
            continue
        seed = result.json["seed"]
        assert 0 < seed < 2**53, seed
        seeds.add(seed)
    assert len(seeds) != 1, f"the same seed three times: {seeds}"
    for option in ("-n", "--top-k", "--repeat-window", "--ctx", "--temp"):
        result = sluice("run", DRAFT, "-p", "x", option, -1, *(["-n", 1] if option != "-n" else []), "--heat", "off",
                        timeout=60)
        assert "Required but" not in result.err.title(), result
        if result.status != 0:
            name = "--max-tokens" if option == "-n" else option
            assert option in result.err or name in result.err, result


def prompt_files():
    """Of a prompt file the mark of its encoding and one final newline are dropped, CRLF is a newline, NUL stays."""
    def n_tokens(content):
        pathlib.Path("q").write_bytes(content)
        return sluice("run", DRAFT, "-f", "q", "-n", 5, "--json", *PLAIN).json["n_prompt_tokens"]

    plain = n_tokens(b"Once upon a time")
    same(n_tokens(b"Once upon a time\n"), plain, "one newline at the end")
    same(n_tokens(b"Once upon a time\r\n"), plain, "one newline of another system at the end")
    assert n_tokens(b"Once upon a time\n\n") > plain, "two newlines at the end"
    same(n_tokens(b"\xef\xbb\xbfOnce upon a time"), plain, "the mark of the encoding")
    assert n_tokens(b"Once upon\0a time") > plain, "NUL"
    same(n_tokens(b"One\r\nTwo"), n_tokens(b"One\nTwo"), "newlines of another system")


def nowhere_to_write():
    """Without a place for caches the text comes all the same, with one warning at most."""
    for values in ({"XDG_CACHE_HOME": "/dev/null"}, {"HOME": "/proc", "XDG_CACHE_HOME": ""},
                   {"HOME": "", "XDG_CACHE_HOME": ""}):
        result = sluice("run", "tales", "-p", "x", "-n", 2, "--temp", 0, env=values)
        assert result.status == 0 and result.out.strip(), (values, result)
        assert result.err.count("warning") <= 1, (values, result)


def nothing_to_read():
    """Without /proc and /sys the text comes, too."""
    if os.geteuid() != 0 or start(["unshare", "-m", "true"]).status != 0:
        skip("needs root for a namespace of mounts")
    script = 'mount -t tmpfs n /proc; mount -t tmpfs n /sys; exec "$@"'
    result = start(["unshare", "-m", "sh", "-c", script, "sh", PROGRAM, "run", MOE, "-p", FOX, "-n", 8, *PLAIN, "--stats"])
    assert result.status == 0, result
    assert text(MOE, n=8).strip() in result.out, result
    assert "from available memory" not in result.all, "nobody knows the available memory without /proc"


if __name__ == "__main__":
    sys.exit(main([escape_sequences, signals_while_a_prompt_is_awaited, signals_as_process_one, minus_one, prompt_files,
                   nowhere_to_write, nothing_to_read]))

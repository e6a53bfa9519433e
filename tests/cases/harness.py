"""Shared by the groups of cases: runs the program, keeps what it says, and reports each case by its name.

A case is a function without arguments whose first line of documentation says what must hold. It runs in an empty
folder of its own, with a home and a cache of its own. It fails by an AssertionError and is skipped by skip().
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

PROGRAM = os.environ["SLUICE_PROGRAM"]
MODELS = pathlib.Path(os.environ["SLUICE_MODELS"])
DATA = os.environ.get("SLUICE_TEST_DATA", "")
TOOLS = pathlib.Path(DATA, "..", "tools", "cases").resolve() if DATA else None

MOE = str(MODELS / "tales-29m-moe-Q4_K_M.gguf")
DRAFT = str(MODELS / "tales-draft-3.7m-Q8_0.gguf")
SPM = str(pathlib.Path(DATA, "models", "stories260K-f32.gguf"))
FOX = "Once upon a time, there was a little fox"
PLAIN = ["--temp", "0", "--heat", "off"]


class Skipped(Exception):
    pass


def skip(reason):
    raise Skipped(reason)


class Result:
    def __init__(self, status, out, err, seconds):
        self.status, self.raw_out, self.raw_err, self.seconds = status, out, err, seconds
        self.out, self.err = out.decode("utf8", "replace"), err.decode("utf8", "replace")

    @property
    def all(self):
        return self.out + self.err

    @property
    def json(self):
        assert self.status == 0, f"exit status {self.status}: {self.all.strip()[:600]}"
        return json.loads(self.out)

    def __repr__(self):
        return f"exit status {self.status}, printed {self.out[:300]!r}, told {self.err[-600:]!r}"


def start(command, *, env=None, stdin=None, timeout=60):
    """Runs any command; its result. One that takes longer than `timeout` seconds fails the case."""
    began = time.monotonic()
    try:
        done = subprocess.run([str(word) for word in command], input=stdin or b"", capture_output=True,
                              timeout=timeout, env={**os.environ, **(env or {})})
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"still running after {timeout} s: {' '.join(map(str, command))}") from error
    return Result(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def sluice(*words, **options):
    return start([PROGRAM, *words], **options)


def run(model, *words, prompt=FOX, n=12, **options):
    """`sluice run` of a prompt, greedy; the result."""
    return sluice("run", model, "-p", prompt, "-n", n, *PLAIN, *words, **options)


def text(model, *words, **options):
    """The text that `sluice run` prints."""
    result = run(model, *words, **options)
    assert result.status == 0, result
    return result.out


def craft(case, model, out, *args):
    """A file that craft.py makes of a model; its path."""
    made = start([sys.executable, TOOLS / "craft.py", case, model, out, *args])
    assert made.status == 0, made
    return str(out)


def refused(result, *parts):
    """The program ended with an error of its own that says all of `parts` (any case)."""
    assert 0 < result.status < 128, f"expected a refusal: {result}"
    for part in parts:
        assert part.lower() in result.err.lower(), f"the error does not say {part!r}: {result}"


def says(result, *parts):
    assert result.status == 0, result
    for part in parts:
        assert part.lower() in result.all.lower(), f"expected {part!r}: {result}"


def same(a, b, what="the texts differ"):
    assert a == b, f"{what}:\n  {a!r}\n  {b!r}"


def number_after(label, text_):
    found = re.search(re.escape(label) + r"\s+([\d.]+)", text_)
    assert found, f"no line {label!r} in {text_[-800:]!r}"
    return float(found.group(1))


def main(cases):
    """Runs the cases named on the command line, or all; the exit status for CTest (77: skipped)."""
    if TOOLS is None or not (TOOLS / "craft.py").is_file():
        print("skipped: needs the folder tools/cases beside SLUICE_TEST_DATA (see CONTRIBUTING.md)")
        return 77
    wanted = sys.argv[1:]
    n_failed = 0
    for case in cases:
        if wanted and case.__name__ not in wanted:
            continue
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-case-"))
        before = os.getcwd()
        os.chdir(folder)
        for name in ("home", "cache"):
            os.mkdir(name)
        os.environ["HOME"], os.environ["XDG_CACHE_HOME"] = str(folder / "home"), str(folder / "cache")
        began = time.monotonic()
        try:
            case()
            verdict = "ok"
        except Skipped as reason:
            verdict = f"skipped: {reason}"
        except Exception as error:
            n_failed += 1
            place = traceback.extract_tb(error.__traceback__)
            line = next((frame.lineno for frame in reversed(place) if frame.name == case.__name__), 0)
            verdict = f"FAILED at line {line}: {error}\n    {(case.__doc__ or '').strip().splitlines()[0]}"
        finally:
            os.chdir(before)
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{case.__name__} ({time.monotonic() - began:.1f} s): {verdict}", flush=True)
    return 1 if n_failed else 0

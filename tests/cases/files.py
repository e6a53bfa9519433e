#!/usr/bin/env python3
"""Model files as people have them: odd layouts, damaged downloads, old and foreign formats."""
import os
import pathlib
import sys

from harness import *


def shards(folder):
    return sorted(str(path) for path in pathlib.Path(folder).rglob("*.gguf") if path.parent.name != "blobs")


def raw_pieces():
    """Raw pieces of a file are named as such, with the command that joins them."""
    craft("part", MOE, "tales.gguf", 2)
    first, second = "tales.gguf.part1of2", "tales.gguf.part2of2"
    for piece in (first, second):
        for result in (sluice("inspect", piece), run(piece)):
            refused(result, "cat", first, second)
        doctor = sluice("doctor", piece)
        assert "cat" in doctor.all and first in doctor.all, doctor
    for a, b in (("m.gguf-split-a", "m.gguf-split-b"), ("n.gguf.00", "n.gguf.01"), ("o-part1.gguf", "o-part2.gguf")):
        os.link(first, a)
        os.link(second, b)
        refused(sluice("inspect", a), "cat", a, b)
        refused(sluice("inspect", b), "cat")


def holes():
    """Weights that never arrived are found by inspect, doctor and run, resident and streamed."""
    for name, percents in (("end", [60]), ("middle", [1, 60])):
        for model, budgets in ((DRAFT, ["64M"]), (MOE, ["64M", "24M"])):
            path = craft("zero-from", model, f"{name}.gguf", *percents)
            for budget in budgets:
                result = run(path, "--memory", budget)
                refused(result, "zero")
                assert "blk." in result.err or "token_embd" in result.err or "output" in result.err, result
            inspect = sluice("inspect", path)
            assert "zero" in inspect.all.lower(), inspect
            doctor = sluice("doctor", path)
            assert "zero" in doctor.all.lower(), doctor


def glued():
    """Bytes behind the last tensor are mentioned: a resumed download may have appended the file to itself."""
    whole = pathlib.Path(DRAFT).read_bytes()
    pathlib.Path("glued.gguf").write_bytes(whole + whole[:len(whole) // 2])
    inspect = sluice("inspect", "glued.gguf")
    assert inspect.status == 0 and "behind" in inspect.all.lower(), inspect


def alignment():
    """Any multiple of 8 as general.alignment gives the same text, at a budget that streams, too."""
    expected = text(MOE, "--memory", "24M")
    for n in (8, 16, 24, 40, 64, 4096, 65536):
        for fill in (1, 17, 33):
            path = craft("align", MOE, "a.gguf", n, fill)
            same(text(path, "--memory", "24M"), expected, f"alignment {n}, fill {fill}")


def one_tensor_per_expert():
    """Files with a tensor per expert run as merged ones do; a missing or other one is named."""
    expected = text(MOE, n=40)
    for how in ("same", "shuffle"):
        path = craft("split-experts", MOE, f"{how}.gguf", how)
        for budget in ("24M", "64M"):
            same(text(path, "--memory", budget, n=40), expected, f"{how} at {budget}")
    for how in ("drop", "mixed"):
        refused(run(craft("split-experts", MOE, f"{how}.gguf", how)), "blk.3.ffn_up")


def cache_of_the_hub():
    """Shards run through the links of a download cache, from any shard and any folder."""
    expected = text(MOE)
    craft("split", MOE, "hub", 3, "hf")
    links = shards("hub/snapshots")
    assert len(links) == 3, links
    for path in links:
        same(text(path, "--memory", "24M"), expected, path)
    blob = next(pathlib.Path("hub/blobs").iterdir())
    refused(sluice("inspect", blob), "-of-")


def emptied_shard():
    """A shard that has been emptied is named."""
    craft("split", MOE, "p", 3)
    pathlib.Path("p/model-00002-of-00003.gguf").write_bytes(b"")
    refused(sluice("inspect", "p/model-00001-of-00003.gguf"), "model-00002-of-00003.gguf")


def name_of_a_shard_that_is_none():
    """A whole model whose name claims shards runs, and so does a second copy of it."""
    expected = text(DRAFT, n=8)
    paths = []
    for folder in ("n1", "n2"):
        os.mkdir(folder)
        paths.append(f"{folder}/K-00001-of-00013.gguf")
        pathlib.Path(paths[-1]).write_bytes(pathlib.Path(DRAFT).read_bytes())
    same(text(paths[0], n=8), expected)
    same(text(paths[0], "--second-copy", paths[1], n=8), expected)


def shuffled_data():
    """Data in another order than the table: same text, same plan, about as many bytes read."""
    # What look-ahead reads depends on time.
    options = ["--memory", "24M", "--look-ahead", "off", "--json"]
    ordered = run(MOE, *options, n=40).json
    for seed in (1, 2, 3):
        path = craft("shuffle", MOE, "sh.gguf", seed)
        shuffled = run(path, *options, n=40).json
        same(shuffled["text"], ordered["text"])
        # The floor counts what the process itself takes, which differs from run to run.
        for figure, tolerance in (("planned_bytes", 0.01), ("floor_bytes", 0.06)):
            a, b = ordered["plan"][figure], shuffled["plan"][figure]
            assert abs(a - b) <= tolerance * a, (figure, a, b)
        a, b = ordered["stats"]["read_bytes"], shuffled["stats"]["read_bytes"]
        assert abs(a - b) <= 0.05 * a, ("bytes read", a, b)


def active_experts():
    """Any number of active experts gives one text for all budgets; impossible numbers are refused."""
    floors = []
    for n in (1, 3, 8, 31, 32):
        path = craft("experts-used", MOE, f"e{n}.gguf", n)
        floors.append(run(path, "--json", "--memory", "64M", n=1).json["plan"]["floor_bytes"])
        expected = text(path, "--memory", "64M", n=30)
        same(text(path, "--memory", "27M", n=30), expected, f"{n} experts at 27M")
    # The program's own share differs by some pages from run to run.
    assert all(b > a - 512 * 1024 for a, b in zip(floors, floors[1:])) and floors[-1] > floors[0], floors
    for n in (0, 33):
        refused(run(craft("experts-used", MOE, "bad.gguf", n)), "expert_used_count")


def removed_types():
    """Types that left the format are named, with the file to take instead."""
    for number, words in ((31, ["Q4_0_4_4", "Q4_0"]), (33, ["Q4_0_8_8", "Q4_0"]), (36, ["IQ4_NL"]), (4, ["removed"]),
                          (137, ["ik_llama"])):
        path = craft("removed-type", DRAFT, f"t{number}.gguf", number)
        result = sluice("inspect", path)
        refused(result, *words)
        assert "damaged" not in result.err, result


def untied_and_foreign_byte_order():
    """An output matrix of its own gives the same text; a big-endian file is refused by name."""
    same(text(craft("untie", MOE, "u.gguf"), "--memory", "64M"), text(MOE))
    refused(sluice("inspect", craft("big-endian", DRAFT, "be.gguf")), "big-endian")


def unknown_keys():
    """Keys nobody knows, nested arrays and numbers that JSON lacks change nothing and print valid JSON."""
    path = craft("extra-keys", MOE, "x.gguf")
    same(text(path), text(MOE))
    inspect = sluice("inspect", path, "--json").json
    assert inspect, "no JSON"


def half_precision_norms():
    """Norms kept as F16 run, with the text of the F32 file but for rounding."""
    path = craft("f16-norms", DRAFT, "h.gguf")
    result = run(path, "--json").json
    assert result["text"].strip(), result
    same(text(path, "--memory", "64M"), text(path))


if __name__ == "__main__":
    sys.exit(main([raw_pieces, holes, glued, alignment, one_tensor_per_expert, cache_of_the_hub, emptied_shard,
                   name_of_a_shard_that_is_none, shuffled_data, active_experts, removed_types,
                   untied_and_foreign_byte_order, unknown_keys, half_precision_norms]))

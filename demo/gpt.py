"""A small GPT, trained from scratch on the English of Python's own language reference, one eager step after another.

Nothing here knows about TPUs: it is the program that one writes for a GPU, with another device string. It trains, saves a
checkpoint, reads it back, samples from it, and then repeats the first steps on the CPU from the same weights to compare
the losses. Run it with ``python -m demo.gpt [--device tpu]``.
"""

from __future__ import annotations

import math
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from tqdm import tqdm

from .report import executables, heading, parse_device

CHECKPOINT = Path("build/demo/gpt.pt")
STEPS = 300
BATCH = 16
COMPARED_STEPS = 20
SAMPLED_TOKENS = 120
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Config:
    vocabulary: int = 512
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128


# The model


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.token.weight
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.05)
        for block in self.blocks:  # every block begins as the identity
            nn.init.zeros_(block.attention_out.weight)
            nn.init.zeros_(block.mlp[-1].weight)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# The text


def prose() -> str:
    """The paragraphs of Python's help topics that are plain English sentences, one a line."""
    paragraphs = (" ".join(paragraph.split()) for name in sorted(topics) for paragraph in topics[name].split("\n\n"))
    sentences = (p for p in paragraphs if len(p) > 80 and p[0].isupper() and p.endswith(".") and "**" not in p)
    return "\n".join(dict.fromkeys(sentences))


def byte_pair_tokenizer(text: str, size: int) -> Tokenizer:
    """A vocabulary of the ``size`` most useful pieces of ``text``, from single bytes up to whole words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Every stretch of ``length`` tokens, with the tokens that follow them."""

    def __init__(self, tokens: Tensor, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return len(self.tokens) - self.length

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[i : i + self.length + 1]
        return window[:-1], window[1:]


def batches(tokens: Tensor, length: int, steps: int) -> DataLoader[tuple[Tensor, Tensor]]:
    windows = Windows(tokens, length)
    sampler = RandomSampler(windows, replacement=True, num_samples=steps * BATCH, generator=torch.Generator().manual_seed(1))
    return DataLoader(windows, batch_size=BATCH, sampler=sampler)


# Training


class Run:
    """A model with its optimizer and learning-rate schedule: what a checkpoint holds."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        torch.manual_seed(0)
        self.model = GPT(config).to(device)  # initialised on the CPU, so that every device starts from the same weights
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up_then_cosine)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        logits = self.model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def train(self, tokens: Tensor, steps: int, title: str) -> list[float]:
        self.model.train()
        losses: list[Tensor] = []
        with tqdm(batches(tokens, self.config.context, steps), desc=title, unit="step", ncols=100) as progress:
            for inputs, targets in progress:
                losses.append(self.step(inputs, targets))
                if len(losses) % 10 == 0:
                    progress.set_postfix(loss=f"{losses[-1].item():.3f}")
        return torch.stack(losses).tolist()

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> float:
        """The mean loss over the first windows of ``tokens``."""
        self.model.eval()
        length = self.config.context
        windows = tokens[: 64 * length + 1]
        inputs, targets = windows[:-1].view(-1, length).to(self.device), windows[1:].view(-1, length).to(self.device)
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten()).item()

    @torch.no_grad()
    def sample(self, prompt: Tensor, count: int, temperature: float = 0.7) -> Tensor:
        """``prompt`` and ``count`` more tokens, each drawn from the model's distribution."""
        self.model.eval()
        length = self.config.context
        # The window keeps its size, so that every token runs the same executables.
        tokens = torch.zeros(1, length + count, dtype=torch.long, device=self.device)
        tokens[0, : len(prompt)] = prompt.to(self.device)
        for end in range(len(prompt), len(prompt) + count):
            start = max(0, end - length)
            logits = self.model(tokens[:, start : start + length])[0, end - start - 1]
            tokens[0, end] = torch.multinomial(F.softmax(logits / temperature, dim=-1), 1)[0]
        return tokens[0, : len(prompt) + count].cpu()

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = {"config": asdict(self.config), "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(parts | {"schedule": self.schedule.state_dict()}, path)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Run:
        parts = torch.load(path, map_location=device)
        run = cls(Config(**parts["config"]), device)
        run.model.load_state_dict(parts["model"])
        run.optimizer.load_state_dict(parts["optimizer"])
        run.schedule.load_state_dict(parts["schedule"])
        return run


def warm_up_then_cosine(step: int) -> float:
    if step < 20:
        return (step + 1) / 20
    return 0.05 + 0.95 * (1 + math.cos(math.pi * (step - 20) / (STEPS - 20))) / 2


# The demo


def run(device: torch.device) -> None:
    heading("A small GPT, trained in eager mode", device)
    config = Config()
    text = prose()
    tokenizer = byte_pair_tokenizer(text, config.vocabulary)
    tokens = torch.tensor(tokenizer.encode(text).ids)
    training, held_out = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]

    trained = Run(config, device)
    parameters = sum(p.numel() for p in trained.model.parameters())
    print(f"{parameters / 1e6:.2f} M parameters; {len(text):,} characters of English in {len(tokens):,} tokens")
    start = time.perf_counter()
    losses = trained.train(training, STEPS, f"training on {device.type}")
    seconds = time.perf_counter() - start
    before = trained.evaluate(held_out)
    print(f"{STEPS} steps in {seconds:.0f} s: loss {losses[0]:.3f} to {losses[-1]:.3f}, {before:.3f} on unseen text")

    trained.save(CHECKPOINT)
    reloaded = Run.load(CHECKPOINT, device)
    after = reloaded.evaluate(held_out)
    print(f"Saved to {CHECKPOINT} and loaded again: {after:.3f} on the same text")
    if after != before:
        raise SystemExit("The checkpoint did not give back the model that was saved.")

    torch.manual_seed(0)
    start = time.perf_counter()
    sample = reloaded.sample(torch.tensor(tokenizer.encode("The statement ").ids), SAMPLED_TOKENS)
    print(f"A sample ({SAMPLED_TOKENS / (time.perf_counter() - start):.0f} tokens a second):")
    print(textwrap.indent(textwrap.fill(tokenizer.decode(sample.tolist()), 96, replace_whitespace=False), "    "))

    on_cpu = Run(config, torch.device("cpu")).train(training, COMPARED_STEPS, "the same on cpu")
    difference = max(abs(a - b) for a, b in zip(losses, on_cpu))
    print(f"Largest difference of the first {COMPARED_STEPS} losses from the CPU's: {difference:.1e} (accepted: {TOLERANCE:.0e})")
    if not difference <= TOLERANCE:
        raise SystemExit("The losses differ from the CPU's.")


def main() -> None:
    device = parse_device(__doc__)
    run(device)
    executables(device)


if __name__ == "__main__":
    main()

"""Ordinary PyTorch programs give on the device what they give on the CPU: models, losses, optimizers, autocast, transforms."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .models import GPT, LSTMTagger, SmallResNet, UNetBlock

TPU = torch.device("tpu")


def on_device(x: Any) -> Any:
    def move(t: Any) -> Any:
        return t.detach().to(TPU).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t

    return torch.utils._pytree.tree_map(move, x)


def same(got: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    got = torch.utils._pytree.tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, got)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)


def forward_and_backward(model: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    out = model(*inputs)
    loss = out if out.dim() == 0 else out.float().square().mean()
    loss.backward()
    return [loss.detach()] + [p.grad for p in model.parameters() if p.grad is not None] + list(model.buffers())


# ---- models


class MoE(nn.Module):
    """Top-2 routing to four experts, as grouped matrix products over sorted tokens."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 32) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 32, width) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.gate(x).softmax(-1).topk(2)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.histc(flat.float(), bins=4, min=0, max=3)
        offsets = counts.cumsum(0).to(torch.int32)
        rows = x[order // 2]
        hidden = F.silu(torch._grouped_mm(rows, self.up, offs=offsets))
        out = torch._grouped_mm(hidden, self.down, offs=offsets) * scores.flatten()[order].unsqueeze(1)
        result = torch.zeros_like(x)
        result.index_put_((order // 2,), out, accumulate=True)
        return result


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.Conv1d(2, 4, 3, dilation=2), nn.Conv3d(2, 4, 2, stride=2, groups=2)
        self.back = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm1d(4), nn.InstanceNorm3d(4, affine=True), nn.GroupNorm(3, 3)])

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        x, y, z = self.norms[0](self.one(a)), self.norms[1](self.three(b)), self.norms[2](self.back(c))
        pooled = F.max_pool1d(x, 2).sum() + F.avg_pool3d(y, 2, ceil_mode=True).square().sum() + F.adaptive_max_pool2d(z, 2).sum()
        return pooled / 100


class RotaryAttention(nn.Module):
    """Grouped-query attention with rotary positions and RMS norm, over a cache that is written in place."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.size, self.heads, self.groups = width // heads, heads, groups
        self.norm = nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, n * self.size, bias=False) for n in (heads, groups, groups))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        angles = torch.outer(place, 1.0 / 10000 ** (torch.arange(0, self.size, 2, device=x.device) / self.size)).repeat(1, 2)
        half = torch.cat((-x[..., self.size // 2 :], x[..., : self.size // 2]), -1)
        return x * angles.cos() + half * angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        h = self.norm(x)
        q, k, v = (f(h).view(batch, length, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rotate(q), self.rotate(k)
        cache = torch.zeros(batch, self.groups, 2 * length, self.size, device=x.device)
        cache = cache.index_copy(2, torch.arange(length, device=x.device), k)
        mask = torch.ones(length, 2 * length, dtype=torch.bool, device=x.device).tril()
        values = F.pad(v, (0, 0, 0, length))
        return F.scaled_dot_product_attention(q, cache, values, attn_mask=mask, enable_gqa=True).transpose(1, 2).reshape(batch, length, -1)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "gpt": GPT.example,
    "lstm and gru": LSTMTagger.example,
    "resnet": SmallResNet.example,
    "unet": UNetBlock.example,
    "moe": lambda: (MoE(), (torch.randn(10, 16),)),
    "convolutions": lambda: (Convolutions(), (torch.randn(2, 2, 11), torch.randn(1, 2, 6, 6, 6), torch.randn(2, 2, 4, 4))),
    "rotary": lambda: (RotaryAttention(), (torch.randn(2, 6, 32),)),
    "transformer": lambda: (nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True), (torch.randn(2, 5, 16), torch.randn(2, 4, 16))),
    "embedding bag": lambda: (nn.EmbeddingBag(10, 4, mode="mean"), (torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 5]))),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_its_gradients_equal_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    moved = copy.deepcopy(model).to(TPU)
    same(forward_and_backward(moved, on_device(inputs)), forward_and_backward(model, inputs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_in_another_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, inputs = GPT.example()
    model = model.to(dtype)
    expected = forward_and_backward(copy.deepcopy(model).double(), inputs)
    tolerance = 1e-8 if dtype is torch.float64 else 0.05
    got = forward_and_backward(copy.deepcopy(model).to(TPU), on_device(inputs))
    same([g.double() for g in got], expected, rtol=tolerance, atol=tolerance)


# ---- losses

LOGITS, CLASSES = torch.randn(6, 5), torch.tensor([0, 2, 4, 1, -100, 3])
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "cross_entropy weighted": lambda x, y: F.cross_entropy(x, y, weight=torch.arange(1.0, 6, device=x.device), reduction="sum"),
    "cross_entropy probabilities": lambda x, y: F.cross_entropy(x, x.detach().softmax(-1)),
    "nll": lambda x, y: F.nll_loss(x.log_softmax(-1), y),
    "mse": lambda x, y: F.mse_loss(x, x.detach() * 2),
    "l1": lambda x, y: F.l1_loss(x, x.detach() * 2),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, x.detach() * 2, beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, x.detach() * 3),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), (x.detach() > 0).float()),
    "bce_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(
        x, (x.detach() > 0).float(), pos_weight=torch.full((5,), 2.0, device=x.device)
    ),
    "kl_div": lambda x, y: F.kl_div(x.log_softmax(-1), x.detach().softmax(0), reduction="batchmean"),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, x.detach().sign()),
    "multi_margin": lambda x, y: F.multi_margin_loss(x, y.clamp(min=0)),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, x.detach().sign()),
    "triplet": lambda x, y: F.triplet_margin_loss(x[:2], x[2:4], x[4:]),
    "cosine": lambda x, y: F.cosine_embedding_loss(x[:3], x[3:], torch.ones(3, device=x.device)),
    "poisson": lambda x, y: F.poisson_nll_loss(x, x.detach().abs()),
    "gaussian": lambda x, y: F.gaussian_nll_loss(x, x.detach() * 2, x.detach().abs() + 0.1),
    "ctc": lambda x, y: F.ctc_loss(
        x.view(6, 1, 5).log_softmax(-1), torch.tensor([[1, 2]], device=x.device), torch.tensor([6]), torch.tensor([2])
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_equal_the_cpu(name: str) -> None:
    def run(device: str) -> list[torch.Tensor]:
        x = LOGITS.to(device).requires_grad_()
        loss = LOSSES[name](x, CLASSES.to(device))
        return [loss, *torch.autograd.grad(loss, x)]

    same(run("tpu"), [t.detach() for t in run("cpu")])


# ---- optimizers

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], bool]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, True),
    "Adam": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}, True),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "maximize": True}, True),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}, True),
    "Adadelta": (torch.optim.Adadelta, {}, False),
    "Adamax": (torch.optim.Adamax, {}, False),
    "NAdam": (torch.optim.NAdam, {}, False),
    "RAdam": (torch.optim.RAdam, {}, False),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}, False),
    "Rprop": (torch.optim.Rprop, {}, False),
    "ASGD": (torch.optim.ASGD, {}, False),
    "Adafactor": (torch.optim.Adafactor, {}, False),
    "LBFGS": (torch.optim.LBFGS, {"max_iter": 3}, False),
    "Muon": (torch.optim.Muon, {"lr": 0.1}, False),
}
KINDS = [
    (name, kind)
    for name, (_, _, fused) in OPTIMIZERS.items()
    for kind in ("default", *(() if name in ("Adafactor", "LBFGS", "Muon") else ("foreach", "single")), *(("fused",) if fused else ()))
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_optimizer_steps_as_on_the_cpu(name: str, kind: str) -> None:
    made, options, _ = OPTIMIZERS[name]
    options = options | {"foreach": {"foreach": True}, "single": {"foreach": False}, "fused": {"fused": True}}.get(kind, {})

    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        shapes = ((4, 3), (3, 2)) if name == "Muon" else ((4, 3), (3,))
        parameters = [torch.randn(shape).to(device).requires_grad_() for shape in shapes]
        optimizer = made(parameters, **options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum((p.square() * torch.arange(1.0, 1 + p.numel(), device=device).view(p.shape)).sum() for p in parameters)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 10.0)
            return loss

        for _ in range(3):
            optimizer.step(closure)
            scheduler.step()
        return [p.detach() for p in parameters]

    tolerance = 2e-2 if name == "Muon" else 1e-4  # Muon iterates in bfloat16
    same(train("tpu"), train("cpu"), rtol=tolerance, atol=tolerance)


def test_gradient_scaling_skips_a_step_with_infinities() -> None:
    def train(device: str) -> list[Any]:
        p = torch.ones(3, device=device, requires_grad=True)
        optimizer, scaler = torch.optim.SGD([p], lr=0.1), torch.amp.GradScaler(device, init_scale=4.0, growth_interval=1)
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale((p * factor).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return [p.detach(), scaler.get_scale()]

    same(train("tpu"), train("cpu"))


# ---- random numbers


def test_a_seed_gives_the_same_numbers_in_another_process() -> None:
    program = (
        "import torch\ntorch.manual_seed(5)\n"
        "x = [torch.rand(3, device='tpu'), torch.randn(2, device='tpu'), torch.randperm(5, device='tpu').float(),"
        " torch.nn.functional.dropout(torch.ones(8, device='tpu')), torch.multinomial(torch.ones(4, device='tpu'), 2).float()]\n"
        "print(torch.cat(x).tolist())"
    )
    outputs = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(outputs) == 1 and "[" in outputs.pop()


def test_generators_and_fork_rng() -> None:
    torch.manual_seed(1)
    first = torch.rand(4, device=TPU)
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(4, device=TPU)
    second = torch.rand(4, device=TPU)
    torch.manual_seed(1)
    assert torch.equal(first, torch.rand(4, device=TPU)) and torch.equal(second, torch.rand(4, device=TPU))
    generator = torch.Generator("tpu").manual_seed(3)
    drawn = torch.randn(4, generator=generator, device=TPU)
    assert torch.equal(drawn, torch.randn(4, generator=generator.manual_seed(3), device=TPU))
    assert not torch.equal(drawn, torch.randn(4, generator=generator, device=TPU))


# ---- autocast, transforms, autograd


def test_autocast_lowers_matrix_products_and_keeps_losses_in_float32() -> None:
    torch.manual_seed(0)
    model, inputs = GPT.example()
    moved, inputs = model.to(TPU), on_device(inputs)
    with torch.autocast("tpu"):
        assert torch.get_autocast_dtype("tpu") is torch.bfloat16
        hidden = moved.blocks[0].mlp(torch.randn(2, 32, device=TPU))
        loss = moved(*inputs)
    assert hidden.dtype is torch.bfloat16 and loss.dtype is torch.float32
    loss.backward()
    assert all(p.grad.dtype is torch.float32 for p in moved.parameters())
    with torch.autocast("tpu", dtype=torch.float16):
        assert (torch.ones(2, 2, device=TPU) @ torch.ones(2, 2, device=TPU)).dtype is torch.float16
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(torch.full((2,), 0.5, device=TPU), torch.ones(2, device=TPU))


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.cumsum(0)).sum() + x.prod()


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": torch.func.grad(function),
    "jacrev": torch.func.jacrev(torch.sin),
    "jacfwd": torch.func.jacfwd(torch.tanh),
    "hessian": torch.func.hessian(function),
    "vmap": lambda x: torch.func.vmap(lambda row: row @ row)(x.outer(x)),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(function))(x.outer(x)),
    "jvp": lambda x: torch.func.jvp(function, (x,), (torch.ones_like(x),)),
    "double backward": lambda x: _double_backward(x),
    "checkpoint": lambda x: _checkpointed(x),
}


def _double_backward(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(function(x), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def _checkpointed(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(checkpoint(function, x, use_reentrant=False), x)[0]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_equals_the_cpu(name: str) -> None:
    x = torch.linspace(0.1, 1.2, 5)
    same(TRANSFORMS[name](x.to(TPU)), torch.utils._pytree.tree_map(lambda t: t.detach(), TRANSFORMS[name](x)))


def test_hooks_see_gradients_and_may_change_them() -> None:
    x = torch.ones(3, device=TPU, requires_grad=True)
    seen = []
    x.register_hook(lambda grad: grad * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    (x * 3).sum().backward()
    assert seen == [[6.0, 6.0, 6.0]]


def test_dropout_of_a_checkpoint_is_the_same_when_recomputed() -> None:
    x = torch.ones(64, device=TPU, requires_grad=True)
    out = checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())

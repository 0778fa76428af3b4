"""``torch.tpu.compiler.train_step``: after every step, module, optimizer and loss are what an ordinary step on the CPU leaves."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests import models
from torch_tpu import _C

close = torch.testing.assert_close
train_step = torch.tpu.compiler.train_step


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    yield


def agree(model, inputs, make, *, steps=3, schedule=None, clip=None, rtol=1e-3, atol=1e-4):
    """Train on both devices, and compare everything; returns the compiled step."""
    on_tpu = copy.deepcopy(model).to("tpu")
    theirs, ours = make(model.parameters()), make(on_tpu.parameters())
    schedules = [schedule(each) for each in (theirs, ours)] if schedule is not None else []
    step = train_step(on_tpu, ours, max_grad_norm=clip)
    for _ in range(steps):
        theirs.zero_grad()
        loss = model(*inputs)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        theirs.step()
        close(step(*(x.to("tpu") for x in inputs)).cpu(), loss.detach(), rtol=rtol, atol=atol)
        for each in schedules:
            each.step()
    for (name, a), b in zip(model.state_dict().items(), on_tpu.state_dict().values()):
        close(b.cpu(), a, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
    for a, b in zip(theirs.state_dict()["state"].values(), ours.state_dict()["state"].values()):
        for name, value in a.items():
            if isinstance(value, torch.Tensor):
                close(b[name].cpu(), value, rtol=10 * rtol, atol=atol, msg=lambda text, name=name: f"state {name}: {text}")
    return step


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, y):
        return F.mse_loss(self.layers(x), y)

    @classmethod
    def example(cls):
        return cls(), (torch.randn(6, 4), torch.randn(6, 1))


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.05, lr_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    agree(*Regression.example(), OPTIMIZERS[name])


@pytest.mark.parametrize("model", [models.GPT, models.SmallResNet])
def test_models(model):
    agree(*model.example(), lambda p: torch.optim.AdamW(p, 1e-3), steps=2)


def test_a_schedule_and_clipping_do_not_compile_anew():
    step = agree(
        *Regression.example(), lambda p: torch.optim.AdamW(p, 0.01), steps=4, clip=0.1,
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    )  # fmt: skip
    assert len(step.traced) == 1


def test_groups_of_parameters_and_frozen_ones():
    model, inputs = Regression.example()
    model.layers[0].bias.requires_grad_(False)

    def make(parameters):
        parameters = list(parameters)
        return torch.optim.SGD([{"params": parameters[:1], "lr": 0.1}, {"params": parameters[2:], "weight_decay": 0.1}], 0.01)

    agree(model, inputs, make)


def test_parameters_are_updated_in_their_own_memory():
    model, inputs = Regression.example()
    model.to("tpu")
    step = train_step(model, torch.optim.AdamW(model.parameters(), 0.01))
    batch = [x.to("tpu") for x in inputs]
    step(*batch)
    weight = model.layers[0].weight
    address = _C.base(weight).unsafe_buffer_pointer()
    step(*batch)
    assert _C.base(weight).unsafe_buffer_pointer() == address and weight.grad is None


def test_a_loss_function_of_ones_own_with_more_results_and_autocast():
    model = nn.Linear(4, 3).to("tpu")

    def loss_fn(model, x, *, targets):
        with torch.autocast("tpu", dtype=torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float(), targets), {"logits": logits}

    step = train_step(model, torch.optim.SGD(model.parameters(), 0.1), loss_fn)
    loss, more = step(torch.randn(5, 4), targets=torch.tensor([0, 1, 2, 0, 1]))
    assert loss.device.type == "tpu" and not loss.requires_grad
    assert more["logits"].shape == (5, 3) and more["logits"].dtype == torch.bfloat16


class Dropping(nn.Module):
    def __init__(self, checkpointed: bool = False):
        super().__init__()
        self.layer, self.checkpointed = nn.Linear(32, 32), checkpointed

    def block(self, x):
        return F.dropout(self.layer(x), 0.5, True).square()

    def forward(self, x):
        return (checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)).mean()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_dropout_is_eagers(checkpointed):
    model = Dropping(checkpointed).to("tpu")
    eager = copy.deepcopy(model)
    ours, theirs = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(eager.parameters(), 0.1)
    x, step = torch.randn(8, 32, device="tpu"), train_step(model, ours)
    torch.manual_seed(7)
    losses = [step(x), step(x)]
    torch.manual_seed(7)
    for loss in losses:
        theirs.zero_grad()
        expected = eager(x)
        expected.backward()
        theirs.step()
        close(loss, expected.detach())
    close(model.layer.weight, eager.layer.weight)


def test_what_a_step_cannot_be_made_of():
    model = nn.Linear(2, 2).to("tpu")
    with pytest.raises(ValueError, match="parameters that are not the model's"):
        train_step(model, torch.optim.SGD(nn.Linear(2, 2).to("tpu").parameters(), 0.1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(ValueError, match="step hooks"):
        train_step(model, optimizer)


def test_a_state_dict_loaded_between_two_steps_is_what_the_next_one_starts_from():
    model, inputs = Regression.example()
    model.to("tpu")
    batch = [x.to("tpu") for x in inputs]
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step = train_step(model, optimizer)
    step(*batch)
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    first = [step(*batch), step(*batch)]
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    close(torch.stack([step(*batch), step(*batch)]), torch.stack(first))

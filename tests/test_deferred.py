"""DEFER_AND_FUSE gives what strict gives, in few executables that are reused, and says what it did."""

from __future__ import annotations

import copy
import gc
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from torch_tpu import _C
from torch_tpu.eager import fusion_report as reporting
from torch_tpu.eager.fusion_report import fusion_report
from torch_tpu.eager.modes import EagerMode, current_mode, set_eager_mode
from torch_tpu.lowerings import TABLE

from .models import GPT, LSTMTagger, SmallResNet, UNetBlock
from .view_programs import ViewProgram, programs, run

EXAMPLES = int(os.environ.get("TORCH_TPU_DEFERRED_EXAMPLES", "60"))
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


def deferred() -> Any:
    return set_eager_mode(EagerMode.DEFER_AND_FUSE)


# ---- the same values as strict


@settings(max_examples=EXAMPLES, **QUIET)
@given(programs)
def test_chains_of_views_and_writes_equal_the_cpu(program: ViewProgram) -> None:
    expected, writes = run(program, "cpu")
    for _ in range(2):  # the first time op by op, the second time fused
        with deferred():
            got, _ = run(program, "tpu", writes)
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g, e, rtol=0, atol=0, equal_nan=True)


OPS: dict[str, Callable[[list[torch.Tensor], int, int], Any]] = {
    "add": lambda r, i, j: r[i] + r[j],
    "mul": lambda r, i, j: r[i] * r[j],
    "scale": lambda r, i, j: r[i] * (j + 0.5),
    "tanh": lambda r, i, j: r[i].tanh(),
    "matmul": lambda r, i, j: r[i] @ r[j] * 0.1,
    "row": lambda r, i, j: r[i][j % 4].expand(4, 4),
    "transpose": lambda r, i, j: r[i].t(),
    "sum": lambda r, i, j: r[i].sum(0, keepdim=True).expand(4, 4) * 0.1,
    "write": lambda r, i, j: r[i].clone().fill_(0.25 * j),
    "inplace": lambda r, i, j: r[i].clone().add_(r[j]),
    "write_row": lambda r, i, j: _write_row(r[i].clone(), r[j], j),
    "random": lambda r, i, j: torch.rand(4, 4, device=r[i].device),
    "dropout": lambda r, i, j: nn.functional.dropout(r[i], 0.5),
    "read": lambda r, i, j: r[i] * (1.0 if r[j].sum().item() > 0 else -1.0),
    "error": lambda r, i, j: _wrong(r[i]),
    "drop": lambda r, i, j: r.pop(0) if len(r) > 3 else r[i],
    "synchronize": lambda r, i, j: (torch.accelerator.synchronize(), r[i])[1],
}


def _write_row(x: torch.Tensor, value: torch.Tensor, j: int) -> torch.Tensor:
    x[j % 4] = value[0]
    return x


def _wrong(x: torch.Tensor) -> torch.Tensor:
    with pytest.raises(RuntimeError):
        x @ torch.zeros(3, 3, device=x.device)
    return x


def run_ops(program: list[tuple[str, int, int]]) -> list[torch.Tensor]:
    torch.manual_seed(7)
    registers = [torch.linspace(-1, 1, 16, device="tpu").reshape(4, 4), torch.eye(4, device="tpu")]
    for name, i, j in program:
        registers.append(OPS[name](registers, i % len(registers), j % len(registers)))
    return [r.cpu() for r in registers]


@settings(max_examples=EXAMPLES, **QUIET)
@given(st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_programs_with_reads_random_numbers_and_errors_equal_strict(program: list[tuple[str, int, int]]) -> None:
    expected = run_ops(program)
    for _ in range(2):
        with deferred():
            got = run_ops(program)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def train(model: nn.Module, inputs: tuple[torch.Tensor, ...], steps: int = 4) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses = []
    for _ in range(steps):
        loss = model(*inputs)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return [loss.cpu() for loss in losses] + [p.detach().cpu() for p in model.parameters()]


MODELS = {"gpt": GPT, "lstm": LSTMTagger, "resnet": SmallResNet, "unet": UNetBlock}


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_trains_as_in_strict(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name].example()
    inputs = tuple(x.to("tpu") for x in inputs)
    expected = train(copy.deepcopy(model).to("tpu"), inputs)
    with deferred():
        got = train(copy.deepcopy(model).to("tpu"), inputs)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


# ---- few executables, reused


@pytest.mark.parametrize("read_loss", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_training_loop_compiles_nothing_after_its_third_step(read_loss: bool, by_hand: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs, targets = torch.rand(4, 8).to("tpu"), torch.tensor([0, 1, 2, 1]).to("tpu")
    with deferred(), fusion_report() as report:
        for step in range(12):
            if step == 3:
                torch.tpu.synchronize() if read_loss else None
                settled = len(report.flushes)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            if by_hand:
                with torch.no_grad():
                    for p in model.parameters():
                        p.sub_(p.grad, alpha=0.1 / (step + 1))
                        p.grad = None
            else:
                optimizer.step()
                optimizer.zero_grad()
            if read_loss:
                loss.item()
        late = report.flushes[settled:]
    assert late and {flush.outcome for flush in late[:-1]} == {"fused"}


def test_a_changing_number_does_not_compile_anew() -> None:
    x = torch.ones(4, device="tpu")
    with deferred(), fusion_report() as report:
        for i in range(6):
            (x * (0.1 * i) + i).tolist()
    assert report.compilations == 1


def test_a_trace_seen_once_is_not_compiled() -> None:
    x = torch.ones(4, device="tpu")
    with deferred(), fusion_report() as report:
        (x.exp() + x.sin() - 3).tolist()
    assert [flush.outcome for flush in report.flushes] == ["one by one"]


def test_values_that_nobody_can_see_are_never_produced() -> None:
    with deferred(), fusion_report() as report:
        for _ in range(2):
            x = torch.ones(1000, device="tpu")
            for _ in range(5):
                x = x + 1
            total = x.sum()
            del x
            total.item()
    assert report.flushes[-1].results == 1 and report.flushes[-1].ops == 7


def test_long_chains_are_cut_where_they_repeat_and_share_an_executable() -> None:
    x = torch.zeros(8, 8, device="tpu")
    with deferred(), fusion_report() as report:
        for _ in range(600):
            x = x + 1
        assert x[0, 0].item() == 600
    assert report.compilations <= 3 and len(report.flushes) < 30


def test_a_dying_input_gives_its_memory_to_the_result() -> None:
    x = torch.zeros(1024, device="tpu")
    x.add_(1)
    for _ in range(3):
        place = _C.base(x).unsafe_buffer_pointer()
        with deferred():
            x.add_(1).mul_(2)
    assert _C.base(x).unsafe_buffer_pointer() == place


# ---- fences


FENCES: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "print": lambda x: repr(x),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "synchronize": lambda x: torch.accelerator.synchronize(),
    "event": lambda x: torch.Event("tpu").record(),
    "jax": lambda x: torch.tpu.to_jax(x),
    "mark_step": lambda x: torch.tpu.mark_step(),
    "dlpack": lambda x: torch.utils.dlpack.to_dlpack(x),
}


@pytest.mark.parametrize("name", FENCES)
def test_a_fence_runs_what_was_recorded(name: str) -> None:
    x = torch.ones(3, device="tpu")
    with deferred(), fusion_report() as report:
        y = x + 1
        FENCES[name](y)
        assert report.flushes, f"{name} did not flush"
    assert y.tolist() == [2.0, 2.0, 2.0]


def test_strict_code_on_another_thread_sees_deferred_values() -> None:
    seen = []
    with deferred():
        x = torch.ones(3, device="tpu") * 5
        thread = threading.Thread(target=lambda: seen.append((x + 1).tolist()))
        thread.start()
        thread.join()
    assert seen == [[6.0, 6.0, 6.0]]


def test_four_threads_with_modes_of_their_own() -> None:
    results: dict[int, float] = {}
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            with set_eager_mode(EagerMode.DEFER_AND_FUSE if n % 2 else EagerMode.STRICT):
                x = torch.full((16,), float(n), device="tpu", requires_grad=True)
                for _ in range(10):
                    y = ((x * 2 + 1).tanh() * x).sum()
                    (grad,) = torch.autograd.grad(y, x)
                results[n] = grad.sum().item()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for n in range(4):
        x = torch.full((16,), float(n), requires_grad=True)
        (grad,) = torch.autograd.grad(((x * 2 + 1).tanh() * x).sum(), x)
        assert results[n] == pytest.approx(grad.sum().item(), rel=1e-4)


def test_a_backward_runs_in_the_mode_of_its_call() -> None:
    modes = []
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: modes.append(current_mode()))
    with deferred():
        y.sum().backward()
    assert modes == [EagerMode.DEFER_AND_FUSE] and current_mode() is EagerMode.STRICT


# ---- errors and reports


def test_a_failure_names_the_op_and_the_line_that_recorded_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    def broken(*args: Any) -> Any:
        raise ValueError("broken on purpose")

    overload = torch.ops.aten.erfinv.default
    monkeypatch.setitem(TABLE, overload, dataclasses.replace(TABLE[overload], function=broken))
    _C.clear_entries()
    with deferred():
        x = torch.full((3, 5), 0.5, device="tpu")
        y = x.erfinv()  # recorded here
        with pytest.raises(ValueError, match="broken on purpose") as raised:
            y.cpu()
        assert any("test_deferred.py" in note for note in raised.value.__notes__)
        with pytest.raises(RuntimeError, match="no value"):
            y + 1
    monkeypatch.undo()
    _C.clear_entries()
    assert (torch.full((3, 5), 0.5, device="tpu").erfinv() > 0).all()


def test_the_report_names_reasons_and_lines() -> None:
    x = torch.ones(3, device="tpu")
    with deferred(), fusion_report() as report:
        (x + 1).tolist()
    assert report.reasons == {"a value is read": 1}
    assert "test_deferred.py" in report.flushes[0].line and "1 flushes" in str(report)


def test_a_storm_of_host_reads_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(3, device="tpu")
    with deferred(), caplog.at_level(logging.WARNING):
        for _ in range(2 * reporting.STORM_FLUSHES):
            x.sum().item()
    assert sum("with fewer than" in record.message for record in caplog.records) == 1


def test_live_memory_never_exceeds_strict() -> None:
    torch.manual_seed(0)
    model, inputs = GPT.example()
    inputs = tuple(x.to("tpu") for x in inputs)
    peaks = []
    for mode in (EagerMode.STRICT, EagerMode.DEFER_AND_FUSE):
        copied = copy.deepcopy(model).to("tpu")
        gc.collect()
        torch.tpu.reset_peak_memory_stats()
        start = torch.tpu.memory_allocated()
        with set_eager_mode(mode):
            train(copied, inputs)
        peaks.append(torch.tpu.max_memory_allocated() - start)
        del copied
    assert peaks[1] <= peaks[0]

"""Modes: strict, debug, and the switches for NaNs, CPU fallback and precision."""

from __future__ import annotations

import contextlib
import logging
import math
import threading

import pytest
import torch
import torch.nn.functional as F

from tests.subprocesses import run

EagerMode = torch.tpu.EagerMode
debug = EagerMode.DEBUG


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="tpu")


# ---- choosing a mode


def test_the_names_of_the_modes():
    assert EagerMode.STRICT is EagerMode.DEFER_NEVER
    assert EagerMode.DEBUG is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    assert torch.tpu.eager_mode is EagerMode.STRICT


@contextlib.contextmanager
def process_mode(mode):
    previous = torch.tpu.eager_mode
    torch.tpu.eager_mode = mode
    try:
        yield
    finally:
        torch.tpu.eager_mode = previous


def is_debug() -> bool:
    try:
        ints(1, 2).index_select(0, ints(7))
    except IndexError:
        return True
    return False


def test_the_mode_of_the_process():
    assert not is_debug()
    with process_mode(debug):
        assert torch.tpu.eager_mode is debug and is_debug()
    assert not is_debug()


def test_the_mode_of_a_block():
    with torch.tpu.set_eager_mode(debug):
        assert is_debug()
        with torch.tpu.set_eager_mode(EagerMode.STRICT):
            assert not is_debug()
        assert is_debug()
    assert not is_debug()


def test_the_mode_of_a_block_wins_over_that_of_the_process():
    with process_mode(debug), torch.tpu.set_eager_mode(EagerMode.STRICT):
        assert not is_debug()


def test_the_mode_of_a_block_is_of_the_thread():
    seen = []
    with torch.tpu.set_eager_mode(debug):
        thread = threading.Thread(target=lambda: seen.append(is_debug()))
        thread.start()
        thread.join()
    assert seen == [False]


class BadGradient(torch.autograd.Function):
    """Reads out of bounds in its backward, on autograd's own thread."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.index_select(0, ints(5, 0))


def test_a_backward_runs_in_the_mode_of_its_call():
    def backward():
        BadGradient.apply(torch.ones(2, device="tpu", requires_grad=True)).sum().backward()

    backward()
    with torch.tpu.set_eager_mode(debug), pytest.raises(IndexError, match="index 5"):
        backward()
    backward()


@pytest.mark.parametrize("mode", ["debug", 1, None])
def test_what_is_no_mode_is_refused(mode):
    with pytest.raises(TypeError, match="expected one of EagerMode.STRICT, EagerMode.DEBUG, EagerMode.DEFER_AND_FUSE"):
        torch.tpu.eager_mode = mode
    with pytest.raises(TypeError, match="as the eager mode"), torch.tpu.set_eager_mode(mode):
        pass


def test_the_environment_chooses_the_first_mode():
    program = "import torch_tpu, torch; print(torch.tpu.eager_mode, torch.tpu.is_initialized())"
    assert run(program, TORCH_TPU_LAUNCH_BLOCKING="1").strip() == "EagerMode.DEBUG False"


# ---- debug mode


def test_debug_mode_gives_the_results_of_strict_mode():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3)).tpu()
    tokens, targets = ints(1, 5, 9), ints(0, 2, 1)

    def gradients():
        model.zero_grad()
        F.cross_entropy(model(tokens), targets).backward()
        return [p.grad.cpu() for p in model.parameters()]

    strict = gradients()
    with torch.tpu.set_eager_mode(debug):
        assert all(torch.equal(a, b) for a, b in zip(strict, gradients(), strict=True))


def table() -> torch.Tensor:
    return torch.zeros(10, 3, device="tpu")


WRONG = {
    "gather": (lambda: torch.gather(table(), 1, torch.tensor([[0, 1], [2, 3]], device="tpu")), "3 at position (1, 1)", "1 with size 3"),
    "index_select": (lambda: table().index_select(0, ints(0, 12)), "12 at position (1,)", "0 with size 10"),
    "embedding": (lambda: F.embedding(torch.tensor([[0, 1], [2, 10]], device="tpu"), table()), "10 at position (1, 1)", "0 with size 10"),
    "scatter": (lambda: table().scatter_(0, torch.tensor([[-1, 0]], device="tpu"), 1.0), "-1 at position (0, 0)", "0 with size 10"),
    "scatter_add": (
        lambda: table().scatter_add(1, torch.tensor([[4]], device="tpu"), torch.ones(1, 1, device="tpu")),
        "4 at position (0, 0)", "1 with size 3",
    ),
    "scatter_reduce": (
        lambda: table().scatter_reduce_(0, torch.tensor([[10]], device="tpu"), torch.ones(1, 1, device="tpu"), "amax"),
        "10 at position (0, 0)", "0 with size 10",
    ),
    "index_add": (lambda: table().index_add_(1, ints(3), torch.ones(10, 1, device="tpu")), "3 at position (0,)", "1 with size 3"),
    "index_copy": (lambda: table().index_copy(0, ints(11), torch.ones(1, 3, device="tpu")), "11 at position (0,)", "0 with size 10"),
    "index_fill": (lambda: table().index_fill_(0, ints(1, 10), 1.0), "10 at position (1,)", "0 with size 10"),
    "index": (lambda: table()[ints(0, -11)], "-11 at position (1,)", "0 with size 10"),
    "index_put": (lambda: table().__setitem__((slice(None), ints(3)), 1.0), "3 at position (0,)", "1 with size 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_debug_mode_names_the_index_that_is_out_of_range(name):
    wrong, value, dimension = WRONG[name]
    with torch.tpu.set_eager_mode(debug), pytest.raises(IndexError) as caught:
        wrong()
    text, place = str(caught.value).split("\n")
    assert text == f"tpu: {name}(): index {value} is out of range for dimension {dimension}"
    assert place.startswith(f"  at {__file__}:") and "lambda" in place


@pytest.mark.parametrize("loss", [F.nll_loss, F.cross_entropy])
def test_debug_mode_names_the_class_that_is_out_of_range(loss):
    scores = torch.zeros(2, 3, device="tpu")
    with torch.tpu.set_eager_mode(debug):
        loss(scores, ints(1, -100))
        with pytest.raises(IndexError, match=r"tpu: nll_loss\(\): index 3 at position \(1,\) is out of range for 3 classes"):
            loss(scores, ints(1, 3))


def test_debug_mode_accepts_what_is_in_range():
    with torch.tpu.set_eager_mode(debug):
        table()[ints(-10, 9)] = 1.0
        assert table()[ints(-1), ints(2)].item() == 0
        assert table().take(ints(-30, 29)).tolist() == [0, 0]
        assert table()[torch.zeros(10, dtype=torch.bool, device="tpu")].shape == (0, 3)


def test_debug_mode_waits_for_every_op():
    x = torch.randn(600, 600, device="tpu")
    with torch.tpu.set_eager_mode(debug):
        y = torch.mm(torch.mm(x, x), x)
        assert torch.tpu.current_stream().query() and y.shape == x.shape


# ---- NaNs


def test_debug_nans_stops_at_the_first():
    x = torch.tensor([1.0, -1.0], device="tpu")
    with torch.tpu.set_eager_mode(debug), torch.tpu.debug_nans():
        assert torch.log(x.abs()).tolist() == [0, 0]
        with pytest.raises(FloatingPointError) as caught:
            torch.log(x)
    text, place = str(caught.value).split("\n")
    assert text == "tpu: aten.log.default(float32[2]) made the first NaN, at position (1,)"
    assert place.startswith(f"  at {__file__}:")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_debug_nans_sees_infinities_of_every_dtype(dtype):
    x = torch.zeros(3, dtype=dtype, device="tpu")
    with torch.tpu.set_eager_mode(debug), torch.tpu.debug_nans(), pytest.raises(FloatingPointError, match="made the first"):
        torch.ones(3, dtype=dtype, device="tpu") / x


def test_debug_nans_is_a_switch_too():
    x = torch.tensor([-1.0], device="tpu")
    torch.tpu.debug_nans(True)
    try:
        with torch.tpu.set_eager_mode(debug), pytest.raises(FloatingPointError):
            torch.log(x)
        assert math.isnan(torch.log(x).item())  # only debug mode looks
    finally:
        torch.tpu.debug_nans(False)
    with torch.tpu.set_eager_mode(debug):
        assert math.isnan(torch.log(x).item())


# ---- ops that the device does not have


@torch.library.custom_op("torch_tpu_tests::doubled", mutates_args=(), device_types="cpu")
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


def test_an_op_without_a_lowering_says_what_to_do():
    with pytest.raises(NotImplementedError, match="doubled.*cpu_fallback"):
        doubled(torch.ones(2, device="tpu"))


def test_the_fallback_runs_counts_and_warns_once(caplog):
    x = torch.ones(2, device="tpu")
    name = "torch_tpu_tests.doubled.default"
    before = torch.tpu.cpu_fallback_counts().get(name, 0)
    with torch.tpu.cpu_fallback(), caplog.at_level(logging.WARNING):
        results = [doubled(x), doubled(x)]
    assert all(r.is_tpu and r.tolist() == [2, 2] for r in results)
    assert torch.tpu.cpu_fallback_counts()[name] == before + 2
    assert sum(name in record.message for record in caplog.records) == 1
    with pytest.raises(NotImplementedError):
        doubled(x)


def test_the_fallback_is_a_switch_too():
    torch.tpu.cpu_fallback(True)
    try:
        assert doubled(torch.ones(1, device="tpu")).tolist() == [2]
    finally:
        torch.tpu.cpu_fallback(False)


# ---- precision


def test_precision_is_that_of_pytorch():
    assert torch.get_float32_matmul_precision() == "highest"
    with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(TypeError, match="Precision.HIGHEST"), torch.tpu.precision("highest"):
        pass


def test_float32_products_are_float32():
    x = torch.full((1, 1), 1 + 2**-20, device="tpu")
    assert (x @ torch.ones(1, 1, device="tpu")).item() == 1 + 2**-20


def test_excess_precision_is_off_and_may_be_switched_on():
    assert torch.tpu.allow_excess_precision is False
    torch.tpu.allow_excess_precision = True
    try:
        assert torch.tpu.allow_excess_precision is True
        assert (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]
    finally:
        torch.tpu.allow_excess_precision = False


# ---- caches


def test_cache_statistics_count():
    x = torch.ones(7, 5, device="tpu")
    x * 3
    before = torch.tpu.cache_stats()
    x * 4
    after = torch.tpu.cache_stats()
    assert (after.hits, after.misses, after.launches) == (before.hits + 1, before.misses, before.launches + 1)
    assert after.compilations == before.compilations
    assert torch.tpu._get_cache_stats().num_cache_reqs == after.hits + after.misses
    torch.tpu.clear_cache()
    x * 5
    assert torch.tpu.cache_stats().misses == after.misses + 1


def test_signatures_tell_apart_what_differs():
    # All of these look alike but for what a signature must hold: the conjugate and negative bits, a Python number against a
    # tensor, the base behind a view, and the dtype that it is seen in.
    z = torch.tensor([1 + 2j, 3 - 1j], device="tpu")
    assert [(v * 1).tolist() for v in (z, z.conj(), z)] == [[1 + 2j, 3 - 1j], [1 - 2j, 3 + 1j], [1 + 2j, 3 - 1j]]
    assert [(v + 0).tolist() for v in (z.imag, z.conj().imag)] == [[2, -1], [-2, 1]]
    x = torch.ones(2, dtype=torch.bfloat16, device="tpu")
    two = torch.tensor(2.0, dtype=torch.float64)
    assert [(x * v).dtype for v in (2.0, two, two.tpu(), torch.full((2,), 2.0, device="tpu"))] == [torch.bfloat16] * 3 + [torch.float32]
    base = torch.arange(12.0, device="tpu")
    views = (base[:6].view(2, 3), base.view(4, 3)[:2], base.view(2, 6)[:, :3], base.view(2, 6)[:, ::2])
    assert [(v * 1).flatten().tolist() for v in views] == [v.cpu().flatten().tolist() for v in views]
    bits = base.view(torch.int32)
    assert (bits * 1).tolist() == base.cpu().view(torch.int32).tolist() and (base * 1).tolist() == base.cpu().tolist()
    assert [(base * torch.tensor(v)).sum().item() for v in (1.0, 2.0)] == [66, 132]


def test_scalars_do_not_make_new_programs():
    x = torch.ones(3, device="tpu")
    x * 1.5 + 2
    before = torch.tpu.cache_stats().misses
    for i in range(20):
        x * (i + 0.5) + i
        x[i % 3] + 1
    assert torch.tpu.cache_stats().misses <= before + 1

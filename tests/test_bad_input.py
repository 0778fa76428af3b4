"""Bad and odd input: what the CPU refuses is refused in its words, and nothing takes the process down or is computed silently."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
I64 = torch.int64


def ones(*shape, device, dtype=torch.float32):
    return torch.ones(shape, device=device, dtype=dtype)


def first(device, dtype=I64):
    """An index of the first element."""
    return torch.zeros(1, device=device, dtype=dtype)


SAME = {
    "put: source of another dtype": lambda d: ones(3, device=d).index_put_((first(d),), ones(1, device=d, dtype=I64)),
    "put: more indices than dimensions": lambda d: ones(3, device=d).index_put_((first(d), first(d)), ones(1, device=d)),
    "put: values that do not broadcast": lambda d: ones(5, device=d).index_put_((torch.tensor([0, 1], device=d),), ones(3, device=d)),
    "select: a dimension out of range": lambda d: ones(3, device=d).index_select(-2, first(d)),
    "put: source of another length": lambda d: ones(3, device=d).put_(torch.tensor([0, 1], device=d), ones(1, device=d)),
    "index_add: source of another dtype": lambda d: ones(3, device=d).index_add_(0, first(d), ones(1, device=d, dtype=I64)),
    "index_add: a float index": lambda d: ones(3, device=d).index_add_(0, first(d, torch.float32), ones(1, device=d)),
    "index_copy: source of another dtype": lambda d: ones(3, device=d).index_copy_(0, first(d), ones(1, device=d, dtype=I64)),
    "index_fill: a narrow index": lambda d: ones(3, device=d).index_fill_(0, first(d, torch.int32), 1),
    "conv: a bias of other channels": lambda d: F.conv2d(ones(1, 1, 4, 4, device=d), ones(1, 1, 2, 2, device=d), ones(3, device=d)),
    "conv: padding of the output beyond a stride": lambda d: F.conv_transpose2d(
        ones(1, 1, 4, 4, device=d), ones(1, 1, 2, 2, device=d), output_padding=3
    ),
    "the order of complex numbers": lambda d: ones(2, device=d, dtype=torch.complex64) < 1,
    "the largest of complex numbers": lambda d: ones(2, device=d, dtype=torch.complex64).max(),
    "complex numbers sorted": lambda d: ones(2, device=d, dtype=torch.complex64).sort(),
    "complex numbers clamped": lambda d: ones(2, device=d, dtype=torch.complex64).clamp(0),
    "the place of the largest truth": lambda d: ones(2, device=d, dtype=torch.bool).argmax(),
    "the softmax of integers": lambda d: ones(2, device=d, dtype=I64).softmax(0),
    "the common divisor of floats": lambda d: torch.gcd(ones(2, device=d), ones(2, device=d)),
    "uniform integers": lambda d: torch.empty(2, device=d, dtype=I64).uniform_(),
    "random numbers beyond the dtype": lambda d: torch.randint(0, 300, (2,), device=d, dtype=torch.uint8),
    "random numbers below the dtype": lambda d: torch.empty(2, device=d, dtype=torch.uint8).random_(-5, -1),
    "targets in integers": lambda d: F.binary_cross_entropy(ones(2, device=d), ones(2, device=d, dtype=I64)),
    "integers to a negative power": lambda d: ones(2, device=d, dtype=I64) ** -1,
    "a zero point out of range": lambda d: torch.fake_quantize_per_tensor_affine(ones(2, device=d), 0.1, 300, 0, 255),
    "sort: an out of another dtype": lambda d: torch.sort(ones(3, device=d), out=(ones(0, device=d), ones(0, device=d))),
    "out: read, and too small": lambda d: [y := ones(1, device=d), torch.add(y, ones(3, device=d), out=y)],
    "cat: out is one of the list": lambda d: [y := ones(2, device=d), torch.cat([y, ones(3, device=d)], out=y)],
}
for dtype, number in (
    (torch.int8, 300), (torch.uint8, 300), (torch.int32, 1e10), (torch.int32, float("nan")), (torch.float16, -1e9),
    (torch.bfloat16, 1e39), (torch.float32, 1e300), (torch.float32, 1j),
):  # fmt: skip
    given = {"dtype": dtype}
    SAME |= {
        f"fill: {number} as {dtype}": lambda d, given=given, number=number: ones(3, device=d, **given).fill_(number),
        f"full: {number} as {dtype}": lambda d, given=given, number=number: torch.full((3,), number, device=d, **given),
        f"masked_fill: {number} as {dtype}": lambda d, given=given, number=number: ones(3, device=d, **given).masked_fill(
            ones(3, device=d, dtype=torch.bool), number
        ),
    }


@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
@pytest.mark.parametrize("case", SAME)
def test_what_the_cpu_refuses_is_refused_in_its_words_at_the_call(case, mode):
    caught = []
    for device in ("cpu", "tpu"):
        with torch.tpu.set_eager_mode(mode), pytest.raises(Exception) as info:
            SAME[case](device)
        caught.append(info.value)
    assert type(caught[1]) is type(caught[0])
    assert str(caught[1]) == str(caught[0])


def test_a_number_is_looked_at_in_every_call():
    x = ones(3, device="tpu", dtype=torch.int8)
    assert x.fill_(3).tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="without overflow"):
        x.fill_(300)
    assert x.fill_(-4).tolist() == [-4, -4, -4]


ODD = {
    "a small float where a large number is chosen": lambda d: torch.where(
        ones(2, device=d) > 0, ones(2, device=d, dtype=torch.float16), -1e9
    ),
    "a mask set to a number beyond float16": lambda d: [x := ones(2, device=d, dtype=torch.float16), x.__setitem__(x > 0, -1e9), x],
    "counts of narrow integers": lambda d: torch.tensor([1, 7, 100], dtype=torch.int8, device=d).bincount(),
    "a loss with no targets": lambda d: F.ctc_loss(
        ones(3, 1, 4, device=d).log_softmax(2),
        torch.tensor([[1, 2]], device=d),
        torch.tensor([3], device=d),
        torch.tensor([0], device=d),
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_input_gives_what_the_cpu_gives(case):
    on_cpu, on_tpu = ([y for y in (x if isinstance(x, list) else [x]) if y is not None] for x in (ODD[case](d) for d in ("cpu", "tpu")))
    for a, b in zip(on_tpu, on_cpu, strict=True):
        torch.testing.assert_close(a, b, check_device=False)


@pytest.mark.parametrize("out", ["sum", "mm"])
def test_an_out_that_is_read_keeps_its_shape(out):
    x = ones(2, 1, device="tpu")
    with pytest.raises(RuntimeError, match="Please clone"):
        torch.sum(x, 0, out=x) if out == "sum" else torch.mm(x, ones(1, 3, device="tpu"), out=x)
    assert x.tolist() == [[1], [1]]


HUGE = {
    "a matrix of more bytes than an int64 counts": lambda: torch.eye(1 << 30, device="tpu"),
    "a tensor that grows": lambda: ones(3, device="tpu").resize_(1 << 45),
    "padding": lambda: F.pad(ones(2, device="tpu"), (1 << 58, 0)),
}


@pytest.mark.parametrize("case", HUGE)
def test_huge_results_are_out_of_memory(case):
    with pytest.raises(torch.OutOfMemoryError, match="^tpu:0 is out of memory in "):
        HUGE[case]()
    assert (ones(2, device="tpu") + 1).tolist() == [2, 2]

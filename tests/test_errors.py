"""Errors: PyTorch's own types and texts where PyTorch has them, and all that is known where the device fails."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F

from torch_tpu.runtime import arrays, failures


def both(function):
    """The exceptions that ``function`` raises on the CPU and on the device."""
    caught = []
    for device in ("cpu", "tpu"):
        with pytest.raises(Exception) as info:
            function(device)
        caught.append(info.value)
    return caught


def ones(*shape, device, dtype=torch.float32):
    return torch.ones(shape, device=device, dtype=dtype)


SAME = {
    "shapes do not broadcast": lambda d: ones(2, 3, device=d) + ones(4, device=d),
    "a view of another size": lambda d: ones(2, 3, device=d).view(7),
    "a view across strides": lambda d: ones(2, 3, device=d).t().view(6),
    "a dimension out of range": lambda d: ones(2, device=d).sum(3),
    "an int out of range": lambda d: ones(2, device=d)[5],
    "too many indices": lambda d: ones(2, device=d)[0, 0],
    "an in-place result of another dtype": lambda d: ones(2, device=d, dtype=torch.int32).add_(1.5),
    "an in-place result of another shape": lambda d: ones(2, 1, device=d).add_(ones(2, 3, device=d)),
    "a leaf written in place": lambda d: ones(2, device=d).requires_grad_().add_(1),
    "an expanded tensor written in place": lambda d: ones(1, device=d).expand(3).add_(1),
    "integers that require a gradient": lambda d: ones(2, device=d, dtype=torch.int64).requires_grad_(),
    "a second backward": lambda d: [y := (ones(2, device=d).requires_grad_() ** 2).sum(), y.backward(), y.backward()],
    "lists that differ in shape": lambda d: torch.cat([ones(2, 2, device=d), ones(3, 3, device=d)]),
    "a vector of several as a truth": lambda d: bool(ones(2, device=d)),
    "a layer of another width": lambda d: torch.nn.Linear(3, 2, device=d)(ones(1, 4, device=d)),
    "a reshape to another size": lambda d: ones(2, 3, device=d).reshape(4, 2),
    "a negative size": lambda d: torch.empty(-1, device=d),
    "an out of another dtype": lambda d: torch.add(ones(2, device=d), 1, out=ones(2, device=d, dtype=torch.int64)),
    "a bad squeeze": lambda d: ones(2, device=d).unsqueeze(5),
    "inner sizes that differ": lambda d: ones(2, 3, device=d) @ ones(2, 3, device=d),
    "dtypes of a product that differ": lambda d: ones(2, 2, device=d) @ ones(2, 2, device=d, dtype=torch.float64),
    "a layer of another dtype": lambda d: torch.nn.Linear(3, 2, device=d)(ones(1, 3, device=d, dtype=torch.bfloat16)),
    "batches that differ": lambda d: torch.bmm(ones(2, 3, 4, device=d), ones(3, 4, 4, device=d)),
    "a copy that does not fit": lambda d: ones(2, device=d).copy_(ones(3, device=d)),
    "a copy from the host that does not fit": lambda d: ones(2, device=d).copy_(ones(2, 2, device="cpu")),
    "an index that is a matrix": lambda d: ones(2, 2, device=d).index_select(0, ones(2, 2, device=d, dtype=torch.int64)),
    "a float index": lambda d: torch.gather(ones(2, device=d), 0, ones(2, device=d)),
    "targets of another length": lambda d: F.cross_entropy(ones(2, 3, device=d), ones(3, device=d, dtype=torch.int64)),
    "targets of another dtype": lambda d: F.cross_entropy(ones(2, 3, device=d), ones(2, device=d, dtype=torch.int32)),
    "the mean of integers": lambda d: ones(2, device=d, dtype=torch.int64).mean(),
    "subtracted truths": lambda d: ones(2, device=d, dtype=torch.bool) - ones(2, device=d, dtype=torch.bool),
    "the bits of floats": lambda d: ones(2, device=d) & ones(2, device=d),
    "the largest of nothing": lambda d: ones(0, device=d).max(),
    "more than there are": lambda d: ones(2, device=d).topk(3),
    "a normalised shape that differs": lambda d: F.layer_norm(ones(2, 3, device=d), (4,)),
    "one value to normalise over": lambda d: F.batch_norm(ones(1, 3, device=d), None, None, training=True),
    "a pool larger than its input": lambda d: F.max_pool2d(ones(1, 1, 2, 2, device=d), 5),
    "an empty range of integers": lambda d: torch.randint(5, 2, (2,), device=d),
    "a singular matrix": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "a conv of other channels": lambda d: torch.conv2d(ones(1, 2, 4, 4, device=d), ones(1, 3, 2, 2, device=d)),
}


@pytest.mark.parametrize("case", SAME)
def test_errors_are_those_of_the_cpu(case):
    on_cpu, on_tpu = both(SAME[case])
    assert type(on_tpu) is type(on_cpu)
    assert str(on_tpu) == str(on_cpu)


MIXED = {
    "add": lambda x, y: x + y,
    "in place": lambda x, y: x.add_(y),
    "out": lambda x, y: torch.add(x, x, out=y),
    "list": lambda x, y: torch.cat([x, y]),
    "matmul": lambda x, y: x @ y,
    "foreach": lambda x, y: torch._foreach_mul([x], [y]),
    "the host first": lambda x, y: torch.where(y > 0, x, x),
}


@pytest.mark.parametrize("case", MIXED)
def test_tensors_of_the_host_do_not_mix_in(case):
    words = "^Expected all tensors to be on the same device, but found at least two devices, tpu:0 and cpu!"
    with pytest.raises(RuntimeError, match=words):
        MIXED[case](torch.ones(2, 2, device="tpu"), torch.ones(2, 2))


def test_numbers_of_the_host_do():
    x = torch.ones(2, device="tpu")
    assert (x + torch.tensor(2.0)).tolist() == [3, 3]
    for value in (2, 3):  # the value is an argument of one program
        assert (x * torch.tensor(value)).tolist() == [value, value]
    assert (x + torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float32


@pytest.mark.parametrize("layout", ["sparse", "to sparse"])
def test_layouts_that_the_device_does_not_have_are_named(layout):
    with pytest.raises((NotImplementedError, RuntimeError), match="tpu|sparse|Sparse"):
        if layout == "sparse":
            torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,)).to("tpu") + 1
        else:
            torch.ones(2, device="tpu").to_sparse()


# ---- out of memory

HUGE = 1 << 42  # float32 elements: 16 TiB


def test_a_result_too_large_says_what_was_asked_and_what_is_live():
    kept = [torch.ones(n, 1 << 18, device="tpu") for n in range(1, 8)]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(HUGE, device="tpu") + 1
    lines = str(caught.value).splitlines()
    assert lines[0] == f"tpu:0 is out of memory in aten.add.Tensor(float32[{HUGE}])."
    assert lines[1] == "Asked for: 16.00 TiB."
    assert lines[2].startswith("Live tensors hold 16.00 TiB; the device has ") and lines[2].endswith(" are free.")
    largest = lines[3].removeprefix("The largest live tensors: ").removesuffix(".").split("; ")
    assert largest == ["16.00 TiB never written", *(f"{n}.00 MiB float32[{n}, 262144]" for n in (7, 6, 5, 4))]
    assert "torch.utils.checkpoint" in lines[4]
    del kept


def test_a_failure_in_the_background_is_raised_where_it_is_waited_for():
    product = torch.ones(1 << 22, 1, device="tpu") @ torch.ones(1, 1 << 22, device="tpu")
    waits = (
        lambda tensor: tensor[:1].cpu(),
        lambda tensor: tensor[0, 0].item(),
        lambda tensor: arrays.download(torch.tpu.to_jax(tensor)),
        lambda tensor: torch.tpu.synchronize(),
    )
    for wait in waits:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            wait(product)
        assert "Asked for: 64.00 TiB." in str(caught.value) and "64.00 TiB float32[4194304, 4194304]" in str(caught.value)
    del product, caught
    gc.collect()
    torch.tpu.synchronize()
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]


def test_debug_mode_names_the_op_that_ran_out_of_memory():
    column, row = torch.ones(1 << 22, 1, device="tpu"), torch.ones(1, 1 << 22, device="tpu")
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG), pytest.raises(torch.OutOfMemoryError) as caught:
        column @ row
    first, second = str(caught.value).splitlines()[:2]
    assert first == "tpu:0 is out of memory in aten.mm.default(float32[4194304, 1], float32[1, 4194304])"
    assert second.startswith(f"  at {__file__}:")


def test_other_failures_keep_their_text_and_say_what_ran():
    error = failures.explain(ValueError("INTERNAL: the chip is tired"), "aten.mm.default(float32[2, 2])", 0)
    assert type(error) is RuntimeError
    assert str(error) == "tpu: aten.mm.default(float32[2, 2]) failed: INTERNAL: the chip is tired"


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 2147483648. That was not possible.",
        "RESOURCE_EXHAUSTED: Out of memory allocating 2147483648 bytes.",
        "INTERNAL: Error dispatching computation: Out of memory allocating 2147483648 bytes.",
    ],
)
def test_the_words_of_runtimes_for_out_of_memory_are_known(text):
    error = failures.explain(ValueError(text), "an op", 0)
    assert type(error) is torch.OutOfMemoryError and "Asked for: 2.00 GiB." in str(error)

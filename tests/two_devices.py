"""Checks that need two devices in one process; run by test_device.py."""

from __future__ import annotations

import io
import pickle
import threading

import pytest
import torch

MIXED = "Expected all tensors to be on the same device, but found at least two devices, "


def on(index: int, *values: float) -> torch.Tensor:
    return torch.tensor(values, device=f"tpu:{index}")


def check_there_are_two_devices():
    assert torch.tpu.device_count() == torch.accelerator.device_count() == 2
    assert [g.device.index for g in torch.tpu.default_generators] == [0, 1]


def check_ops_run_where_their_tensors_are():
    x = torch.arange(6.0, device="tpu:1")
    for y in (x + 1, x * x, torch.empty_like(x), torch.randn_like(x), x.new_ones(2), x[x > 2], x.view(2, 3).t().contiguous()):
        assert y.device.index == 1
    assert (x + 1).sum().item() == 21 and torch.tpu.current_device() == 0


def check_copies_between_devices():
    x = on(1, 1, 2, 3, 4).view(2, 2)
    assert x.to("tpu:0").tolist() == x.tpu(0).tolist() == [[1, 2], [3, 4]]
    y = torch.zeros(2, 2, dtype=torch.int64, device="tpu:0")
    y.t().copy_(x)
    assert y.tolist() == [[1, 3], [2, 4]] and y.device.index == 0
    assert torch.zeros(3, 2, device="tpu:0").copy_(x[0]).tolist() == [[1, 2]] * 3


def check_mixed_devices_raise_the_error_of_pytorch():
    a, b = on(1, 1, 2), on(0, 1, 2)
    for op in (
        lambda: a + b,
        lambda: a.add_(b),
        lambda: torch.cat([a, b]),
        lambda: torch.where(a > 0, a, b),
        lambda: torch.add(a, a, out=b),
        lambda: torch._foreach_add([a], [b]),
        lambda: a[torch.tensor([0], device="tpu:0")],
        lambda: a + torch.tensor(1.0, device="tpu:0"),
    ):
        with pytest.raises(RuntimeError) as caught:
            op()
        assert str(caught.value) in (MIXED + "tpu:1 and tpu:0!", MIXED + "tpu:0 and tpu:1!")


def check_a_cpu_scalar_may_take_part():
    assert (on(1, 1, 2) + torch.tensor(1.0)).tolist() == [2, 3]


def check_guards_choose_the_device():
    with torch.tpu.device(1):
        assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 1
        assert torch.ones(2, device="tpu").device.index == torch.randn(2, device="tpu").device.index == 1
        with torch.tpu.device_of(on(0, 1)):
            assert torch.tpu.current_device() == 0
        with torch.tpu.device_of(torch.ones(1)), torch.tpu.device(None), torch.tpu.device(-1):
            assert torch.tpu.current_device() == 1
    with torch.accelerator.device_index(1):
        assert torch.zeros(2, device="tpu").device.index == 1
    assert torch.tpu.current_device() == 0


def check_set_device_takes_whatever_names_a_device():
    for device in (1, "tpu:1", torch.device("tpu:1")):
        torch.tpu.set_device(device)
        assert torch.tpu.current_device() == 1
        torch.tpu.set_device(0)
    torch.accelerator.set_device_index(torch.device("tpu:1"))
    assert torch.accelerator.current_device_index() == 1
    torch.accelerator.set_device_index(0)
    torch.tpu.set_device(-1)
    assert torch.tpu.current_device() == 0


def check_the_current_device_is_of_the_thread():
    seen = []

    def work():
        seen.append(torch.tpu.current_device())
        torch.tpu.set_device(1)
        seen.append(torch.ones(1, device="tpu").device.index)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 1] and torch.tpu.current_device() == 0


def check_gradients_cross_devices():
    w = torch.ones(3, device="tpu:0", requires_grad=True)
    (w.to("tpu:1") * on(1, 1, 2, 3)).sum().backward()
    assert w.grad.device.index == 0 and w.grad.tolist() == [1, 2, 3]


def check_each_device_has_its_own_generator():
    torch.tpu.manual_seed_all(5)
    first = torch.rand(4, device="tpu:1")
    assert torch.equal(first.cpu(), torch.rand(4, device="tpu:0").cpu())  # one seed, two devices: the same numbers, as on CUDA
    torch.rand(4, device="tpu:1")
    assert not torch.equal(torch.tpu.get_rng_state(1), torch.tpu.get_rng_state(0))
    states = torch.tpu.get_rng_state_all()
    drawn = torch.rand(4, device="tpu:1").cpu()
    torch.tpu.set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device="tpu:1").cpu(), drawn)
    with torch.tpu.device(1):
        torch.tpu.manual_seed(9)
    assert torch.tpu.default_generators[1].initial_seed() == 9 and torch.tpu.default_generators[0].initial_seed() == 5


def check_generators_belong_to_their_device():
    with pytest.raises(RuntimeError, match="device"):
        torch.rand(2, device="tpu:0", generator=torch.Generator("cpu"))


def check_streams_are_of_their_device():
    stream = torch.tpu.Stream(1)
    assert stream.device == torch.tpu.current_stream(1).device == torch.device("tpu:1")
    with torch.tpu.stream(stream):
        assert torch.tpu.current_device() == 1 and torch.tpu.current_stream() == stream
    assert torch.tpu.current_device() == 0 and torch.tpu.current_stream(1) == torch.tpu.default_stream(1)


def check_memory_is_counted_by_device():
    before = torch.tpu.memory_allocated(0), torch.tpu.memory_allocated(1)
    x = torch.ones(1000, device="tpu:1")
    assert torch.tpu.memory_allocated("tpu:0") == before[0]
    assert torch.tpu.memory_allocated("tpu:1") == torch.accelerator.memory_allocated(1) == before[1] + 4000
    del x
    assert torch.tpu.memory_allocated(1) == before[1]


def check_saved_tensors_go_back_to_their_device_or_another():
    x = on(1, 1, 2)
    assert pickle.loads(pickle.dumps(x)).device.index == 1
    file = io.BytesIO()
    torch.save(x, file)
    for location, expected in ((None, "tpu:1"), ("tpu:0", "tpu:0"), ({"tpu:1": "tpu:0"}, "tpu:0"), ("cpu", "cpu")):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert str(loaded.device) == expected and loaded.tolist() == [1, 2]


def check_jax_arrays_keep_their_device():
    x = on(1, 1, 2)
    array = torch.tpu.to_jax(x)
    assert torch.tpu.from_jax(array).device.index == 1


def check_an_index_out_of_range_is_named():
    for ask in (lambda: torch.ones(1, device="tpu:2"), lambda: torch.tpu.set_device(2), lambda: torch.tpu.memory_allocated(2)):
        with pytest.raises(RuntimeError, match=r"invalid device index 2: there are 2 devices"):
            ask()


@torch.library.custom_op("torch_tpu_tests::tripled", mutates_args=(), device_types="cpu")
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def check_the_cpu_fallback_gives_results_on_the_device_of_its_arguments():
    with torch.tpu.cpu_fallback():
        assert tripled(on(1, 1, 2)).device.index == 1


def check_jax_and_pytorch_see_the_same_devices():
    import jax

    assert [d.id for d in jax.devices()] == [0, 1]
    assert torch.tpu.from_jax(jax.device_put(jax.numpy.ones(2), jax.devices()[1])).device.index == 1


def check_an_array_across_devices_is_refused():
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    spread = jax.device_put(jax.numpy.ones(4), NamedSharding(Mesh(jax.devices(), "x"), PartitionSpec("x")))
    with pytest.raises(ValueError, match="use jax.device_put first"):
        torch.tpu.from_jax(spread)


def check_optimizers_step_on_each_device():
    parameters = [torch.nn.Parameter(torch.ones(3, device=f"tpu:{i}")) for i in (0, 1)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.equal(parameters[0].cpu(), parameters[1].cpu()) and parameters[1][0].item() < 1

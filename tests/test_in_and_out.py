"""Tensors on their way in and out: copies, NumPy, pickling, checkpoints, JAX, DLPack, data loaders, printing."""

from __future__ import annotations

import copy
import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
from torch.utils import dlpack

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8,
    torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
NUMPY_ERROR = "can't convert tpu:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.cpu().contiguous().view(torch.uint8).flatten().tolist()


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[0, 1, 2], [3, 100, 0]]).to(dtype)


# ---- copies


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_round_trip_keeps_every_bit(dtype):
    x = sample(dtype)
    y = x.to("tpu")
    assert y.dtype == dtype and bits(y) == bits(x) and bits(y.t()) == bits(x.t())
    assert bits(torch.empty_like(x).copy_(y)) == bits(x)


def test_special_values_survive():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3.4e38])
    assert bits(x.tpu()) == bits(x)


def test_64_bit_values_are_real():
    assert torch.tensor(2**62 + 1, device="tpu").item() == 2**62 + 1
    assert torch.tensor(1 + 2**-40, dtype=torch.float64, device="tpu").item() == 1 + 2**-40


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 4)])
def test_every_shape_travels(shape):
    x = torch.randn(shape)
    y = x.tpu()
    assert y.shape == x.shape and torch.equal(y.cpu(), x)


def test_views_travel_as_what_they_show():
    x = torch.arange(24.0).view(2, 3, 4)
    y = x.tpu()
    for view in (lambda t: t.transpose(0, 2), lambda t: t[:, 1:, ::2], lambda t: t.expand(2, 2, 3, 4)[1], lambda t: t.flip(1)):
        assert torch.equal(view(y).cpu(), view(x)) and torch.equal(view(x).tpu().cpu(), view(x))
    into = torch.zeros(3, 2)
    into.t().copy_(y[:, :, 0])
    assert torch.equal(into.t(), x[:, :, 0])


def test_strides_are_kept():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y = x.tpu()
    assert y.stride() == x.stride() and y.cpu().stride() == x.stride() and torch.equal(y.cpu(), x)


def test_conjugate_and_negative_views_travel():
    # Resolving such a view first would copy it, which would resolve it first, without end.
    x = torch.tensor([1 + 2j, 3 - 4j])
    y = x.tpu()
    assert y.conj().is_conj() and torch.equal(y.conj().cpu(), x.conj())
    assert torch.equal(y.conj().imag.cpu(), x.conj().imag) and y.conj()[0].item() == 1 - 2j
    into = torch.zeros(2, dtype=torch.complex64)
    into.conj().copy_(y)
    assert torch.equal(into, x.conj())
    onto = torch.zeros(2, dtype=torch.complex64, device="tpu")
    onto.conj().copy_(x)
    onto.imag.neg_()
    assert torch.equal(onto.cpu(), x)


def test_copies_cast_and_broadcast():
    x = torch.tensor([1.5, 2.5], device="tpu")
    assert torch.zeros(2, dtype=torch.int32).copy_(x).tolist() == [1, 2]
    assert torch.zeros(2, 2, device="tpu").copy_(torch.tensor([1, 2])).tolist() == [[1, 2], [1, 2]]
    assert x.to("cpu", torch.float64).dtype == torch.float64
    assert torch.tensor([1, 2]).to("tpu", torch.bfloat16).dtype == torch.bfloat16


def test_to_does_not_copy_where_there_is_nothing_to_do():
    x = torch.ones(2, device="tpu")
    assert x.to("tpu") is x and x.tpu() is x and x.to("tpu", copy=True).data_ptr() != x.data_ptr()


def test_a_numpy_array_that_cannot_be_resized_may_be_copied_into():
    host = torch.from_numpy(np.zeros(3, np.float32))
    assert host.copy_(torch.ones(3, device="tpu")).tolist() == [1, 1, 1]


def test_the_host_copy_is_its_own():
    x = torch.ones(4, device="tpu")
    host = x.cpu()
    host.add_(1)
    assert x.tolist() == [1] * 4
    source = torch.ones(4)
    y = source.tpu()
    source.add_(1)
    assert y.tolist() == [1] * 4


def test_scalars_come_out():
    x = torch.tensor([[3]], device="tpu")
    assert x.item() == 3 and int(x) == 3 and float(x) == 3.0 and bool(x) and f"{torch.tensor(1.5, device='tpu'):.2f}" == "1.50"
    assert torch.tensor(1.5, device="tpu") in torch.tensor([1.5, 2.5], device="tpu")
    assert list(range(5))[torch.tensor(2, device="tpu")] == 2
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        torch.ones(2, device="tpu").item()


# ---- NumPy


@pytest.mark.parametrize("convert", [lambda x: x.numpy(), np.asarray, np.array, lambda x: np.sin(x)])
def test_numpy_is_refused_as_on_cuda(convert):
    with pytest.raises(TypeError) as caught:
        convert(torch.ones(2, device="tpu"))
    assert str(caught.value) == NUMPY_ERROR


def test_numpy_by_force_copies():
    assert torch.ones(2, device="tpu", requires_grad=True).numpy(force=True).tolist() == [1, 1]


def test_numpy_arrays_come_in():
    assert torch.asarray(np.arange(3), device="tpu").tolist() == torch.tensor(np.arange(3), device="tpu").tolist() == [0, 1, 2]


# ---- pickling and checkpoints


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_pickle_and_deepcopy_keep_values_and_device(dtype):
    x = sample(dtype).tpu()
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):
        assert y.is_tpu and y.dtype == dtype and bits(y) == bits(x)
    assert copy.deepcopy(x).data_ptr() != x.data_ptr()


def test_a_deepcopied_model_is_its_own():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).tpu()
    model.register_parameter("tied", model[0].weight)
    other = copy.deepcopy(model)
    assert other.tied is other[0].weight and other.tied.is_tpu
    with torch.no_grad():
        other.tied.zero_()
    assert model[0].weight.abs().sum().item() > 0


def save(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("location", [None, "tpu", "tpu:0", torch.device("tpu"), lambda storage, where: storage.tpu()])
def test_saved_tensors_load_on_the_device_and_keep_sharing(location):
    x = torch.arange(6.0, device="tpu").view(2, 3)
    loaded = torch.load(save({"x": x, "view": x[1], "other": x.clone()}), map_location=location)
    assert all(t.is_tpu for t in loaded.values()) and torch.equal(loaded["x"].cpu(), x.cpu())
    loaded["x"][1, 0] = 100
    assert loaded["view"].tolist() == [100, 4, 5] and loaded["other"][1, 0].item() == 3


@pytest.mark.parametrize("location", ["cpu", torch.device("cpu"), {"tpu:0": "cpu"}, lambda storage, where: storage])
def test_saved_tensors_load_on_the_host_and_keep_sharing(location):
    x = torch.arange(6.0, device="tpu").view(2, 3)
    loaded = torch.load(save({"x": x, "view": x[1]}), map_location=location)
    assert loaded["x"].is_cpu
    loaded["x"][1, 0] = 100
    assert loaded["view"].tolist() == [100, 4, 5]


def test_tensors_saved_on_the_host_load_on_the_device():
    x = torch.arange(6.0)
    loaded = torch.load(save([x, x[2:]]), map_location="tpu")
    loaded[0].zero_()
    assert loaded[1].is_tpu and loaded[1].sum().item() == 0


def test_a_model_and_its_optimizer_resume():
    def build():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).tpu()
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(1, 3, device="tpu")).square().sum().backward()
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer)
    file = save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step(model, optimizer)
    other, its_optimizer = build()
    state = torch.load(file)
    other.load_state_dict(state["model"])
    its_optimizer.load_state_dict(state["optimizer"])
    step(other, its_optimizer)
    assert torch.equal(other.weight.cpu(), model.weight.cpu())


def test_safetensors_through_the_host(tmp_path):
    tensors = {"a": torch.arange(6.0, device="tpu").view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16, device="tpu")}
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({name: tensor.cpu() for name, tensor in tensors.items()}, path)
    for name, tensor in safetensors.torch.load_file(path).items():
        assert bits(tensor.tpu()) == bits(tensors[name])


def test_meta_models_are_filled_on_the_device():
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    model.to_empty(device="tpu")
    model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert model(torch.ones(1, 3, device="tpu")).tolist() == [[3, 3]]


# ---- JAX


def test_jax_shares_the_buffer():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    array = torch.tpu.to_jax(x)
    assert isinstance(array, jax.Array) and array.tolist() == [[0, 1, 2], [3, 4, 5]]
    again = torch.tpu.to_jax(torch.tpu.from_jax(array))
    assert again.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()


def test_an_array_stays_as_it_is_when_the_tensor_is_written():
    x = torch.arange(6.0, device="tpu")
    array = torch.tpu.to_jax(x)
    x.add_(1)
    x[2:4] = 100
    x.zero_()
    assert array.tolist() == [0, 1, 2, 3, 4, 5] and x.sum().item() == 0
    array = jnp.ones(3)
    y = torch.tpu.from_jax(array)
    y.mul_(5)
    y[0] = 0
    assert array.tolist() == [1, 1, 1] and y.tolist() == [0, 5, 5]


def test_views_become_arrays_of_what_they_show():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    assert torch.tpu.to_jax(x.t()).tolist() == x.t().tolist()
    assert torch.tpu.to_jax(x[:, 1]).tolist() == [1, 4]
    assert torch.tpu.to_jax(torch.tensor([1 + 1j], device="tpu").conj()).tolist() == [1 - 1j]
    assert torch.tpu.to_jax(torch.empty(0, 3, device="tpu")).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.float64, torch.bool, torch.float8_e5m2, torch.complex128])
def test_dtypes_pass_to_jax_and_back(dtype):
    x = sample(dtype).tpu()
    array = torch.tpu.to_jax(x)
    assert array.dtype.name == str(dtype).removeprefix("torch.")
    assert bits(torch.tpu.from_jax(array)) == bits(x)


def test_what_cannot_pass_to_jax_is_refused():
    with pytest.raises(RuntimeError, match=r"requires grad. Use torch.tpu.to_jax\(tensor.detach\(\)\)"):
        torch.tpu.to_jax(torch.ones(1, device="tpu", requires_grad=True))
    with pytest.raises(TypeError, match="takes a tpu tensor, got one on cpu"):
        torch.tpu.to_jax(torch.ones(1))
    with pytest.raises(TypeError, match="takes a jax.Array with values, got ndarray"):
        torch.tpu.from_jax(np.ones(1))
    with pytest.raises(TypeError, match="random.key_data"):
        torch.tpu.from_jax(jax.random.key(0))
    with pytest.raises(TypeError, match="Tracer"):
        jax.jit(lambda x: torch.tpu.from_jax(x))(jnp.ones(1))


def test_jax_is_left_as_it_was():
    torch.ones(1, dtype=torch.float64, device="tpu")
    assert not jax.config.jax_enable_x64 and jnp.arange(3).dtype == jnp.int32


# ---- DLPack


def test_dlpack_gives_values_and_not_the_address():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    for read in (np.from_dlpack, jax.dlpack.from_dlpack):
        assert read(x).tolist() == x.tolist() and read(x[:, 1:]).tolist() == x[:, 1:].tolist()
    capsule = dlpack.to_dlpack(x)
    host = torch._C._from_dlpack(capsule)
    assert host.is_cpu and host.tolist() == x.tolist()
    assert torch._C._from_dlpack(x.__dlpack__()).tolist() == x.tolist()
    assert x.__dlpack_device__() == (dlpack.DLDeviceType.kDLCPU, 0)


def test_readers_of_dlpack_do_not_write_into_the_tensor():
    x = torch.zeros(3, device="tpu")
    torch._C._from_dlpack(dlpack.to_dlpack(x)).add_(1)
    assert x.tolist() == [0, 0, 0]
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(copy=False)


def test_from_dlpack_of_a_tensor_keeps_the_device_and_shares():
    x = torch.zeros(3, device="tpu")
    y = torch.from_dlpack(x)
    y.add_(1)
    assert y.is_tpu and x.tolist() == [1, 1, 1]
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert torch.from_dlpack(x, device="cpu").is_cpu
    with pytest.raises(ValueError, match="without copying"):
        torch.from_dlpack(x, device="cpu", copy=False)


def test_from_dlpack_brings_arrays_to_the_device():
    for source in (np.arange(3.0), jnp.arange(3.0), torch.arange(3.0)):
        assert torch.from_dlpack(source, device="tpu").is_tpu
        assert torch.from_dlpack(source).tolist() == [0, 1, 2]


def test_dlpack_refuses_what_pytorch_refuses():
    with pytest.raises(BufferError, match="require gradient"):
        torch.ones(1, device="tpu", requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="conjugate"):
        torch.ones(1, dtype=torch.complex64, device="tpu").conj().__dlpack__()


# ---- printing


def on_device(text: str) -> str:
    """What PyTorch prints for a host tensor, as it would print it on the device."""
    return text[:-1] + ", device='tpu:0')"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, float("nan"), -2e9]), torch.arange(3000).float().view(30, 100), torch.tensor(3.0), torch.tensor([True, False]),
        torch.tensor([1 + 2j]), torch.arange(5),
    ],
)  # fmt: skip
def test_tensors_print_as_on_the_host(tensor):
    expected = repr(tensor)
    shown = repr(tensor.tpu())
    assert shown.replace("\n       ", " ") == on_device(expected).replace("\n       ", " ")


def test_other_dtypes_gradients_and_empty_tensors_print():
    assert repr(torch.ones(2, dtype=torch.bfloat16, device="tpu")) == "tensor([1., 1.], device='tpu:0', dtype=torch.bfloat16)"
    assert repr(torch.ones(1, device="tpu", requires_grad=True)) == "tensor([1.], device='tpu:0', requires_grad=True)"
    assert repr(torch.empty(0, 2, device="tpu")) == "tensor([], device='tpu:0', size=(0, 2))"
    assert repr(torch.nn.Parameter(torch.ones(1, device="tpu"))).startswith("Parameter containing:\ntensor([1.], device='tpu:0'")
    assert "grad_fn=<MulBackward0>" in repr(torch.ones(1, device="tpu", requires_grad=True) * 2)


def test_printing_launches_nothing():
    x = torch.randn(50, 50, device="tpu")
    before = torch.tpu.cache_stats().launches
    repr(x)
    assert torch.tpu.cache_stats().launches == before


# ---- torch.storage


def test_storages_move():
    x = torch.arange(3.0)
    storage = x.untyped_storage().tpu()
    assert storage.is_tpu and storage.nbytes() == 12 and storage.cpu().tolist() == x.untyped_storage().tolist()
    y = torch.empty(0, device="tpu").set_(storage, 0, (3,), (1,))
    assert y.tolist() == [0, 1, 2] and y.is_set_to(y[:])


def test_from_out_of_a_composite_with_an_empty_result():
    # Such ops make an empty result first, and resize it: the storage must really grow.
    out = torch.empty(0, device="tpu")
    assert torch.add(torch.ones(3, device="tpu"), 1, out=out).tolist() == [2, 2, 2] and out.untyped_storage().nbytes() == 12


def test_lists_are_written_in_place():
    tensors = [torch.ones(2, device="tpu"), torch.ones(3, device="tpu")]
    torch._foreach_add_(tensors, 1)  # an op without results
    assert [t.tolist() for t in tensors] == [[2, 2], [2, 2, 2]]

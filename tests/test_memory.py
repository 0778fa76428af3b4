"""Memory: what is counted, when it is given back, and that an address never stands for memory of the host."""

from __future__ import annotations

import gc
import pickle
import signal
import subprocess
import sys
import weakref

import pytest
import torch

KIB = 256  # float32 elements


def test_live_tensors_are_counted():
    before = torch.tpu.memory_allocated()
    x = torch.ones(KIB, device="tpu")
    assert torch.tpu.memory_allocated() == torch.accelerator.memory_allocated() == before + 1024
    view = x[1:]
    del x
    assert torch.tpu.memory_allocated() == before + 1024  # a view keeps the storage
    del view
    assert torch.tpu.memory_allocated() == before


def test_peaks_are_kept_until_reset():
    x = torch.ones(64 * KIB, device="tpu")
    high = torch.tpu.memory_allocated()
    del x
    assert torch.tpu.max_memory_allocated() >= high > torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.accelerator.max_memory_allocated() == torch.tpu.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()


def test_accumulated_figures_are_kept_until_reset():
    torch.tpu.reset_accumulated_memory_stats()
    start = torch.tpu.memory_stats()["allocated_bytes.all.freed"]
    del_me = torch.ones(KIB, device="tpu")
    del del_me
    assert torch.tpu.memory_stats()["allocated_bytes.all.freed"] >= start + 1024


def test_statistics_have_the_names_of_cuda():
    x = torch.ones(KIB, device="tpu")
    statistics = torch.tpu.memory_stats()
    assert statistics == torch.accelerator.memory_stats()
    for name in ("active_bytes.all.peak", "reserved_bytes.all.peak", "allocated_bytes.all.current", "num_ooms", "num_alloc_retries"):
        assert name in statistics
    assert statistics["allocated_bytes.all.current"] == torch.tpu.memory_allocated() >= x.nbytes
    assert torch.tpu.max_memory_reserved() >= torch.tpu.memory_reserved() >= torch.tpu.memory_allocated()


def test_free_and_total_memory():
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total
    assert torch.accelerator.get_memory_info()[1] == total == torch.tpu.get_device_properties().total_memory
    torch.tpu.empty_cache()
    torch.accelerator.empty_cache()


def test_the_summary_names_the_largest_tensors():
    x = torch.ones(3, 1000, KIB, device="tpu")
    text = torch.tpu.memory_summary()
    assert text.startswith("Memory of tpu:0") and "2.93 MiB float32[3, 1000, 256]" in text
    assert "float32" not in torch.tpu.memory_summary(abbreviated=True)
    assert torch.tpu._hbm_usage_summary().startswith("Memory of tpu:0")
    del x


def test_a_snapshot_holds_the_live_storages(tmp_path):
    x = torch.ones(123 * KIB, device="tpu")
    torch.tpu.memory._record_memory_history(max_entries=10)
    torch.tpu.memory._dump_snapshot(tmp_path / "snapshot.pickle")
    segments = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())["segments"]
    assert sum(segment["total_size"] for segment in segments) == torch.tpu.memory_allocated()
    assert any(segment["blocks"][0]["size"] == x.nbytes for segment in segments)


def test_resizing_a_storage_to_nothing_gives_its_memory_back():
    before = torch.tpu.memory_allocated()
    x = torch.ones(KIB, device="tpu")
    x.untyped_storage().resize_(0)
    assert torch.tpu.memory_allocated() == before and x.untyped_storage().nbytes() == 0 and x.shape == (KIB,)
    with pytest.raises(RuntimeError, match="has been freed"):
        x + 1
    x.untyped_storage().resize_(1024)
    assert torch.tpu.memory_allocated() == before + 1024
    assert x.fill_(2).sum().item() == 2 * KIB


def test_a_grown_storage_keeps_its_values():
    x = torch.arange(4.0, device="tpu")
    x.untyped_storage().resize_(32)
    assert x.tolist() == [0, 1, 2, 3]
    assert x.resize_(8)[:4].tolist() == [0, 1, 2, 3]
    assert x.resize_(2).tolist() == [0, 1]


def test_a_buffer_dies_with_its_storage():
    x = torch.ones(KIB, device="tpu") + 1
    array = weakref.ref(torch.tpu.to_jax(x))
    assert array() is not None
    del x
    gc.collect()
    assert array() is None


def test_training_does_not_gather_memory():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).tpu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 8, device="tpu")).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    gc.collect()
    before = torch.tpu.memory_stats()["allocation.all.current"]
    for _ in range(20):
        step()
    gc.collect()
    assert torch.tpu.memory_stats()["allocation.all.current"] == before


def test_addresses_are_unique_and_follow_the_offset():
    x, y = torch.ones(4, device="tpu"), torch.ones(4, device="tpu")
    assert 0 != x.data_ptr() != y.data_ptr() != 0
    assert x[1:].data_ptr() == x.data_ptr() + 4 and x.view(2, 2).data_ptr() == x.data_ptr()
    assert x.untyped_storage().data_ptr() == x.data_ptr()
    assert abs(x.data_ptr() - y.data_ptr()) >= 16


def test_a_host_read_of_an_address_traps():
    program = """
import ctypes, torch_tpu, torch
x = torch.ones(4, device="tpu")
ctypes.c_int.from_address(x.data_ptr()).value
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == -signal.SIGSEGV


def test_bytes_behind_a_storage_can_be_copied():
    # Serialisation wraps our address in a tensor of its own, with a data pointer that is not ours.
    x = torch.arange(4, dtype=torch.int16, device="tpu")
    assert bytes(x.untyped_storage().cpu()) == bytes(x.cpu().untyped_storage())
    assert torch.UntypedStorage(16, device="tpu").nbytes() == 16
    assert x.untyped_storage().clone().tolist() == x.cpu().untyped_storage().tolist()


def test_pinned_memory_is_remembered():
    x = torch.ones(4).pin_memory()
    assert x.is_pinned() and x[1:].is_pinned() and not torch.ones(4).is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert torch.equal(x.to("tpu", non_blocking=True).cpu(), torch.ones(4))
    out = torch.empty(4, pin_memory=True)
    out.copy_(torch.full((4,), 3.0, device="tpu"), non_blocking=True)
    torch.tpu.synchronize()
    assert out.tolist() == [3] * 4
    with pytest.raises(RuntimeError, match="can be pinned|cannot pin|only dense CPU tensors"):
        torch.empty(4, pin_memory=True, device="tpu")


def test_the_source_may_change_once_a_copy_has_returned():
    x = torch.zeros(1 << 16).pin_memory()
    y = x.to("tpu", non_blocking=True)
    x.fill_(1)
    assert y.sum().item() == 0

"""Views read, write and alias as on the CPU, whatever chain of view ops made them."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from torch_tpu.runtime.executables import stats

from .view_programs import ViewProgram, programs, run

EXAMPLES = int(os.environ.get("TORCH_TPU_VIEW_EXAMPLES", "250"))


def same(program: ViewProgram) -> None:
    expected, writes = run(program, "cpu")
    got, _ = run(program, "tpu", writes)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype and g.shape == e.shape
        torch.testing.assert_close(g, e, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(programs)
def test_a_chain_of_views_reads_and_writes_as_on_the_cpu(program: ViewProgram) -> None:
    same(program)


def test_reading_at_varying_offsets_compiles_once() -> None:
    x = torch.arange(64.0, device="tpu").reshape(16, 4)
    _ = x[1] + 1
    before = stats.compilations + stats.disk_hits
    for i in range(2, 16):
        torch.testing.assert_close((x[i] + 1).cpu(), torch.arange(4.0) + 4 * i + 1)
    assert stats.compilations + stats.disk_hits == before


def test_writing_at_varying_offsets_compiles_once() -> None:
    x = torch.zeros(16, 4, device="tpu")
    x[1] = 1.0
    before = stats.compilations + stats.disk_hits
    for i in range(2, 16):
        x[i] = float(i)
    assert stats.compilations + stats.disk_hits == before
    assert x[:, 0].tolist() == [0.0, 1.0, *map(float, range(2, 16))]


def test_a_partial_write_reuses_the_buffer() -> None:
    from torch_tpu import _C

    x = torch.zeros(1024, 1024, device="tpu")
    x[3] = 1.0
    place = _C.base(x).unsafe_buffer_pointer()
    x[4] = 2.0
    assert _C.base(x).unsafe_buffer_pointer() == place


def test_a_buffer_that_someone_else_holds_is_not_overwritten() -> None:
    from torch_tpu import _C

    x = torch.zeros(8, device="tpu")
    x[0] = 1.0
    held = _C.base(x)
    x[1] = 2.0
    assert held.tolist() == [1.0, 0, 0, 0, 0, 0, 0, 0]
    assert x.tolist() == [1.0, 2.0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_never_written_memory_reads_as_zeros(dtype: torch.dtype) -> None:
    assert not torch.empty(3, 4, dtype=dtype, device="tpu")[1:, ::2].cpu().any()


def test_resizing_keeps_what_was_there() -> None:
    x = torch.arange(4.0, device="tpu")
    alias = x[1:3]
    x.resize_(6)
    x[4:] = 0.0
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]
    alias.fill_(9.0)
    assert x.tolist() == [0.0, 9.0, 9.0, 3.0, 0.0, 0.0]


def test_storage_freed_and_grown_again_as_fsdp_does() -> None:
    x = torch.arange(4.0, device="tpu")
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    with pytest.raises(RuntimeError, match="freed"):
        x + 1
    x.untyped_storage().resize_(16)
    x.copy_(torch.ones(4))
    assert x.tolist() == [1.0] * 4

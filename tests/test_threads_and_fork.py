"""Several threads, forked and spawned processes, and data loaders."""

from __future__ import annotations

import json
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.subprocesses import run, start


class Rows(Dataset):
    """Rows of numbers, as a worker makes them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((3,), float(i))


@pytest.mark.parametrize(("context", "pin"), [("fork", True), ("spawn", True), (None, True)])
def test_loaders_work_after_the_device_has_been_used(context, pin):
    torch.ones(1, device="tpu").item()
    workers = {"fork": 2, "spawn": 1, None: 0}[context]
    loader = DataLoader(Rows(), batch_size=4, num_workers=workers, multiprocessing_context=context, pin_memory=pin)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")  # the filter of the package is not pytest's
        total = 0.0
        for batch in loader:
            assert batch.is_pinned() == pin
            total += batch.to("tpu", non_blocking=True).sum().item()
    assert total == 3 * sum(range(12))


def test_workers_by_fork_warn_of_nothing():
    program = """
        import torch_tpu, torch
        from torch.utils.data import DataLoader
        torch.ones(1, device="tpu").item()
        for batch in DataLoader(list(range(4)), num_workers=1, multiprocessing_context="fork"):
            batch.to("tpu")
    """
    process = start(program, PYTHONWARNINGS="error::RuntimeWarning:multiprocessing.popen_fork")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "os.fork() was called" not in err


def test_a_forked_child_says_why_it_cannot_use_the_device():
    program = """
        import json, os, select, warnings
        import torch_tpu, torch
        warnings.simplefilter("ignore")
        x = torch.ones(4, device="tpu")
        x.sum().item()
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            texts = []
            uses = [lambda: x + 1, x.cpu, lambda: x[0].item(), lambda: torch.ones(1, device="tpu"), torch.tpu.synchronize,
                    lambda: torch.tpu.Event().record(), torch.tpu.mem_get_info, torch.tpu.get_device_name, lambda: repr(x),
                    lambda: torch.tpu.to_jax(x), torch.tpu.init, lambda: torch.ones(1).to("tpu")]
            for use in uses:
                try:
                    use()
                    texts.append("no error")
                except RuntimeError as error:
                    texts.append(str(error))
            torch.manual_seed(1)
            facts = {"texts": texts, "bad fork": torch.tpu._is_in_bad_fork(), "initialized": torch.tpu.is_initialized()}
            facts["host"] = (torch.ones(100, 100) @ torch.ones(100, 100)).sum().item()
            del x
            os.write(into, json.dumps(facts).encode())
            os._exit(0)
        ready, _, _ = select.select([out], [], [], 60)
        if not ready:
            os.kill(child, 9)
        facts = json.loads(os.read(out, 1 << 16)) if ready else {"texts": ["hangs"]}
        os.waitpid(child, 0)
        facts["parent"] = (x + 1).sum().item()
        facts["parent in bad fork"] = torch.tpu._is_in_bad_fork()
        print(json.dumps(facts))
    """
    facts = json.loads(run(program).splitlines()[-1])
    expected = "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, you must use the 'spawn' start method"
    assert set(facts["texts"]) == {expected}
    assert facts["bad fork"] and not facts["initialized"] and facts["host"] == 1e6
    assert facts["parent"] == 8 and not facts["parent in bad fork"]


def test_a_child_forked_before_the_first_tensor_has_a_device_of_its_own():
    program = """
        import os, torch_tpu, torch
        child = os.fork()
        value = (torch.ones(3, device="tpu") + 1).sum().item()
        assert value == 6 and not torch.tpu._is_in_bad_fork()
        if child == 0:
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(program).splitlines()[-1] == "0"


def in_threads(work, count: int = 4) -> list:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_threads_compute_their_own():
    def work(i: int) -> list[float]:
        x = torch.full((17,), float(i), device="tpu")
        for step in range(20):
            x = x * 1.5 + step
            x[step % 17] = 0
        return x.tolist()

    def expected(i: int) -> list[float]:
        x = torch.full((17,), float(i))
        for step in range(20):
            x = x * 1.5 + step
            x[step % 17] = 0
        return x.tolist()

    assert in_threads(work) == [expected(i) for i in range(4)]


def test_threads_may_meet_new_signatures_together():
    def work(i: int) -> list[float]:
        return [(torch.ones(n, 3, device="tpu") @ torch.ones(3, n + 1, device="tpu")).sum().item() for n in range(20, 26)]

    results = in_threads(work)
    assert all(r == [3.0 * n * (n + 1) for n in range(20, 26)] for r in results)


def test_threads_train_models_of_their_own():
    def train(device: str, i: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(i)
        model = torch.nn.Linear(4, 2, device=device)
        with torch.no_grad():
            model.weight.copy_(torch.randn(2, 4, generator=generator))
            model.bias.zero_()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        x = torch.randn(8, 4, generator=generator).to(device)
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return model.weight.detach().cpu()

    for i, weight in enumerate(in_threads(lambda i: train("tpu", i))):
        torch.testing.assert_close(weight, train("cpu", i))


def test_threads_read_one_tensor():
    x = torch.arange(1000.0, device="tpu")
    assert in_threads(lambda i: [(x[j::7] * (i + 1)).sum().item() for j in range(7)]) == [
        [(torch.arange(1000.0)[j::7] * (i + 1)).sum().item() for j in range(7)] for i in range(4)
    ]


def test_tensors_are_copied_in_by_several_threads():
    sources = [torch.randn(300, 300) for _ in range(8)]
    assert all(in_threads(lambda i: all(torch.equal(s.tpu().cpu(), s) for s in sources[i::4])))


def test_one_generator_serves_threads_without_repeating():
    draws = in_threads(lambda i: [torch.rand(4, device="tpu").tolist() for _ in range(20)])
    flat = [tuple(d) for each in draws for d in each]
    assert len(set(flat)) == len(flat)


def test_tensors_may_die_on_another_thread():
    before = torch.tpu.memory_allocated()
    held = [torch.ones(1000, device="tpu") for _ in range(50)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    for _ in range(50):
        torch.ones(3, device="tpu") + 1
    thread.join()
    assert torch.tpu.memory_allocated() == before


def test_gradients_are_computed_on_threads():
    x = torch.ones(100, device="tpu", requires_grad=True)

    def work(i: int) -> float:
        (gradient,) = torch.autograd.grad((x * x * (i + 1)).sum(), x)
        return gradient.sum().item()

    assert in_threads(work) == [200.0 * (i + 1) for i in range(4)]


def test_the_cache_may_be_cleared_while_threads_run():
    done = threading.Event()

    def clear() -> None:
        while not done.is_set():
            torch.tpu.clear_cache()

    clearer = threading.Thread(target=clear)
    clearer.start()
    try:
        x = torch.ones(5, device="tpu")
        for i in range(30):
            assert (x + i).tolist() == [1.0 + i] * 5
    finally:
        done.set()
        clearer.join()

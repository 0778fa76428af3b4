"""``torch.compile(backend="tpu")``: what it gives equals the CPU's (or eager's, for random numbers), and what is written is written."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from tests import models
from tests.subprocesses import run
from torch_tpu import _C
from torch_tpu.compiler.compiled import compiled_graphs

close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch.compiler.reset()
    yield


def compiled(fn, **options):
    return torch.compile(fn, backend="tpu", fullgraph=True, **options)


def same(fn, *args, **options):
    """Compare the results, their strides, and what is written to the arguments, with the CPU's."""
    ours = [x.to("tpu") if isinstance(x, torch.Tensor) else x for x in args]
    results, expected = compiled(fn, **options)(*ours), fn(*args)
    for a, b in zip(results if isinstance(results, tuple) else [results], expected if isinstance(expected, tuple) else [expected]):
        assert a.stride() == b.stride()
        close(a.cpu(), b)
    for a, b in zip(ours, args):
        close(a.cpu() if isinstance(a, torch.Tensor) else a, b)


def compilations() -> int:
    return torch.tpu.cache_stats().compilations + torch.tpu.cache_stats().disk_hits


# ---- finding the backend


def test_pytorch_lists_the_backend():
    assert "tpu" in torch._dynamo.list_backends()


def test_importing_torch_imports_nothing_of_the_compiler():
    code = """
        import sys, torch
        import torch_tpu
        assert torch.tpu.compiler.__all__
        heavy = [name for name in sys.modules if name.split(".")[0] == "jax" or name.startswith("torch_tpu.compiler.")]
        assert not heavy and "torch._dynamo" not in sys.modules, heavy
    """
    run(code)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_pytorchs_modes_are_accepted(mode):
    close(compiled(lambda x: x + 1, mode=mode)(torch.zeros(2, device="tpu")).cpu(), torch.ones(2))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mode": "fastest"}, "there is no mode 'fastest'; the modes are default, reduce-overhead"),
        ({"options": {"fast": True}}, "there is no option 'fast'; the options are donate, max_executables"),
        ({"options": {"donate": 1}}, "option 'donate' takes a bool, got 1"),
        ({"options": {"max_executables": 0}}, "at least 1"),
    ],
)
def test_what_is_no_option_is_refused(asked, message):
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x + 1, **asked)(torch.zeros(2, device="tpu"))


def test_options_of_the_xla_compiler():
    x = torch.ones(3, device="tpu")
    close(compiled(lambda x: x * 2, options={"xla_backend_optimization_level": 1})(x).cpu(), torch.full((3,), 2.0))
    with pytest.raises(Exception, match="xla_no_such_option"):
        compiled(lambda x: x * 3, options={"xla_no_such_option": 1})(x)


def test_options_of_a_block():
    with torch.tpu.compiler.options(donate=False) as chosen:
        assert chosen.donate is False
        with pytest.raises(ValueError, match="there is no option 'slow'"), torch.tpu.compiler.options(slow=True):
            pass
        x = torch.zeros(4, device="tpu")
        address = _C.base(x).unsafe_buffer_pointer()
        compiled(lambda x: x.add_(1))(x)
    assert _C.base(x).unsafe_buffer_pointer() != address
    close(x.cpu(), torch.ones(4))


def test_a_graph_without_tpu_tensors_runs_as_pytorch_runs_it():
    x = torch.randn(3)
    close(torch.compile(lambda x: x.sin() + 1, backend="tpu")(x), x.sin() + 1)


# ---- models


@pytest.mark.parametrize("model", [models.GPT, models.LSTMTagger, models.SmallResNet, models.UNetBlock])
def test_models_forward_and_training(model):
    on_cpu, inputs = model.example()
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    ours = [x.to("tpu") for x in inputs]
    with torch._dynamo.config.patch(allow_rnn=True):
        step = compiled(on_tpu)
        for _ in range(2):
            loss, expected = step(*ours), on_cpu(*inputs)
            close(loss.cpu(), expected)
            loss.backward()
            expected.backward()
        with torch.no_grad():
            close(step(*ours).cpu(), on_cpu(*inputs))
    for (name, a), b in zip(on_cpu.named_parameters(), on_tpu.parameters()):
        close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    for a, b in zip(on_cpu.buffers(), on_tpu.buffers()):
        close(b.cpu(), a)


def test_a_llama_of_transformers_forward_training_and_generation():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    on_cpu = transformers.LlamaForCausalLM(config).eval()
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    tokens = torch.randint(0, 64, (1, 6))
    loss = compiled(on_tpu)(tokens.to("tpu"), labels=tokens.to("tpu"), use_cache=False).loss
    expected = on_cpu(tokens, labels=tokens, use_cache=False).loss
    close(loss.cpu(), expected)
    loss.backward()
    expected.backward()
    for a, b in zip(on_cpu.parameters(), on_tpu.parameters()):
        close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-5)
    ours = on_tpu.generate(tokens.to("tpu"), max_new_tokens=4, do_sample=False, cache_implementation="static")
    assert torch.equal(ours.cpu(), on_cpu.generate(tokens, max_new_tokens=4, do_sample=False))


def test_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).to("tpu")
    x = torch.randn(3, 8, device="tpu")

    def forward(x):
        with torch.autocast("tpu", dtype=torch.bfloat16):
            return model(x)

    result, expected = compiled(forward)(x), forward(x)
    assert result.dtype == torch.bfloat16
    close(result, expected)
    result.sum().backward()


def test_a_graph_break_and_a_value_read_on_the_host():
    def forward(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y.sum().item() + 1

    assert torch.compile(forward, backend="tpu")(torch.ones(2, device="tpu")) == 5


@pytest.mark.parametrize("make", [lambda p: torch.optim.AdamW(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)])
def test_a_compiled_optimizer_step_does_not_compile_every_time(make):
    on_cpu = nn.Linear(4, 4)
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    ours, theirs = make(on_tpu.parameters()), make(on_cpu.parameters())
    step, counts = torch.compile(ours.step, backend="tpu"), []
    for _ in range(4):
        x = torch.randn(2, 4)
        for model, optimizer, take in ((on_cpu, theirs, theirs.step), (on_tpu, ours, step)):
            optimizer.zero_grad()
            model(x.to(model.weight.device)).pow(2).sum().backward()
            take()
        counts.append(compilations())
    assert counts[-1] == counts[-2]
    close(on_tpu.weight.cpu(), on_cpu.weight, rtol=1e-4, atol=1e-5)


# ---- control flow, and other ways to call


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_branch_that_a_value_chooses_and_its_gradient(sign):
    def forward(x, w):
        return torch.cond(x.sum() > 0, lambda x, w: x.sin() * w, lambda x, w: x.cos() + w, (x, w))

    x, w = torch.full((3,), sign), torch.randn(3, requires_grad=True)
    ours = w.detach().to("tpu").requires_grad_()
    result, expected = compiled(forward)(x.to("tpu"), ours), forward(x, w)
    close(result.cpu(), expected)
    result.sum().backward()
    expected.sum().backward()
    close(ours.grad.cpu(), w.grad)


def test_a_loop_that_a_value_ends():
    def forward(n, x):
        step = lambda n, x: (n - 1, x * 2 + torch.tensor([1.0, 2.0], device=x.device))
        return while_loop(lambda n, x: n > 0, step, (n, x))

    with torch.no_grad():
        same(forward, torch.tensor(5), torch.ones(2))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0].exp()


def test_autograd_functions_and_function_transforms():
    x = torch.randn(8)
    y = x.to("tpu").requires_grad_()
    compiled(Doubled.apply)(y).sum().backward()
    close(y.grad.cpu(), 2 * x.exp())
    same(lambda x: (torch.func.grad(lambda y: y.sin().sum())(x), torch.vmap(torch.dot)(x.view(2, 4), x.view(2, 4))), x)


@pytest.mark.parametrize("mode", list(torch.tpu.EagerMode), ids=lambda mode: mode.name)
def test_between_eager_ops_of_every_mode(mode):
    forward = compiled(lambda x, c: (c.add_(x), c * 2)[1])
    with torch.tpu.set_eager_mode(mode):
        x, c = torch.ones(3, device="tpu") + 1, torch.zeros(3, device="tpu") + 0.5
        view = c.view(3)
        close((forward(x, c) + view).cpu(), torch.full((3,), 7.5))
        close(view.cpu(), torch.full((3,), 2.5))


def test_inference_mode_and_threads():
    x = torch.randn(16, 16, device="tpu")
    forward = compiled(lambda x: x.sin() @ x)
    with torch.inference_mode():
        expected = forward(x)
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(all(torch.equal(forward(x), expected) for _ in range(20)))) for _ in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert outcomes == [True, True]


# ---- writing and aliasing


def write_row(cache, position, row):
    cache.index_copy_(1, position, row)
    return cache.sum(1)


def test_a_cache_is_written_in_place():
    step = compiled(write_row)
    cache, expected = torch.zeros(2, 8, 4, device="tpu"), torch.zeros(2, 8, 4)
    for i in range(3):
        row, position = torch.randn(2, 1, 4), torch.tensor([i])
        address = _C.base(cache).unsafe_buffer_pointer()
        close(step(cache, position.to("tpu"), row.to("tpu")).cpu(), write_row(expected, position, row))
        close(cache.cpu(), expected)
    assert _C.base(cache).unsafe_buffer_pointer() == address, "the buffer was donated"


def test_a_buffer_that_somebody_else_holds_is_not_donated():
    step = compiled(lambda x: x.add_(1))
    x = torch.zeros(4, device="tpu")
    held = torch.tpu.to_jax(x)
    step(x)
    assert not held.is_deleted() and held.sum() == 0
    close(x.cpu(), torch.ones(4))


def test_a_part_of_a_tensor_is_written():
    step = compiled(write_row)
    caches, expected = torch.zeros(3, 2, 8, 4, device="tpu"), torch.zeros(3, 2, 8, 4)
    for i in range(3):
        row, position = torch.randn(2, 1, 4), torch.tensor([i])
        close(step(caches[i], position.to("tpu"), row.to("tpu")).cpu(), write_row(expected[i], position, row))
        close(caches.cpu(), expected)


def test_the_same_tensor_twice():
    def forward(a, b):
        a.add_(1)
        return a * b

    x = torch.randn(3)
    y = x.to("tpu")
    close(compiled(forward)(y, y).cpu(), forward(x, x))
    close(y.cpu(), x)


@pytest.mark.parametrize("cut", [lambda x: (x[:4], x[2:]), lambda x: (x[:3], x[3:]), lambda x: (x, x.view(6))])
def test_two_views_of_one_tensor_of_which_one_is_written(cut):
    def forward(a, b):
        a.mul_(2)
        return a.sum() + b

    x = torch.randn(6)
    y = x.to("tpu")
    close(compiled(forward)(*cut(y)).cpu(), forward(*cut(x)))
    close(y.cpu(), x)


def test_results_that_alias_an_argument():
    def forward(x):
        return x, x.t(), x[1:], (x + 1).t()

    x = torch.randn(3, 4)
    same(forward, x)
    y = x.to("tpu")
    transposed = compiled(forward)(y)[1]
    transposed.add_(1)
    close(y.cpu(), x + 1)


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:, 1:], lambda x: x[::2], lambda x: x[1].expand(3, 5), lambda x: x.view(20)])
def test_views_as_arguments(view):
    def forward(x):
        return x * 2, x.sum(0)

    x = torch.randn(4, 5)
    for ours, theirs in zip(compiled(forward)(view(x.to("tpu"))), forward(view(x))):
        assert ours.stride() == theirs.stride()
        close(ours.cpu(), theirs)


def test_offsets_do_not_compile_anew():
    double, rows = compiled(lambda x: x * 2), torch.randn(8, 5)
    ours, counts = rows.to("tpu"), []
    for i in range(8):
        close(double(ours[i]).cpu(), rows[i] * 2)
        counts.append(compilations())
    assert counts[-1] == counts[1]


def test_as_strided_of_a_transposed_argument_counts_in_its_storage():
    x = torch.arange(12.0).view(3, 4)
    same(lambda x: x.as_strided((4, 3), (1, 4)) + 1, x)
    y = x.to("tpu").t()
    close(compiled(lambda x: x.as_strided((12,), (1,)) + 1)(y).cpu(), x.view(12) + 1)


def test_slices_are_assigned_to():
    def forward(x, v):
        x[1:3] = v
        x[0, 0] = 5.0
        return x.sum()

    same(forward, torch.randn(4, 4), torch.randn(4))
    x, v = torch.randn(4, 4), torch.randn(4)
    y = x.to("tpu")
    close(compiled(forward)(y.t(), v.to("tpu")).cpu(), forward(x.t(), v))
    close(y.cpu(), x)


def test_an_argument_that_is_used_by_the_backward_and_written_afterwards():
    def forward(x, w):
        y = x * w
        y.add_(1)
        return y.relu()

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    ours = w.detach().to("tpu").requires_grad_()
    compiled(forward)(x.to("tpu"), ours).sum().backward()
    forward(x, w).sum().backward()
    close(ours.grad.cpu(), w.grad)


def test_conjugated_arguments():
    z = torch.randn(3, dtype=torch.complex64)
    forward = compiled(lambda z: torch.view_as_real(z * 2))
    close(forward(z.to("tpu").conj()).cpu(), torch.view_as_real(z.conj() * 2))


def test_tensors_without_elements():
    same(lambda x: (x * 2, x.new_zeros(0, 3), torch.cat([x, x])), torch.randn(0, 3))


def test_constants_and_results_on_the_cpu():
    def forward(x):
        y = x + torch.tensor([1.0, 2.0, 3.0], device=x.device) * torch.tensor(2.5)
        return y, y.cpu()

    x = torch.randn(3)
    on_tpu, on_cpu = compiled(forward)(x.to("tpu"))
    assert on_tpu.device.type == "tpu" and on_cpu.device.type == "cpu"
    close(on_cpu, forward(x)[0])


# ---- random numbers


def test_dropout_draws_anew_at_every_call_and_again_for_the_same_seed():
    drop = compiled(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(40, 40, device="tpu")
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)


def _attention(x):
    q, k, v = x.view(3, 2, 4, 8, 16).unbind(0)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)


def _checkpointed(x):
    return checkpoint(lambda x: F.dropout(torch.sin(x), 0.5, True) * x, x, use_reentrant=False)


@pytest.mark.parametrize("fn", [lambda x: F.dropout(x, 0.5, True) * x, _attention, _checkpointed], ids=["dropout", "sdpa", "checkpoint"])
def test_the_gradient_sees_the_numbers_of_the_forward_which_are_eagers(fn):
    x = torch.randn(3 * 2 * 4 * 8 * 16, device="tpu", requires_grad=True)
    outcomes = []
    for forward in (fn, compiled(fn)):
        torch.manual_seed(5)
        y = forward(x)
        outcomes.append((y, *torch.autograd.grad(y.sum(), x), torch.rand(2, device="tpu")))
    for eager, ours in zip(*outcomes):
        close(ours, eager)


# ---- sizes that change


@pytest.mark.parametrize("dynamic", [True, None, False])
def test_sizes_that_change(dynamic):
    on_cpu = nn.Linear(3, 2)
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    forward = compiled(lambda m, x, n: torch.softmax(m(x[:n]).relu() * x.shape[0], -1).sum(0), dynamic=dynamic)
    for size in (4, 5, 7, 4):
        x = torch.randn(size, 3)
        result = forward(on_tpu, x.to("tpu"), 2)
        expected = torch.softmax(on_cpu(x[:2]).relu() * size, -1).sum(0)
        close(result.cpu(), expected)
        result.square().sum().backward()
        expected.square().sum().backward()
        close(on_tpu.weight.grad.cpu(), on_cpu.weight.grad)


def test_the_number_of_executables_is_bounded():
    before = set(compiled_graphs)
    forward = compiled(lambda x: x * 2, dynamic=True, options={"max_executables": 2})
    for size in (2, 3, 4, 5, 2):
        close(forward(torch.ones(size, device="tpu")).cpu(), torch.full((size,), 2.0))
    assert [len(graph.plans) for graph in set(compiled_graphs) - before if graph.settled] == [2]


def test_floats_that_change():
    forward = compiled(lambda x, rate: x * rate)
    for rate in (0.1, 0.2, 0.3):
        close(forward(torch.ones(2, device="tpu"), rate).cpu(), torch.full((2,), rate))


# ---- failures and caches


def test_a_failure_names_the_node_the_line_and_what_to_do():
    @torch.library.custom_op("torch_tpu_tests::opaque", mutates_args=())
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    opaque.register_fake(torch.empty_like)
    with pytest.raises(Exception, match=r"(?s)torch_tpu_tests\.opaque.*has no lowering.*test_compile\.py.*disable\(\)"):
        compiled(lambda x: opaque(x) + 1)(torch.ones(2, device="tpu"))


def test_an_op_that_raises_when_it_runs_is_refused_by_name():
    x = torch.eye(3, device="tpu")
    with pytest.raises(Exception, match=r"(?s)_linalg_check_errors.*raises or prints when it runs.*disable\(\)"):
        compiled(torch.linalg.inv)(x)
    close(compiled(lambda x: torch.linalg.inv_ex(x)[0])(x).cpu(), torch.eye(3))


def test_another_precision_of_products_is_another_executable():
    forward, x = compiled(lambda x: x @ x), torch.ones(4, 4, device="tpu")
    counts = []
    for precision in (torch.tpu.Precision.HIGH, torch.tpu.Precision.DEFAULT, torch.tpu.Precision.HIGHEST):
        with torch.tpu.precision(precision):
            forward(x)
            before = compilations()
            forward(x)
            assert compilations() == before
        counts.append(before)
    assert counts[0] < counts[1] < counts[2]


def test_a_second_process_compiles_nothing(tmp_path):
    code = """
        import torch_tpu, torch, torch.nn.functional as F
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).tpu()
        step = torch.compile(lambda x: F.dropout(model(x), 0.1).sum(), backend="tpu", fullgraph=True)
        step(torch.ones(3, 4).tpu()).backward()
        print(torch.tpu.cache_stats().compilations)
    """
    first, second = (int(run(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).split()[-1]) for _ in range(2))
    assert first > 0 and second == 0

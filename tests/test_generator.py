"""Random numbers: one seed gives one sequence, states travel, and a draw advances the state."""

from __future__ import annotations

import pytest
import torch

from tests.subprocesses import run


def draw(**options) -> torch.Tensor:
    return torch.rand(5, device="tpu", **options).cpu()


def test_one_seed_gives_one_sequence():
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.tpu.manual_seed(3)
    assert torch.equal(draw(), first) and torch.equal(draw(), second) and not torch.equal(first, second)
    torch.tpu.manual_seed_all(3)
    assert torch.equal(draw(), first) and torch.tpu.initial_seed() == 3


def test_states_travel():
    state = torch.tpu.get_rng_state()
    assert state.dtype == torch.uint8 and state.shape == (16,) and state.is_cpu
    first = draw()
    torch.tpu.set_rng_state(state)
    assert torch.equal(draw(), first)
    states = torch.tpu.get_rng_state_all()
    second = draw()
    torch.tpu.set_rng_state_all(states)
    assert torch.equal(draw(), second)


def test_a_state_holds_the_seed_and_the_offset():
    torch.tpu.manual_seed(7)
    seed, offset = torch.tpu.get_rng_state().view(torch.int64).tolist()
    assert (seed, offset) == (7, 0)
    draw()
    assert torch.tpu.get_rng_state().view(torch.int64).tolist() == [7, 4]


@pytest.mark.parametrize(
    ("state", "message"),
    [(torch.zeros(15, dtype=torch.uint8), "16 bytes"), (torch.zeros(16), "ByteTensor")],
)
def test_a_wrong_state_is_refused(state, message):
    with pytest.raises((RuntimeError, TypeError), match=message):
        torch.tpu.set_rng_state(state)


def test_generators_are_independent():
    one, other = torch.Generator("tpu").manual_seed(5), torch.Generator(device="tpu:0").manual_seed(5)
    torch.tpu.manual_seed(5)
    first = draw(generator=one)
    assert torch.equal(draw(generator=other), first) and torch.equal(draw(), first)
    clone = one.clone_state() if hasattr(one, "clone_state") else None
    second = draw(generator=one)
    if clone is not None:
        assert torch.equal(draw(generator=clone), second)
    assert one.initial_seed() == 5 and one.device == torch.device("tpu:0")
    one.set_state(other.get_state())
    assert torch.equal(draw(generator=one), draw(generator=other))


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        draw(generator=torch.Generator())


def test_default_generators_are_those_that_ops_use():
    torch.tpu.default_generators[0].manual_seed(11)
    first = draw()
    torch.tpu.manual_seed(11)
    assert torch.equal(draw(), first) and len(torch.tpu.default_generators) == torch.tpu.device_count()


def test_seed_takes_the_systems_randomness():
    assert torch.tpu.seed() != torch.tpu.seed()
    torch.tpu.seed_all()
    assert torch.tpu.initial_seed() == torch.tpu.default_generators[0].initial_seed()


def test_fork_rng_puts_the_state_back():
    torch.tpu.manual_seed(1)
    expected = draw()
    torch.tpu.manual_seed(1)
    with torch.random.fork_rng(device_type="tpu"):
        torch.manual_seed(99)
        draw()
    assert torch.equal(draw(), expected)


def test_checkpointing_repeats_the_draws():
    w = torch.ones(100, device="tpu", requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(lambda x: torch.nn.functional.dropout(x, 0.5), w, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(w.grad, out.detach())


def test_dropout_differs_from_call_to_call():
    x = torch.ones(100, device="tpu")
    assert not torch.equal(torch.nn.functional.dropout(x), torch.nn.functional.dropout(x))


def test_another_process_draws_the_same():
    program = """
        import torch_tpu, torch
        torch.manual_seed(17)
        print(torch.randn(3, device="tpu").tolist(), torch.randint(100, (3,), device="tpu").tolist())
    """
    torch.manual_seed(17)
    here = f"{torch.randn(3, device='tpu').tolist()} {torch.randint(100, (3,), device='tpu').tolist()}"
    assert run(program).strip() == here


def test_seeding_starts_nothing():
    program = """
        import torch_tpu, torch
        torch.manual_seed(1)
        torch.tpu.get_rng_state()
        torch.Generator("tpu").manual_seed(3)
        print(torch.tpu.is_initialized())
    """
    assert run(program).strip() == "False"

"""Streams and events: events tell when the device got there, not when the host asked."""

from __future__ import annotations

import threading
import time

import pytest
import torch


def test_streams_are_labels_that_compare():
    a, b = torch.tpu.Stream(), torch.tpu.Stream(priority=-1)
    assert isinstance(a, torch.Stream) and a != b and a == a
    assert torch.tpu.current_stream() == torch.tpu.default_stream() == torch.accelerator.current_stream()
    assert isinstance(torch.Stream("tpu"), torch.tpu.Stream) and isinstance(torch.Event("tpu"), torch.tpu.Event)


def test_the_stream_context_sets_and_restores():
    stream = torch.tpu.Stream()
    with torch.tpu.stream(stream):
        assert torch.tpu.current_stream() == torch.accelerator.current_stream() == stream
        with torch.tpu.stream(None):
            assert torch.tpu.current_stream() == stream
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    with stream:
        assert torch.tpu.current_stream() == stream
    torch.tpu.set_stream(stream)
    assert torch.tpu.current_stream() == stream
    torch.tpu.set_stream(torch.tpu.default_stream())
    torch.tpu.set_stream(None)


def test_the_current_stream_is_of_the_thread():
    seen = []
    with torch.tpu.stream(torch.tpu.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.tpu.default_stream()]


def test_work_on_streams_is_seen_in_order():
    x = torch.zeros(1000, device="tpu")
    producer, consumer = torch.tpu.Stream(), torch.tpu.Stream()
    with torch.tpu.stream(producer):
        x += 1
        done = producer.record_event()
    with torch.tpu.stream(consumer):
        consumer.wait_event(done)
        consumer.wait_stream(producer)
        y = x * 2
    y.record_stream(consumer)
    consumer.synchronize()
    assert consumer.query() and y.sum().item() == 2000


class Chain:
    """Matrix products that take the device some hundred milliseconds, launched in a few."""

    def __init__(self) -> None:
        self.x = torch.randn(700, 700, device="tpu") / 30
        self.run(1)
        torch.tpu.synchronize()

    def run(self, count: int = 12) -> torch.Tensor:
        y = self.x
        for _ in range(count):
            y = torch.mm(y, self.x)
        return y


@pytest.fixture(scope="module")
def chain():
    return Chain()


@pytest.mark.parametrize("event", [torch.tpu.Event, lambda **options: torch.Event("tpu", **options)])
def test_events_tell_the_truth_about_the_device(chain, event):
    start, end = event(enable_timing=True), event(enable_timing=True)
    launched = time.perf_counter()
    start.record()
    kept = chain.run()
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="Both events must be completed before calculating elapsed time"):
        start.elapsed_time(end)
    returned = time.perf_counter()
    end.synchronize()
    finished = time.perf_counter()
    assert end.query() and start.query()
    elapsed = start.elapsed_time(end)
    # The device's time: all that passed but the launch of the first product, not the little that the host took to launch.
    assert elapsed == pytest.approx(1e3 * (finished - launched), rel=0.3, abs=20)
    assert elapsed > 1e3 * (returned - launched)
    del kept


def test_a_stream_and_the_device_know_that_they_are_busy(chain):
    kept = chain.run()
    assert not torch.tpu.current_stream().query()
    torch.tpu.synchronize()
    assert torch.tpu.current_stream().query()
    del kept


def test_synchronize_waits(chain):
    end = torch.tpu.Event()
    kept = chain.run()
    end.record()
    torch.accelerator.synchronize()
    assert end.query()
    del kept


def test_launching_does_not_wait(chain):
    started = time.perf_counter()
    kept = chain.run()
    launched = time.perf_counter()
    kept.cpu()
    assert launched - started < 0.5 * (time.perf_counter() - started)


def test_an_event_that_was_not_recorded_is_done():
    event = torch.tpu.Event()
    assert event.query()
    event.synchronize()
    event.wait()
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        torch.tpu.Event(enable_timing=True).elapsed_time(torch.tpu.Event(enable_timing=True))


def test_events_without_timing_have_no_time():
    start, end = torch.tpu.Event(), torch.tpu.Event()
    start.record()
    end.record()
    end.synchronize()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(end)


def test_events_may_be_recorded_again(chain):
    event = torch.tpu.Event()
    event.record()
    event.synchronize()
    kept = chain.run()
    event.record()
    assert not event.query()
    event.synchronize()
    del kept


def test_events_are_of_this_process():
    with pytest.raises(NotImplementedError, match="another process"):
        torch.tpu.Event(interprocess=True)

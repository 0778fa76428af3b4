"""The compilation cache on disk: a second process compiles nothing, and nothing found in the folder can hurt."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.subprocesses import finish, run, start
from torch_tpu.runtime import disk_cache

# Some ops, then what was compiled and what was found.
WORK = """
    import dataclasses, json, logging, sys
    logging.basicConfig(stream=sys.stderr)
    import torch_tpu, torch
    x = torch.arange(12.0, device="tpu").view(3, 4)
    values = [(x @ x.t()).sum().item(), x[:, 1].softmax(0).sum().item(), x.to(torch.bfloat16).sum().item(), x.clone().add_(1)[1].tolist()]
    values.append(torch.linalg.inv(torch.eye(2, device="tpu") * 2).tolist())  # calls LAPACK, which a loaded executable must find
    w = torch.ones(4, device="tpu", requires_grad=True)
    torch.nn.functional.gelu(x * w).sum().backward()
    print(json.dumps({"values": values, "gradient": w.grad.tolist()} | dataclasses.asdict(torch.tpu.cache_stats())))
"""
FILES = 8  # at least so many programs


def work(folder: Path, **environment: str | None) -> dict:
    return json.loads(run(WORK, **{"TORCH_TPU_CACHE_DIR": str(folder), "TORCH_TPU_CACHE": None} | environment).splitlines()[-1])


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder that one process has filled, and what that process found."""
    folder = tmp_path_factory.mktemp("cache") / "of" / "executables"
    return folder, work(folder)


def same_results(a: dict, b: dict) -> bool:
    return a["values"] == b["values"] and a["gradient"] == b["gradient"]


def test_the_second_process_compiles_nothing(filled):
    folder, first = filled
    assert first["compilations"] >= FILES and first["disk_hits"] == 0
    before = {path: path.stat().st_size for path in entries(folder)}
    second = work(folder)
    assert second["compilations"] == 0 and second["disk_hits"] == first["compilations"] == len(before)
    assert same_results(first, second)
    assert second["load_seconds"] < first["compile_seconds"]
    assert {path: path.stat().st_size for path in entries(folder)} == before


def test_damaged_and_foreign_entries_are_compiled_again(filled):
    folder, first = filled
    damaged = entries(folder)[:6]
    whole = [path.read_bytes() for path in damaged]
    damaged[0].write_bytes(b"")
    damaged[1].write_bytes(whole[1][: len(whole[1]) // 2])
    damaged[2].write_bytes(whole[2][:-1] + bytes([whole[2][-1] ^ 1]))
    damaged[3].write_bytes(b"something else altogether")
    damaged[4].write_bytes(foreign(b'[[[3], "float32"]]\n' + b"no executable of ours"))
    damaged[5].write_bytes(foreign(b"not json\nand no executable"))
    again = work(folder)
    assert again["compilations"] == 6 and same_results(first, again)
    assert all(is_whole(path) for path in entries(folder))


def is_whole(path: Path) -> bool:
    content = path.read_bytes()
    head = len(disk_cache._MAGIC)
    return content.startswith(disk_cache._MAGIC) and hashlib.sha256(content[head + 32 :]).digest() == content[head : head + 32]


def foreign(body: bytes) -> bytes:
    """An entry that is whole, as another build might have written it, and that this one cannot load."""
    return disk_cache._MAGIC + hashlib.sha256(body).digest() + body


def test_the_key_holds_all_that_decides_the_code(monkeypatch):
    digest = disk_cache._environment_digest.__wrapped__
    here = digest()
    assert digest() == here and disk_cache.key_of("a") != disk_cache.key_of("b")
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        monkeypatch.setenv(name, "--something=else")
        assert digest() != here
        monkeypatch.delenv(name)
    monkeypatch.setattr(disk_cache, "_processor", lambda: "another processor")
    assert digest() != here


def test_the_cache_may_be_switched_off(monkeypatch):
    assert disk_cache.enabled()
    monkeypatch.setenv("TORCH_TPU_CACHE", "0")
    assert not disk_cache.enabled()


def test_the_folder_is_the_users_or_the_one_that_is_named(monkeypatch):
    for name, value, expected in (
        ("HOME", "/home/someone", "/home/someone/.cache/torch_tpu"),
        ("XDG_CACHE_HOME", "/caches", "/caches/torch_tpu"),
        ("TORCH_TPU_CACHE_DIR", "/elsewhere", "/elsewhere"),
    ):
        if name == "HOME":
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
            monkeypatch.delenv("TORCH_TPU_CACHE_DIR", raising=False)
        monkeypatch.setenv(name, value)
        assert disk_cache.directory() == Path(expected)


def test_a_folder_that_cannot_be_written_switches_the_cache_off_with_one_warning(tmp_path):
    file = tmp_path / "a file"
    file.write_text("and no folder")
    process = start(WORK, TORCH_TPU_CACHE_DIR=str(file / "cache"), TORCH_TPU_CACHE=None)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["compilations"] >= FILES
    assert err.count("cannot be written and is off") == 1


def test_several_processes_share_the_folder(tmp_path):
    processes = [start(WORK, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_CACHE=None) for _ in range(2)]
    found = [json.loads(finish(process).splitlines()[-1]) for process in processes]
    assert same_results(*found)
    assert all(f["compilations"] + f["disk_hits"] == len(entries(tmp_path)) for f in found)
    assert all(is_whole(path) for path in entries(tmp_path))


KILLED = """
    import os, signal
    import torch_tpu, torch
    from torch_tpu.runtime import disk_cache
    stored = 0
    def killed_at_the_third(source, target):
        global stored
        stored += 1
        if stored == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(source, target)
    replace, os.replace = os.replace, killed_at_the_third
    x = torch.arange(12.0, device="tpu").view(3, 4)
    (x @ x.t()).sum().item(), (x + 1).mul_(2).tolist()
"""


def test_a_process_killed_while_writing_leaves_no_broken_entry(tmp_path):
    process = start(KILLED, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_CACHE=None)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    left = [path for path in tmp_path.rglob(".new-*")]
    assert len(entries(tmp_path)) == 2 and len(left) == 1
    assert all(is_whole(path) for path in entries(tmp_path))
    found = work(tmp_path)
    assert found["disk_hits"] == 2 and found["compilations"] >= FILES - 2


def test_what_killed_processes_left_is_swept_up(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "ab"
    folder.mkdir()
    old, new = folder / ".new-old", folder / ".new-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    disk_cache.trim()
    assert not old.exists() and new.exists()


def test_the_folder_is_kept_under_its_bound(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCH_TPU_CACHE_BYTES", "100000")
    monkeypatch.setattr(disk_cache, "_state", disk_cache._State())
    now = time.time()
    for i in range(30):
        key = f"{i:02x}" + "0" * 62
        disk_cache.store(key, [((3,), np.dtype("float32"))], bytes(10000))
        os.utime(tmp_path / key[:2] / key[2:], (now - 1000 + i,) * 2)
        if i == 5:
            assert disk_cache.load("05" + "0" * 62) is not None
    disk_cache.trim()
    kept = entries(tmp_path)
    assert sum(path.stat().st_size for path in kept) <= 100000
    assert {path.parent.name for path in kept} >= {"1d", "1c", "1b"} and not (tmp_path / "00" / ("0" * 62)).exists()
    assert disk_cache.load("1d" + "0" * 62) == ([((3,), np.dtype("float32"))], bytes(10000))
    disk_cache.clear()
    assert entries(tmp_path) == []


def test_clearing_the_cache_on_disk_compiles_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path))
    x = torch.arange(77.0, device="tpu")
    torch.tpu.clear_cache()
    x * 3
    assert entries(tmp_path)
    torch.tpu.clear_cache(disk=True)
    assert entries(tmp_path) == []
    before = torch.tpu.cache_stats().compilations
    x * 3
    assert torch.tpu.cache_stats().compilations == before + 1

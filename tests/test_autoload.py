"""``import torch`` alone makes the device, starts nothing, and never fails; ``import torch_tpu`` says what is wrong."""

from __future__ import annotations

import json

import pytest

from tests.subprocesses import finish, start

PROGRAMS = {
    "plain": """
        import json, sys, threading
        import torch
        facts = {
            "device": str(torch.device("tpu:0")), "available": torch.tpu.is_available(), "count": torch.tpu.device_count(),
            "built": torch.backends.tpu.is_built() and torch.backends.tpu.is_available(),
            "is_tpu": torch.ones(1).is_tpu, "accelerator": str(torch.accelerator.current_accelerator()),
            "jax": [name for name in sys.modules if name.startswith("jax")], "threads": threading.active_count(),
            "dynamo": "torch._dynamo" in sys.modules, "initialized": torch.tpu.is_initialized(),
        }
        import torch.tpu, torch.tpu.memory, torch.backends.tpu
        import torch_tpu
        torch_tpu._autoload()
        torch_tpu._autoload()
        facts["moved"] = str(torch.ones(2).tpu().device)
        facts["initialized after"] = torch.tpu.is_initialized()
        print(json.dumps(facts))
    """,
    "timed": """
        import json, time, torch
        assert not hasattr(torch, "tpu")
        started = time.process_time()
        import torch_tpu
        print(json.dumps({"seconds": time.process_time() - started, "available": torch.tpu.is_available()}))
    """,
    "backend first": """
        import json, torch_tpu, torch
        print(json.dumps({"available": torch.tpu.is_available()}))
    """,
    "none": """
        import json, torch
        facts = {"available": torch.tpu.is_available(), "count": torch.tpu.device_count()}
        facts["accelerator"] = [torch.accelerator.is_available(), torch.accelerator.device_count()]
        facts["checked"] = str(torch.accelerator.current_accelerator(check_available=True))
        facts["generators"] = len(torch.tpu.default_generators)
        torch.manual_seed(0)
        try:
            torch.empty(1, device="tpu")
        except RuntimeError as error:
            facts["error"] = str(error)
        try:
            torch.ones(1).to("tpu")
        except RuntimeError as error:
            facts["moving"] = str(error)
        print(json.dumps(facts))
    """,
    "other minor": """
        import json, sys, types, warnings
        built = types.ModuleType("torch_tpu._built_with")
        built.torch = "2.99.1+cpu"
        sys.modules["torch_tpu._built_with"] = built
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        facts = {"warnings": [str(w.message) for w in caught if "torch_tpu" in str(w.message)], "works": torch.ones(2).sum().item()}
        facts["loaded"] = "torch_tpu._C" in sys.modules
        try:
            import torch_tpu
        except ImportError as error:
            facts["error"] = str(error)
        print(json.dumps(facts))
    """,
    "bad platform": """
        import json, warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        facts = {"warnings": [str(w.message) for w in caught if "torch_tpu" in str(w.message)], "works": torch.ones(2).sum().item()}
        try:
            import torch_tpu
        except ValueError as error:
            facts["error"] = str(error)
        print(json.dumps(facts))
    """,
    "other backend": """
        import json, torch, warnings
        facts = {"switched off": not hasattr(torch, "tpu")}
        torch.utils.rename_privateuse1_backend("another")
        try:
            import torch_tpu
        except RuntimeError as error:
            facts["error"] = str(error)
        print(json.dumps(facts))
    """,
}
ENVIRONMENTS = {
    "timed": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "other backend": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "none": {"TORCH_TPU_PLATFORM": "none"},
    "bad platform": {"TORCH_TPU_PLATFORM": "gpu"},
}


@pytest.fixture(scope="module")
def facts():
    """What each program found, by the program's name; two processes at a time."""
    found = {}
    names = list(PROGRAMS)
    for first, second in zip(names[::2], [*names[1::2], None], strict=False):
        pair = {
            name: start(PROGRAMS[name], **{"TORCH_DEVICE_BACKEND_AUTOLOAD": None} | ENVIRONMENTS.get(name, {}))
            for name in (first, second)
            if name is not None
        }
        for name, process in pair.items():
            found[name] = json.loads(finish(process).splitlines()[-1])
    return found


def test_import_torch_alone_makes_the_device(facts):
    plain = facts["plain"]
    assert plain["device"] == "tpu:0"
    assert plain["available"] and plain["count"] == 1 and plain["built"] and not plain["is_tpu"]
    assert plain["accelerator"] == "tpu"
    assert plain["moved"] == "tpu:0"


def test_import_starts_nothing(facts):
    plain = facts["plain"]
    assert plain["jax"] == [] and plain["threads"] == 1 and not plain["dynamo"]
    assert not plain["initialized"] and plain["initialized after"]


def test_import_adds_less_than_150_milliseconds(facts):
    assert facts["timed"]["available"]
    assert facts["timed"]["seconds"] < 0.15


def test_torch_tpu_may_be_imported_before_torch(facts):
    assert facts["backend first"]["available"]


def test_the_variable_of_pytorch_switches_the_device_off(facts):
    assert facts["other backend"]["switched off"]


def test_platform_none_leaves_no_device(facts):
    none = facts["none"]
    assert not none["available"] and none["count"] == 0 and none["generators"] == 0
    assert none["accelerator"] == [False, 0] and none["checked"] == "None"


def test_platform_none_says_why_there_is_no_device(facts):
    for text in (facts["none"]["error"], facts["none"]["moving"]):
        assert text.startswith("tpu: TORCH_TPU_PLATFORM=none leaves this process without a tpu device")


@pytest.mark.parametrize("name", ["other minor", "bad platform"])
def test_import_torch_works_where_the_device_cannot_be_registered(facts, name):
    assert facts[name]["works"] == 2.0
    assert len(facts[name]["warnings"]) == 1
    assert facts[name]["warnings"][0] == f"torch_tpu: there is no tpu device in this process: {facts[name]['error']}"


def test_another_minor_version_of_torch_is_named_and_nothing_is_loaded(facts):
    error = facts["other minor"]["error"]
    assert error.startswith("torch_tpu was built for PyTorch 2.99.x and cannot run with PyTorch 2.")
    assert "\n" not in error
    assert not facts["other minor"]["loaded"]


def test_an_unknown_platform_is_named(facts):
    assert facts["bad platform"]["error"] == "TORCH_TPU_PLATFORM='gpu' is not a platform; choose one of tpu, cpu, cuda, none"


def test_a_second_private_backend_is_named(facts):
    assert "another" in facts["other backend"]["error"]

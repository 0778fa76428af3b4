"""Running Python in processes of its own, for tests of what only a fresh process shows: imports, forks, several devices, crashes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]


def start(code: str, *arguments: str, **environment: str | None) -> subprocess.Popen[str]:
    """Start ``code`` with variables added to the environment (None: taken away)."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "TORCH_TPU_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    variables |= {name: value for name, value in environment.items() if value is not None}
    for name, value in environment.items():
        if value is None:
            variables.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], timeout: float = 240) -> str:
    """What a process wrote to standard output; AssertionError with all that it wrote if it failed."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    return out


def run(code: str, *arguments: str, **environment: str | None) -> str:
    return finish(start(code, *arguments, **environment))


def checks_in(module: str) -> list[str]:
    """The names of a module's functions that start with ``check_``."""
    return [name for name in vars(importlib.import_module(module)) if name.startswith("check_")]


def outcomes(module: str, **environment: str | None) -> dict[str, str]:
    """Call every check of a module in one new process: what went wrong in each, "" where nothing did."""
    out = run("import sys; from tests.subprocesses import report; report(sys.argv[1])", module, **environment)
    return json.loads(out.splitlines()[-1])


def report(module: str) -> None:
    found = {}
    for name in checks_in(module):
        try:
            getattr(sys.modules[module], name)()
            found[name] = ""
        except BaseException:  # each check has its own verdict
            found[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(found) + "\n")

"""Executables on disk, so that a second process compiles nothing.

One file an executable, under ``TORCH_TPU_CACHE_DIR`` (by default ``torch_tpu`` in the user's cache folder). A file is written
beside its final name and renamed, so that readers see whole files whoever else writes or dies; it carries a digest of its
content, and one that does not match is dropped and compiled again. The name covers everything that shapes the code: our own
sources, JAX, the compiler, the processor, the flags, and the program's signature.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform as host
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)

_MAGIC = b"torch_tpu executable 1\n"
_DIGEST_BYTES = 32
DEFAULT_MOST_BYTES = 4 << 30
_TRIM_EVERY_BYTES = 64 << 20
_NEW = ".new-"  # begins the name of a file that is being written
_ABANDONED_SECONDS = 3600

Outputs = list[tuple[tuple[int, ...], np.dtype]]


@dataclass
class _State:
    written_since_trim: int = 0
    broken: bool = False


_state = _State()
_lock = threading.Lock()


def directory() -> Path:
    """The cache's folder, whether or not it exists yet."""
    asked = os.environ.get("TORCH_TPU_CACHE_DIR")
    if asked:
        return Path(asked).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torch_tpu"


def most_bytes() -> int:
    """The size that the folder is kept under: ``TORCH_TPU_CACHE_BYTES``, by default 4 GiB."""
    return int(os.environ.get("TORCH_TPU_CACHE_BYTES", DEFAULT_MOST_BYTES))


def enabled() -> bool:
    """Whether the cache is in use: not switched off (``TORCH_TPU_CACHE=0``), and its folder can be written."""
    return os.environ.get("TORCH_TPU_CACHE", "1") != "0" and not _state.broken


@functools.cache
def _environment_digest() -> str:
    """What, beside a program, decides the code that comes out."""
    import jax
    import jaxlib

    from .client import devices

    device = devices()[0]
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for part in (jax.__version__, jaxlib.__version__, device.client.platform_version, device.device_kind, _processor()):
        digest.update(f"{part}\0".encode())
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        digest.update(f"{name}={os.environ.get(name, '')}\0".encode())
    for source in sorted([*package.glob("lowerings/*.py"), *package.glob("eager/*.py"), *package.glob("runtime/executables.py")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """The instruction sets of the host, which XLA:CPU compiles for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return host.processor()
    wanted = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return "\n".join(sorted(set(wanted)))


def key_of(signature: str) -> str:
    """The file name of the program with this signature, here and now."""
    return hashlib.sha256(f"{_environment_digest()}|{signature}".encode()).hexdigest()


def _path(key: str) -> Path:
    return directory() / key[:2] / key[2:]


def load(key: str) -> tuple[Outputs, bytes] | None:
    """The output types and serialized executable under ``key``; None where there is none, or none that is whole."""
    path = _path(key)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body = content[len(_MAGIC) + _DIGEST_BYTES :]
    digest = content[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        log.warning("the cached executable %s is damaged and is compiled again", path)
        discard(key)
        return None
    header, _, serialized = body.partition(b"\n")
    try:
        outputs = [(tuple(shape), np.dtype(dtype)) for shape, dtype in json.loads(header)]
    except (ValueError, TypeError) as error:
        log.warning("the cached executable %s is not ours and is compiled again: %s", path, error)
        discard(key)
        return None
    try:
        os.utime(path)  # the least recently used go first
    except OSError as error:
        log.debug("cannot mark %s as used: %s", path, error)
    return outputs, serialized


def store(key: str, outputs: Outputs, serialized: bytes) -> None:
    """Keep an executable; a folder that cannot be written switches the cache off with one warning."""
    body = json.dumps([(list(shape), dtype.name) for shape, dtype in outputs]).encode() + b"\n" + serialized
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(body).digest() + body)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        _state.broken = True
        log.warning("the compilation cache in %s cannot be written and is off: %s", directory(), error)
        return
    with _lock:
        _state.written_since_trim += len(body)
        due = _state.written_since_trim > min(_TRIM_EVERY_BYTES, most_bytes() // 4)
        if due:
            _state.written_since_trim = 0
    if due:
        trim()


def discard(key: str) -> None:
    _path(key).unlink(missing_ok=True)


def trim() -> None:
    """Delete the least recently used files until the folder is under its bound. Other processes may do the same."""
    files = []
    for path in directory().glob("??/*"):
        try:
            status = path.stat()
        except OSError:  # another process trimmed it first
            continue
        if path.name.startswith(_NEW) and time.time() - status.st_mtime > _ABANDONED_SECONDS:
            path.unlink(missing_ok=True)  # its writer died
            continue
        files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most_bytes():
            return
        path.unlink(missing_ok=True)
        total -= size


def clear() -> None:
    """Delete every executable in the folder."""
    for path in directory().glob("??/*"):
        path.unlink(missing_ok=True)

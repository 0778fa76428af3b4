"""From a new signature to an entry of the dispatcher: what the op gives, and the executable that computes it.

Called once a signature. PyTorch's meta function says what the op gives and raises what is wrong with its arguments; the
lowering (or PyTorch's decomposition, traced to lowered ops) says how; reading views and writing them back are traced into the
same program, so an op on views is still one launch.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map

from .. import _C
from ..lowerings import TABLE, functional_of
from ..lowerings.decompositions import trace_decomposition
from ..lowerings.dtypes import numpy_dtype, storage_dtype, torch_dtype
from ..lowerings.graph import call_lowering, flatten_arrays, interpret
from ..lowerings.promotion import cast
from ..lowerings.randomness import random_key
from ..lowerings.table import Lowering
from ..runtime.executables import ArrayType, compile_program
from . import argument_errors, fallback
from .views import ViewPlan, loaded, read_view, stored, write_view


class SlotType(NamedTuple):
    """A storage that takes part: the base's shape and dtype, and whether its buffer may be taken over."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    donatable: bool


class Use(NamedTuple):
    """One tensor argument: the slot of its storage (-1: no elements, or a host number) and its view (None: whole base)."""

    slot: int
    plan: ViewPlan | None


@dataclass(frozen=True)
class TensorInput:
    """Placeholder of a tensor argument while a program is built."""

    index: int  # among the uses
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    conjugate: bool = False
    negative: bool = False
    first_scalar: int = 0  # where its view's starts, or the value of a host number, lie among the scalars

    def meta(self) -> torch.Tensor:
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class ScalarInput:
    """Placeholder of a Python number that is passed at run time."""

    index: int  # among the scalars
    example: bool | int | float | complex


SCALAR_TYPES = {
    bool: ArrayType((), np.dtype(np.bool_), weak=True),
    int: ArrayType((), np.dtype(np.int64), weak=True),
    float: ArrayType((), np.dtype(np.float64), weak=True),
    complex: ArrayType((), np.dtype(np.complex128), weak=True),
}
INT64 = ArrayType((), np.dtype(np.int64))


@dataclass(frozen=True)
class FreshOutput:
    """A result in a storage of its own."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def order(self) -> list[int]:
        """The dimensions from the slowest to the quickest: the base holds the values in this order."""
        return sorted(range(len(self.sizes)), key=lambda d: (-self.strides[d], d))

    @property
    def base_shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[d] for d in self.order)

    @property
    def empty(self) -> bool:
        return math.prod(self.sizes) == 0


@dataclass
class Program:
    """Everything known of one signature."""

    overload: OpOverload
    args: tuple[Any, ...]  # with placeholders, in schema order
    uses: list[Use]
    slots: list[SlotType | None]
    device: int
    tensors: list[TensorInput] = field(default_factory=list)
    scalars: list[ArrayType] = field(default_factory=list)
    outputs: list[FreshOutput] = field(default_factory=list)
    returns: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    written: list[TensorInput] = field(default_factory=list)
    lowering: Lowering | None = None
    graph: torch.fx.GraphModule | None = None
    present: tuple[bool, ...] = ()  # which results the lowering gives, once it has been traced
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    precision: str = field(default_factory=torch.get_float32_matmul_precision)

    def __str__(self) -> str:
        shown = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.sizes)}" for t in self.tensors)
        return f"{self.overload}({shown})"

    @functools.cached_property
    def signature(self) -> str:
        """The program's name in the disk cache: all that shapes it, and nothing of this process."""
        parts = (
            str(self.overload),
            self.args,
            self.uses,
            self.slots,
            self.scalars,
            self.outputs,
            [(tensor.index, self.written_slots) for tensor in self.written],
            self.default_dtype,
            self.precision,
        )
        return repr(parts)

    @property
    def random(self) -> bool:
        return self.lowering is not None and self.lowering.random

    @property
    def first_is_contiguous(self) -> bool:
        return not self.tensors or self.tensors[0].meta().is_contiguous()

    @property
    def passed(self) -> list[int]:
        """The slots whose bases are inputs of the executable."""
        return [i for i, slot in enumerate(self.slots) if slot is not None]

    @property
    def written_slots(self) -> list[int]:
        slots = [self.uses[tensor.index].slot for tensor in self.written if self.uses[tensor.index].slot >= 0]
        return list(dict.fromkeys(slots))

    @property
    def result_types(self) -> list[ArrayType]:
        """The bases that the program gives: of results with elements, then of written slots."""
        fresh = [ArrayType(o.base_shape, numpy_dtype(o.dtype)) for o in self.outputs if not o.empty]
        written = [self.new_base(slot) for slot in self.written_slots]
        return fresh + [ArrayType(shape, numpy_dtype(dtype)) for shape, dtype in written]

    def new_base(self, slot: int) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype of the base that a write leaves in ``slot``."""
        held = self.slots[slot]
        if held is not None:
            return held.shape, held.dtype
        tensor = next(t for t in self.written if self.uses[t.index].slot == slot)
        return tensor.sizes, tensor.dtype


# ---- roles of arguments: what the dispatcher asks of an overload, once

STATIC, SCALAR, DROPPED, GENERATOR, WRITTEN = range(5)
PYTHON_KERNEL, COPY, INDEXES, FITTING = 1, 2, 4, 8
_INDEXING = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put",
}  # fmt: skip
# Ops whose number must fit the dtype of the first argument: a run-time number, so that it is looked at in every call.
_FITTING = {
    f"aten::{name}{place}"
    for name in ("addcdiv", "addcmul", "constant_pad_nd", "fill", "index_fill", "masked_fill", "scatter", "threshold")
    for place in ("", "_")
}
PYTHON_KERNELS: dict[OpOverload, Callable[..., Any]] = {}


def python_kernel(*overloads: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function on tensors for overloads whose results' shapes depend on values, or that read the host."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            PYTHON_KERNELS[overload] = function
        return function

    return register


def overload_named(name: str, overload: str) -> OpOverload:
    namespace, base = name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload)


def is_scalar(argument: torch._C.Argument) -> bool:
    """Whether an argument is a ``Scalar`` (or a list or an optional one) in the schema."""
    return "number" in str(argument.type) or "Scalar" in str(argument.type)


def describe(name: str, overload_name: str) -> tuple[bytes, int, Any]:
    """The role of each argument of an overload, its flags, and its Python kernel if it runs as one."""
    overload = overload_named(name, overload_name)
    functional = functional_of(overload)
    lowering = TABLE.get(functional) if functional is not None else None
    kernel = PYTHON_KERNELS.get(overload) or (PYTHON_KERNELS.get(functional) if functional is not None else None)
    if kernel is not None and functional is not overload and overload not in PYTHON_KERNELS:
        kernel = _out_of(overload, kernel)
    written = lowering.writes if lowering is not None else ()
    roles = []
    for argument in overload._schema.arguments:
        if argument.name == "generator":
            roles.append(GENERATOR)
        elif argument.name in {"device", "layout", "pin_memory", "memory_format", "non_blocking"}:
            # They place or lay out results: the latter decides their strides, so it stays in the key.
            roles.append(STATIC if argument.name in {"memory_format", "layout"} else DROPPED)
        elif argument.alias_info is not None and argument.alias_info.is_write or argument.name in written:
            roles.append(WRITTEN)
        elif lowering is None:
            roles.append(STATIC)
        elif argument.name in lowering.runtime or (is_scalar(argument) and argument.name not in lowering.static):
            roles.append(SCALAR)
        else:
            roles.append(STATIC)
    flags = PYTHON_KERNEL if kernel is not None else 0
    flags |= COPY if name == "aten::_copy_from" else 0
    flags |= INDEXES if name in _INDEXING else 0
    flags |= FITTING if name in _FITTING else 0
    return bytes(roles), flags, kernel


def _out_of(overload: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The ``out=`` form of a Python kernel: computes, then resizes and copies into the out tensors."""
    positions = [i for i, argument in enumerate(overload._schema.arguments) if argument.is_out]

    def into(*args: Any) -> Any:
        results = kernel(*(a for i, a in enumerate(args) if i not in positions))
        outs = [args[i] for i in positions]
        for out, result in zip(outs, results if isinstance(results, (tuple, list)) else [results]):
            if out.shape != result.shape:
                out.resize_(result.shape)
            out.copy_(result)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return into


# ---- building a program


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Below the user's torch function and dispatch modes: they have seen the op already."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        yield


def miss(name: str, overload_name: str, args: tuple[Any, ...], uses: list[Any], slots: list[Any], device: int) -> Any:
    """The dispatcher's entry for a new signature. None: the op's out tensors were resized, look again. A function: call that."""
    overload = overload_named(name, overload_name)
    typed_slots = [None if slot is None else SlotType(tuple(slot[0]), slot[1], slot[2]) for slot in slots]
    with _undisturbed():
        program = Program(overload, (), [Use(*use) for use in uses], typed_slots, device)
        _place_inputs(program, args)
        try:
            results, after = _run_meta(program)
            argument_errors.check_written(overload, args)
            argument_errors.check_suspicious(overload, args)
            argument_errors.check_resized(overload, args, after)
        except Exception as error:
            raise argument_errors.on_cpu(overload, args, error) from None
        if _resize_outputs(program, args, after):
            return None
        if not _choose_lowering(program):
            return functools.partial(fallback.run_on_cpu, overload)
        if results is _UNKNOWN:
            try:
                results = _shapes_by_evaluation(program)
            except (TypeError, ValueError, IndexError) as error:
                raise argument_errors.on_cpu(overload, args, error) from None
        _plan_outputs(program, results)
        _check_size(program)
        return _entry(program)


_MOST_BYTES = 1 << 56  # of one result: more than any machine has, and not yet so many that XLA aborts the process


def _check_size(program: Program) -> None:
    from ..runtime.memory import out_of_memory

    for result in program.result_types:
        count = math.prod(result.shape) * result.dtype.itemsize
        if count > _MOST_BYTES:
            raise out_of_memory(str(program), f"allocating {count} bytes", program.device)


def _place_inputs(program: Program, args: tuple[Any, ...]) -> None:
    """Replace tensors and run-time numbers by placeholders, in the dispatcher's order."""
    roles, _, _ = describe(program.overload._schema.name, program.overload._overloadname)
    uses = iter(range(len(program.uses)))

    def place(value: Any, role: int, argument: torch._C.Argument) -> Any:
        if role == DROPPED or role == GENERATOR or value is None:
            return value
        if isinstance(value, torch.Tensor):
            return place_tensor(value)
        if isinstance(value, (list, tuple)):
            return [place(each, role, argument) for each in value]
        number = isinstance(value, (bool, int, float, complex))
        if number and str(argument.type).startswith(("Tensor", "Optional[Tensor]")):
            next(uses)  # a Python number in a tensor's place
            return place_number(value)
        default = argument.default_value if argument.has_default_value() else None
        if number and role == SCALAR and not (type(value) is type(default) and value == default):
            return place_number(value)
        if type(value) is int and "ScalarType" in str(argument.real_type):
            return _C.dtype(value)
        return value

    def place_number(value: Any) -> ScalarInput:
        program.scalars.append(SCALAR_TYPES[type(value)])
        return ScalarInput(len(program.scalars) - 1, value)

    def place_tensor(tensor: torch.Tensor) -> TensorInput:
        index = next(uses)
        use = program.uses[index]
        placed = TensorInput(
            index,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
            first_scalar=len(program.scalars),
        )
        if tensor.device.type == "cpu":
            program.scalars.append(ArrayType((), numpy_dtype(tensor.dtype)))
        elif use.plan is not None:
            program.scalars.extend([INT64] * len(use.plan.moving))
        program.tensors.append(placed)
        return placed

    program.args = tuple(place(v, r, a) for v, r, a in zip(args, roles, program.overload._schema.arguments))


def _meta_arguments(program: Program) -> tuple[Any, ...]:
    """The arguments, with meta tensors in the place of tensors, and examples in that of numbers."""

    def to_meta(x: Any) -> Any:
        if isinstance(x, TensorInput):
            return x.meta()
        return x.example if isinstance(x, ScalarInput) else x

    return tree_map(to_meta, program.args)


_UNKNOWN = object()


def _run_meta(program: Program) -> tuple[Any, tuple[Any, ...]]:
    """What the op gives on meta tensors, and its arguments afterwards; _UNKNOWN if it has no meta function."""
    arguments = program.overload._schema.arguments
    values = _meta_arguments(program)
    if program.overload is torch.ops.aten._copy_from.default:
        argument_errors.check_copy(*values[:2])
        return None, tuple(values)
    positional, keyword = [], {}
    for argument, value in zip(arguments, values):
        if argument.name == "device" and value is not None:
            value = torch.device("meta")
        if argument.name == "generator":
            value = None
        if argument.kwarg_only or argument.is_out:
            keyword[argument.name] = value
        else:
            positional.append(value)
    if program.overload is torch.ops.aten._grouped_mm.default and program.tensors[0].dtype is not torch.bfloat16:
        return _UNKNOWN, tuple(values)  # PyTorch's meta function knows bfloat16 only, its CPU kernel the other floats as well
    try:
        return program.overload(*positional, **keyword), tuple(values)
    except RuntimeError as error:
        if isinstance(error, NotImplementedError) or "no fake impl registered" in str(error):  # a custom op says it so
            return _UNKNOWN, tuple(values)
        raise
    except AttributeError:  # a meta function in Python that forgot that a tensor is optional
        return _UNKNOWN, tuple(values)


def _resize_outputs(program: Program, args: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Give the actual out tensors the shapes that the meta function gave theirs; whether any changed."""
    changed = False
    for argument, actual, meta in zip(program.overload._schema.arguments, args, after):
        if argument.is_out and isinstance(meta, torch.Tensor) and meta.shape != actual.shape:
            actual.resize_(meta.shape)
            if actual.stride() != meta.stride():
                actual.as_strided_(meta.shape, meta.stride())
            changed = True
    return changed


def _choose_lowering(program: Program) -> bool:
    """Find how the op is computed; False: on the CPU, as the user allowed. NotImplementedError if in no way."""
    functional = functional_of(program.overload)
    program.lowering = TABLE.get(functional) if functional is not None else None
    if program.lowering is not None:
        return True
    args, kwargs = _functional_arguments(program, lambda x: x.meta() if isinstance(x, TensorInput) else x.example)
    if functional is not None:
        program.graph = trace_decomposition(functional, tuple(args), kwargs)
    if program.graph is not None:
        return True
    if not fallback.enabled():
        raise NotImplementedError(
            f"tpu: {program} is not implemented: it has no lowering and PyTorch has no decomposition for it. "
            "Compute it on the CPU yourself, or let torch_tpu do so with torch.tpu.cpu_fallback(True)."
        )
    return False


def _functional_arguments(program: Program, convert: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the functional overload, with ``convert`` applied to the placeholders."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument, value in zip(program.overload._schema.arguments, program.args):
        if argument.is_out:
            continue
        value = tree_map(lambda x: convert(x) if isinstance(x, (TensorInput, ScalarInput)) else x, value)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    functional = functional_of(program.overload)
    if functional is not None and functional is not program.overload:
        known = {a.name for a in functional._schema.arguments}
        kwargs = {name: value for name, value in kwargs.items() if name in known}
        outs = [value for a, value in zip(program.overload._schema.arguments, program.args) if a.is_out]
        if "dtype" in known and "dtype" not in kwargs and len(outs) == 1 and isinstance(outs[0], TensorInput):
            kwargs["dtype"] = outs[0].dtype  # what arange.out counts in, say
    return args, kwargs


def _shapes_by_evaluation(program: Program) -> Any:
    """Results of an op without a meta function: evaluate the lowering abstractly; contiguous strides."""
    body = _body(program)
    with jax.enable_x64(True):
        values = jax.eval_shape(lambda *inputs: body(inputs)[0], *(each.abstract(program.device) for each in input_types(program)))
    given = (torch.empty(v.shape, dtype=torch_dtype(v.dtype), device="meta") for v in values)
    results = tuple(next(given) if present else None for present in program.present[: len(program.present) - len(program.written)])
    returns = program.overload._schema.returns
    return results[0] if len(returns) == 1 and isinstance(returns[0].type, torch.TensorType) else results


def _plan_outputs(program: Program, results: Any) -> None:
    """Which results are new, which are arguments, and what is written."""
    schema = program.overload._schema
    names = [argument.name for argument in schema.arguments]
    hidden = program.lowering.writes if program.lowering is not None else ()
    for argument, value in zip(schema.arguments, program.args):
        if argument.alias_info is not None and argument.alias_info.is_write:
            program.written.extend(x for x in tree_flatten(value)[0] if isinstance(x, TensorInput))
    for name in hidden:
        argument = schema.arguments[names.index(name)]
        if argument.alias_info is None or not argument.alias_info.is_write:
            value = program.args[names.index(name)]
            program.written.extend(x for x in tree_flatten(value)[0] if isinstance(x, TensorInput))
    aliases = {
        tuple(a.alias_info.before_set): i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    }
    values = results if len(schema.returns) > 1 or isinstance(results, tuple) and not schema.returns else (results,)
    if program.overload is torch.ops.aten._copy_from.default:
        program.returns.append((1, (1,)))  # it gives back its destination, although its schema does not say so
        return
    for declared, value in zip(schema.returns, values):
        alias = tuple(declared.alias_info.before_set) if declared.alias_info is not None else None
        if alias in aliases:
            program.returns.append((1, (aliases[alias],)))
        elif value is None:
            program.returns.append((3, ()))
        elif isinstance(value, torch.Tensor):
            program.returns.append((0, (_add_output(program, value),)))
        else:
            program.returns.append((2, tuple(_add_output(program, each) for each in value)))


def _add_output(program: Program, meta: torch.Tensor) -> int:
    strides = tuple(meta.stride())
    if not torch._prims_common.is_non_overlapping_and_dense_or_false(meta):
        strides = torch._prims_common.make_contiguous_strides_for(meta.shape)
    program.outputs.append(FreshOutput(tuple(meta.shape), tuple(strides), meta.dtype))
    return len(program.outputs) - 1


def input_types(program: Program) -> list[ArrayType]:
    bases = [ArrayType(slot.shape, storage_dtype(slot.dtype)) for slot in program.slots if slot is not None]
    return bases + program.scalars + ([INT64, INT64] if program.random else [])


def _body(program: Program) -> Callable[[Sequence[Array]], tuple[list[Array], dict[int, Array]]]:
    """The program as a function: inputs → (the op's own results, new bases by slot)."""

    def read(tensor: TensorInput, bases: dict[int, Array], scalars: Sequence[Array]) -> Array:
        use = program.uses[tensor.index]
        if math.prod(tensor.sizes) == 0:
            return jnp.zeros(tensor.sizes, numpy_dtype(tensor.dtype))
        if use.slot < 0:
            return scalars[tensor.first_scalar]
        if use.plan is not None:
            value = read_view(use.plan, bases[use.slot], scalars[tensor.first_scalar :])
        elif use.slot in bases:
            value = bases[use.slot].reshape(tensor.sizes)
        else:  # never written
            value = jnp.zeros(tensor.sizes, storage_dtype(tensor.dtype))
        value = loaded(value, tensor.dtype)
        value = jnp.conj(value) if tensor.conjugate else value
        return -value if tensor.negative else value

    def write(tensor: TensorInput, value: Array, bases: dict[int, Array], scalars: Sequence[Array]) -> None:
        use = program.uses[tensor.index]
        if use.slot < 0:
            return
        value = jnp.broadcast_to(cast(value, numpy_dtype(tensor.dtype)), tensor.sizes)
        value = -value if tensor.negative else value
        value = jnp.conj(value) if tensor.conjugate else value
        value = stored(value, tensor.dtype)
        if use.plan is not None:
            bases[use.slot] = write_view(use.plan, bases[use.slot], scalars[tensor.first_scalar :], value)
        else:
            bases[use.slot] = value.reshape(program.new_base(use.slot)[0])

    def body(inputs: Sequence[Array]) -> tuple[list[Array], dict[int, Array]]:
        count = len(program.passed)
        bases = dict(zip(program.passed, inputs))
        scalars = inputs[count : count + len(program.scalars)]

        def value_of(x: Any) -> Any:
            return read(x, bases, scalars) if isinstance(x, TensorInput) else scalars[x.index]

        args, kwargs = _functional_arguments(program, value_of)
        if program.lowering is not None:
            results = call_lowering(program.lowering, tuple(args), kwargs, lambda: random_key(*inputs[-2:]), program.first_is_contiguous)
        else:
            assert program.graph is not None
            results = interpret(program.graph, [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Array)])
        program.present = tuple(each is not None for each in tree_flatten(results)[0])
        values = flatten_arrays(results)
        own = values[: len(values) - len(program.written)] if program.written else values
        for tensor, value in zip(program.written, values[len(own) :]):
            write(tensor, value, bases, scalars)
        return own, bases

    return body


def _entry(program: Program) -> tuple[Any, ...]:
    """(record, outputs, returns, random) as the dispatcher takes it; compiled when it first runs by itself."""
    described = [(2 if o.empty else 0, -1, o.sizes, o.strides, o.dtype, o.base_shape, o.dtype) for o in program.outputs]
    described += [(1, slot, (), (), program.new_base(slot)[1], *program.new_base(slot)) for slot in program.written_slots]
    return program, described, program.returns, program.random


def program_function(program: Program) -> Callable[..., list[Array]]:
    """The program on arrays: input bases and run-time numbers → the bases of its results, then those that it wrote."""
    body = _body(program)

    def function(*inputs: Array) -> list[Array]:
        own, bases = body(inputs)
        if len(own) != len(program.outputs):
            raise AssertionError(f"{program}: the lowering gave {len(own)} results, PyTorch's meta function {len(program.outputs)}")
        fresh = []
        for output, value in zip(program.outputs, own):
            if tuple(jnp.shape(value)) != output.sizes:
                raise AssertionError(f"{program}: the lowering gave shape {jnp.shape(value)}, the meta function {output.sizes}")
            if not output.empty:
                fresh.append(lax.transpose(stored(value, output.dtype), output.order))
        return fresh + [bases[slot] for slot in program.written_slots]

    return function


def prepare(program: Program) -> tuple[Any, Any]:
    """The executable of a program by itself, as (execute, handlers)."""
    written = program.written_slots
    donated = [i for i, slot in enumerate(program.passed) if slot in written and program.slots[slot].donatable]  # type: ignore[union-attr]
    with _undisturbed():
        try:
            executable = compile_program(
                program_function(program),
                input_types(program),
                device=program.device,
                donated=donated,
                signature=program.signature,
                name=str(program.overload).replace(".", "_"),
            )
        except (TypeError, ValueError, IndexError) as error:  # what JAX raises where PyTorch's meta function let it pass
            raise argument_errors.on_cpu(program.overload, _meta_arguments(program), error) from None
    return executable.execute, executable.handlers


def failed(program: Any, error: Exception) -> None:
    """Raise what the user should see when an executable fails to launch."""
    from ..runtime.memory import out_of_memory

    text = str(error)
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        raise out_of_memory(str(program), text, program.device) from error
    raise RuntimeError(f"tpu: {program} failed: {text}") from error

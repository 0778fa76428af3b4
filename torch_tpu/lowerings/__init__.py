"""The meaning of ATen operators as functions on JAX arrays: one file a family, one table for all of them."""

import importlib
import pkgutil

from .table import TABLE, Lowering, bind, functional_of, lowers

_NOT_FAMILIES = {"decompositions", "dtypes", "graph", "precision", "promotion", "randomness", "table"}
for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _NOT_FAMILIES:
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TABLE", "Lowering", "bind", "functional_of", "lowers"]

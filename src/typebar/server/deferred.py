"""Packages whose modules are used one by one, without what the package itself brings."""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any


def defer(package: str, **homes: str) -> None:
    """Lets modules of `package` be imported while its own __init__ has not run: it runs when another name is asked for.

    homes: names that do not need it, and the modules that have them. Nothing happens where it has run already.
    """
    if package in sys.modules:
        return
    spec = find_spec(package)
    if spec is None or spec.loader is None:
        return  # the import that follows tells it
    module, loader = module_from_spec(spec), spec.loader

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        if find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        if "__getattr__" in vars(module):
            del module.__getattr__
            loader.exec_module(module)
        return getattr(module, name)

    module.__getattr__ = find  # type: ignore[method-assign]
    sys.modules[package] = module

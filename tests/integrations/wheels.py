"""Running a few of a wheel's files without installing it: every other module of the package is an empty stand-in."""

import importlib.abc
import importlib.machinery
import sys
import types
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class AnyName(type):
    """A class that has every attribute; a subscript of it is the class itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return any_class(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Anything(metaclass=AnyName):
    """What stand-ins consist of: usable as a base class, a decorator that changes nothing, a logger."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return any_class(name)

    def __call__(self, *args: Any) -> Any:
        return args[0] if args else None

    def __bool__(self) -> bool:
        return False


def any_class(name: str) -> AnyName:
    return AnyName(name, (Anything,), {})


class StandIn(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)[name] = any_class(name)
        return vars(self)[name]


class Wheel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a package's modules: those that are to be real in the wheel, stand-ins for all others.

    Args:
      wheel: the file.
      folder: where the real modules are unpacked.
      package: its top-level name.
      real: modules that run as they are; a name includes everything below it.
      fill: called with every stand-in, to give it what the real modules need of it.
    """

    def __init__(
        self,
        wheel: Path,
        folder: Path,
        *,
        package: str,
        real: Sequence[str],
        fill: Callable[[types.ModuleType], None] = lambda _: None,
    ) -> None:
        self._folder, self._package, self._real, self._fill = folder, package, tuple(f"{name}." for name in real), fill
        prefixes = tuple(name.replace(".", "/") for name in real)
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith(prefixes) and name.endswith(".py")]
            archive.extractall(folder, names)
        print(f"{wheel.name}: {len(names)} files")
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, _target: Any = None) -> Any:
        if fullname.split(".")[0] != self._package:
            return None
        if f"{fullname}.".startswith(self._real):
            return importlib.machinery.PathFinder.find_spec(fullname, path)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = StandIn(spec.name)
        module.__path__ = [str(self._folder.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        self._fill(module)

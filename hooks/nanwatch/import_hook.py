"""Does something with a module as soon as it has been imported. Standard library only.

    when_imported({"engine.core": lambda module: ...})
A finder stands first on sys.meta_path. For a name that it was given it asks the finders behind it,
as the import would have, and puts itself between the import and the loader that they found: the
real loader loads, then the action runs, inside the same import. Every other name costs one look
into a dict. The module itself is left with the loader that loaded it.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def when_imported(actions: Mapping[str, Action]) -> None:
    """Run each action on the module of its name: at once where it is imported, else when it will be.

    A module that is loaded again is shown to its action again. An action's exception is the
    import's: whoever gives one catches what must not get out.
    """
    sys.meta_path.insert(0, ActionFinder(actions))
    for name, action in actions.items():
        if name in sys.modules:
            action(import_module(name))  # waits, where another thread is importing it just now


class ActionFinder(MetaPathFinder):
    """Finds the modules that have an action, by way of the finders behind it."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = dict(actions)
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the others found, with the action behind its loader."""
        action = self._actions.get(fullname)
        if action is None or getattr(self._asking, "name", None) == fullname:
            return None
        self._asking.name = fullname  # another hook on the path may ask all finders anew, us too
        try:
            spec = self._ask_the_others(fullname, path, target)
        finally:
            self._asking.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, action)
        return spec

    def _ask_the_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders: list[Any] = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in finders if hasattr(finder, "find_spec"))
        return next((spec for spec in found if spec is not None), None)


class _Loader(Loader):
    """The loader that was found, and the action after it."""

    def __init__(self, loader: Any, action: Action) -> None:
        self._loader, self._action = loader, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the real loader make the module."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Load the module as if nobody stood here, then act."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

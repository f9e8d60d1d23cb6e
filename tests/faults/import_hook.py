"""Applies one fault to the source of modules when they are imported."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from tests.faults.catalogue import Edit, Fault


class FaultyLoader(SourceFileLoader):
    """Compiles the changed source; the source file and its stored bytecode stay as they are."""

    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled source with the fault."""
        source = self.get_data(self.path).decode("utf-8")
        for edit in self._edits:
            source = edit.apply(source)
        return compile(source, self.path, "exec", dont_inherit=True)


class FaultyFinder(MetaPathFinder):
    """Finds the modules that a fault changes."""

    def __init__(self, fault: Fault) -> None:
        self._edits: dict[str, list[Edit]] = {}
        for edit in fault.edits:
            self._edits.setdefault(edit.module, []).append(edit)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the usual specification of a changed module with another loader; None for all other modules."""
        if fullname not in self._edits:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = FaultyLoader(fullname, spec.origin, self._edits[fullname])
        return spec


def install(fault: Fault) -> None:
    """Apply a fault to all later imports of this process."""
    sys.meta_path.insert(0, FaultyFinder(fault))

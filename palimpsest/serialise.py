"""Specs to JSON and back: `{"part": "Delta", "beta": 0.5}`.

The name of the class is looked up among the subclasses of the field's type when it is needed, so that parts
defined later, or by a user, are found. A part from outside this package, or from its legacy room, is named with its
module, which is imported if need be: `{"part": "my_parts:Gaussian"}`; or with its file, if no module can be called
what that is called: `{"part": "/home/me/json.py:Gaussian"}`.
"""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from cattrs import ClassValidationError, Converter, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.v import format_exception

from .errors import UserError
from .spec import Spec

PART = "part"
S = TypeVar("S", bound=Spec)


def to_json(spec: Spec) -> dict[str, Any]:
    return converter().unstructure(spec)


def from_json(data: dict[str, Any], kind: type[S], source: str = "the recipe") -> S:
    """Strict: an unknown or missing part, field or type is refused, all faults named at once."""
    try:
        return converter().structure(data, kind)
    except ClassValidationError as error:
        faults = "; ".join(fault.replace("$", source, 1) for fault in transform_error(error, format_exception=explain))
        raise UserError(f"{source} cannot be read: {faults}") from error


def explain(fault: BaseException, kind: type | None) -> str:
    return str(fault) if isinstance(fault, UserError) else format_exception(fault, kind)


def converter() -> Converter:
    made = Converter(forbid_extra_keys=True)
    made.register_unstructure_hook(Path, str)
    made.register_structure_hook(Path, lambda text, _: Path(text))
    made.register_structure_hook(bool, strictly(bool))
    made.register_structure_hook(int, strictly(int))
    made.register_structure_hook(str, strictly(str))
    made.register_structure_hook(float, lambda number, _: float(strictly(int, float)(number, float)))
    made.register_unstructure_hook_func(is_spec, lambda spec: {PART: part_name(type(spec)), **fields_of(made, spec)})
    made.register_structure_hook_func(is_spec, lambda data, kind: structure(made, data, kind))
    return made


def strictly(*kinds: type):
    def check(value: Any, kind: type) -> Any:
        if type(value) not in kinds:
            raise UserError(f"{value!r} is not of type {kind.__name__}")
        return value

    return check


def is_spec(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Spec)


def fields_of(made: Converter, spec: Spec) -> dict[str, Any]:
    return make_dict_unstructure_fn(type(spec), made)(spec)


def structure(made: Converter, data: Any, kind: type[Spec]) -> Spec:
    if not isinstance(data, dict) or PART not in data:
        raise UserError(f'expected a part such as {{"{PART}": "{kind.__name__}"}}, found {data!r}')
    concrete = find_part(data[PART], kind)
    rest = {name: value for name, value in data.items() if name != PART}
    return make_dict_structure_fn(concrete, made, _cattrs_forbid_extra_keys=True)(rest, concrete)


def part_name(kind: type[Spec]) -> str:
    package, *rooms = kind.__module__.split(".")
    known = package == __name__.split(".")[0] and "legacy" not in rooms
    return kind.__name__ if known else f"{kind.__module__}:{kind.__name__}"


def find_part(name: str, kind: type[S]) -> type[S]:
    module, _, short = name.rpartition(":")
    known = {part_name(variant): variant for variant in kind.variants()}
    if module and name not in known:
        import_part(module, name)
        known = {part_name(variant): variant for variant in kind.variants()}
    return known[name] if name in known else kind.named(short)


def import_part(module: str, name: str) -> None:
    if module.endswith(".py"):
        bring, remedy = import_file, "bring that file back"
    else:
        bring, remedy = import_module, "start from the folder that holds it, or add that folder to PYTHONPATH"
    try:
        bring(module)
    except (ImportError, FileNotFoundError) as error:
        raise UserError(
            f"the part {name!r} lives in {module!r}, which cannot be imported ({error}): {remedy}"
        ) from error


def import_file(file: str | Path) -> ModuleType:
    """By its name, if Python finds it so; by its place, if another is called so (`json.py`), or nothing can be."""
    path = Path(file).resolve()
    if found_by_name(path):
        return import_module(path.stem)
    name = str(path)
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not Python")
        sys.modules[name] = module_from_spec(spec)  # before it is carried out: dataclasses look there for their types
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def found_by_name(path: Path) -> bool:
    try:
        spec = None if "." in path.stem else find_spec(path.stem)
    except ValueError:  # of a module that came from nowhere, such as __main__
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path

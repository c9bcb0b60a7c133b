"""What the package's sources say, read without being imported: whoever completes a word must not wait for torch."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import iter_modules

PACKAGE = Path(__file__).parents[1]
HERE = Path(__file__).parent


@dataclass(frozen=True, eq=False)  # each is itself, so that answers about it can be kept
class Field:
    """A field of a dataclass as it is written."""

    name: str
    hint: ast.expr
    default: ast.expr | None

    @property
    def names(self) -> set[str]:
        """Every name in its type."""
        return {last_name(node) for node in ast.walk(self.hint)}

    @property
    def words(self) -> list[str]:
        """What it can be, where its type is a choice of words."""
        choices = [node for node in ast.walk(self.hint) if is_literal(node)]
        return [word for choice in choices for word in map(as_text, ast.walk(choice)) if word is not None]

    @property
    def may_be_absent(self) -> bool:
        return any(isinstance(node, ast.Constant) and node.value is None for node in ast.walk(self.hint))

    @property
    def is_switch(self) -> bool:
        return last_name(self.hint) == "bool"

    @property
    def flag(self) -> str:
        """`--prompt-file`, or as tyro is told to call it; a switch that is on can only be turned off."""
        calls = [node for node in ast.walk(self.hint) if isinstance(node, ast.Call)]
        told = [as_text(keyword.value) for call in calls for keyword in call.keywords if keyword.arg == "name"]
        name = next(filter(None, told), self.name).replace("_", "-")
        is_on = self.is_switch and isinstance(self.default, ast.Constant) and self.default.value is True
        return f"--{'no-' if is_on else ''}{name}"


@dataclass(frozen=True, eq=False)
class Class:
    """A class as it is written."""

    path: Path
    name: str
    bases: tuple[str, ...]
    fields: dict[str, Field]
    constants: dict[str, object]
    is_dataclass: bool


@cache
def options() -> dict[str, dict[str, Class]]:
    """The classes of each file of the command line."""
    return {path.stem: {found.name: found for found in classes_in(path)} for path in sorted(HERE.glob("*.py"))}


@cache
def parts() -> dict[str, list[Class]]:
    """The classes of all other files, by name: parts of different kinds may have the same."""
    found: dict[str, list[Class]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for each in classes_in(path) if path.parent != HERE else ():
            found.setdefault(each.name, []).append(each)
    return found


@cache
def variants(kind: str) -> list[Class]:
    """The parts of a kind."""
    every = [each for found in parts().values() for each in found if each.is_dataclass]
    return [each for each in every if any(ancestor.name == kind for ancestor in line_of(each))]


@cache
def fields_of(part: Class) -> dict[str, Field]:
    """With those of the parts it is derived from."""
    line = [ancestor for ancestor in reversed(line_of(part)) if ancestor.is_dataclass]
    return {name: field for ancestor in line for name, field in ancestor.fields.items()}


@cache
def line_of(part: Class) -> list[Class]:
    """The class and all it is derived from."""
    bases = [base for name in part.bases for base in parts().get(name, [])]
    bases = [base for base in bases if base.path == part.path] or bases
    return [part, *(ancestor for base in bases for ancestor in line_of(base))]


@cache
def kinds_in(field: Field) -> list[str]:
    """The kinds of part that a field may hold."""
    return [name for name in sorted(field.names) if any(is_spec(each) for each in parts().get(name, []))]


def is_spec(part: Class) -> bool:
    return any(ancestor.name == "Spec" for ancestor in line_of(part))


def recipe_names() -> list[str]:
    return [module.name.replace("_", "-") for module in iter_modules([str(PACKAGE / "recipes")])]


def shelves() -> list[str]:
    """The standard corpora, by the names that people use."""
    return [str(each.constants["shelf"]) for each in variants("Standard") if "shelf" in each.constants]


def classes_in(path: Path) -> Iterator[Class]:
    text = path.read_text("utf-8")
    if "\nclass " not in text:
        return
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            yield Class(
                path,
                node.name,
                tuple(map(last_name, node.bases)),
                {field.name: field for field in map(as_field, node.body) if field is not None},
                dict(filter(None, map(as_constant, node.body))),
                any(last_name(decorator) == "dataclass" for decorator in node.decorator_list),
            )


def as_field(node: ast.stmt) -> Field | None:
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        return None
    field = Field(node.target.id, node.annotation, node.value)
    return None if "ClassVar" in field.names else field


def as_constant(node: ast.stmt) -> tuple[str, object] | None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
        return node.targets[0].id, node.value.value
    return None


def last_name(node: ast.AST) -> str:
    """`Path` of `pathlib.Path`, and `dataclass` of `dataclass(frozen=True)`."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and last_name(node.value) == "Literal"


def as_text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

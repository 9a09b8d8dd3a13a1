"""YAML by the rules of YAML 1.2: scalars are read as text, then by the core schema.

PyYAML follows YAML 1.1, where ``off`` is false, ``010`` is eight and ``1:30`` is ninety.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from toolkit.config.errors import Fault, RecipeError

__all__ = ["Keys", "parse_yaml", "read_scalar", "read_yaml", "text_of", "to_yaml"]

Keys = tuple[str, ...]

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE, _FALSE = {"true", "True", "TRUE"}, {"false", "False", "FALSE"}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = {".nan", ".NaN", ".NAN"}
_PREFIX = "tag:yaml.org,2002:"
_MAX_VALUES = 10_000  # an alias of an alias of ... can stand for billions of values


class _WrittenInt(int):
    """An integer that remembers how it was written, for arguments declared as text."""

    text: str


class _WrittenFloat(float):
    """A float that remembers how it was written, for arguments declared as text."""

    text: str


def read_scalar(text: str) -> Any:
    """The value of a plain scalar by YAML 1.2's core schema; what matches nothing stays text.

    A number whose usual spelling differs from ``text`` keeps it, see :func:`text_of`.

    Example:
        >>> [read_scalar(text) for text in ("off", "010", "0o10", "1:30", "1e-3", "~", "True")]
        ['off', 10, 8, '1:30', 0.001, None, True]
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return _written(_WrittenInt(text, base), text)
    if _FLOAT.fullmatch(text):
        return _written(_WrittenFloat(text), text)
    if _INF.fullmatch(text) or text in _NAN:
        return float(text.replace(".", ""))
    return text


def text_of(value: Any) -> str:
    """A scalar as it was written, as far as that is known.

    Example:
        >>> text_of(read_scalar("010")), text_of(0.5), text_of(True)
        ('010', '0.5', 'true')
    """
    if isinstance(value, _WrittenInt | _WrittenFloat):
        return value.text
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def parse_yaml(text: str, file: str) -> tuple[Any, dict[Keys, int]]:
    """The values of one YAML document, and the line of every key; anchors and aliases work.

    Args:
        text: The document.
        file: Its name in messages.

    Returns:
        The document's value (``None`` if it is empty), and the line, from 1, of each path of keys
        (mapping keys and list positions, as text).

    Raises:
        RecipeError: If the text is no YAML or nested too deeply, gives a key twice, or uses tags
            other than YAML's own for scalars, YAML 1.1's merge key ``<<``, or an alias inside its
            own anchor.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        reader = _Reader(file)
        value = reader.read(node, ()) if node is not None else None
    except yaml.YAMLError as error:
        raise RecipeError([_syntax_fault(error, file)]) from error
    except RecursionError as error:
        message = "must not be nested that deeply. Check the brackets."
        raise RecipeError([Fault("", message, file=file)]) from error
    if reader.faults:
        raise RecipeError(reader.faults)
    return value, reader.lines


def read_yaml(path: Path) -> Any:
    """The values of a file that :func:`to_yaml` wrote.

    Raises:
        RecipeError: If it is no YAML.
    """
    return parse_yaml(path.read_text(encoding="utf-8"), str(path))[0]


def to_yaml(value: Any) -> str:
    """YAML text that :func:`parse_yaml` reads back to the same values, keys in their order.

    Example:
        >>> print(to_yaml({"mode": "off", "sizes": [1, 2], "lr": read_scalar("1e-3")}), end="")
        mode: off
        sizes: [1, 2]
        lr: 1e-3
    """
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    return str(text).removesuffix("...\n")


def _written(value: Any, text: str) -> Any:
    plain = int(value) if isinstance(value, int) else float(value)
    if str(plain) == text:
        return plain
    value.text = text
    return value


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML publishes no types
    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        """Plain scalars get the tag ``plain``: what they mean is decided by ``read_scalar``."""
        if kind is yaml.ScalarNode:
            return "plain" if implicit[0] else _PREFIX + "str"
        return str(super().resolve(kind, value, implicit))


class _Reader:
    """Turns PyYAML's nodes into values, and keeps lines and faults."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Keys, int] = {}
        self.faults: list[Fault] = []
        self._open: list[Any] = []
        self._count = 0

    def read(self, node: Any, path: Keys) -> Any:
        self._count += 1
        if node in self._open or self._count > _MAX_VALUES:
            self._fault(node, path, "must not hold itself or be that large. Check the aliases.")
            raise RecipeError(self.faults)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        value = (
            self._mapping(node, path)
            if isinstance(node, yaml.MappingNode)
            else [self._at(item, (*path, str(i)), item) for i, item in enumerate(node.value)]
        )
        self._open.pop()
        return value

    def _at(self, node: Any, path: Keys, place: Any) -> Any:
        self.lines[path] = place.start_mark.line + 1
        return self.read(node, path)

    def _mapping(self, node: Any, path: Keys) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.read(key_node, path)
            if not isinstance(key, Hashable) or key is None:
                self._fault(key_node, path, "must have names or numbers as keys, got none.")
                continue
            here = (*path, text_of(key))
            if key == "<<":
                self._fault(key_node, path, "must not use '<<', which YAML 1.2 does not have.")
            elif key in result:
                first = self.lines[here]
                self._fault(key_node, here, f"is given twice, first on line {first}.")
            else:
                result[key] = self._at(value_node, here, key_node)
        return result

    def _scalar(self, node: Any, path: Keys) -> Any:
        kind = node.tag.removeprefix(_PREFIX)
        if kind == "str":
            return node.value
        value = read_scalar(node.value)
        kinds: dict[str, Any] = {
            "int": int,
            "float": int | float,
            "bool": bool,
            "null": type(None),
            "plain": object,
        }
        if kind not in kinds or not isinstance(value, kinds[kind]):
            self._fault(node, path, f"has a tag that cannot be read, {node.tag}. Leave it out.")
        return value

    def _fault(self, node: Any, path: Keys, message: str) -> None:
        line = node.start_mark.line + 1
        self.faults.append(Fault(".".join(path), message, file=self.file, line=line))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML publishes no types
    """Writes plain what YAML 1.2 reads back as the same value, and quotes the rest."""

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode or not implicit[0]:
            return str(super().resolve(kind, value, implicit))
        read = read_scalar(value)
        names = {bool: "bool", int: "int", float: "float", type(None): "null"}
        found = next((name for cls, name in names.items() if isinstance(read, cls)), "str")
        return _PREFIX + found

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: Any, value: list[Any]) -> Any:
    flow = not any(isinstance(item, dict | list) for item in value)
    return dumper.represent_sequence(_PREFIX + "seq", value, flow_style=flow)


def _represent_mapping(dumper: Any, value: dict[Any, Any]) -> Any:
    return dumper.represent_mapping(_PREFIX + "map", value, flow_style=not value)


def _represent_written(dumper: Any, value: Any) -> Any:
    kind = "int" if isinstance(value, int) else "float"
    return dumper.represent_scalar(_PREFIX + kind, value.text)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(tuple, _represent_list)
_Dumper.add_representer(dict, _represent_mapping)
_Dumper.add_representer(_WrittenInt, _represent_written)
_Dumper.add_representer(_WrittenFloat, _represent_written)


def _syntax_fault(error: Any, file: str) -> Fault:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    line = mark.line + 1 if mark is not None else None
    return Fault("", f"must be YAML, got a syntax error: {problem}.", file=file, line=line)

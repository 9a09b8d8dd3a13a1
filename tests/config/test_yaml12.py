"""Scalars by YAML 1.2, lines of keys, what is refused, and writing back."""

import math

import pytest

from toolkit.config import RecipeError, to_yaml
from toolkit.config.yaml12 import parse_yaml, read_scalar, text_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(word, word) for word in ("off", "on", "no", "yes", "y", "1:30", "12:30:45", "1_000")],
        *[(word, word) for word in ("2020-01-01", "0b11", "0o9", "1e", "--1", "nan", "inf")],
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("+7", 7),
        ("-0", 0),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5E-2", -0.015),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        *[(word, None) for word in ("", "~", "null", "Null", "NULL")],
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, False) for word in ("false", "False", "FALSE")],
    ],
)
def test_scalars_are_read_by_the_core_schema(text: str, value: object) -> None:
    read = read_scalar(text)
    assert read == value
    assert isinstance(read, type(value))


def test_not_a_number_is_read_as_such() -> None:
    assert math.isnan(read_scalar(".NaN"))


@pytest.mark.parametrize("text", ["010", "1.10", "1e-3", "0x1F", "3", "0.5", "off"])
def test_a_scalar_remembers_how_it_was_written(text: str) -> None:
    assert text_of(read_scalar(text)) == text


def test_quoted_and_tagged_scalars_stay_text() -> None:
    value, _ = parse_yaml("a: '1'\nb: \"off\"\nc: !!str 010\nd: |\n  2\n", "f")
    assert value == {"a": "1", "b": "off", "c": "010", "d": "2\n"}


def test_every_key_and_item_has_its_line() -> None:
    _, lines = parse_yaml("a:\n  b: 1\n  c: [x,\n    y]\nd: {e: 2}\n", "f")
    assert lines[("a", "b")] == 2
    assert lines[("a", "c", "0")] == 3
    assert lines[("a", "c", "1")] == 4
    assert lines[("d", "e")] == 5


def test_an_alias_is_a_copy_not_the_same_object() -> None:
    value, _ = parse_yaml("a: &x {k: [1]}\nb: *x\n", "f")
    assert value["a"] == value["b"]
    assert value["a"] is not value["b"]
    assert value["a"]["k"] is not value["b"]["k"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"f:3: a: is given twice, first on line 1\."),
        ("x: {a: 1, 'a': 2}", r"f:1: x\.a: is given twice"),
        ("a: [1", r"f:1: must be YAML, got a syntax error: expected ',' or '\]'"),
        ("a: 1\n b: 2", r"f:2: must be YAML"),
        ("a: &x [*x]", r"f:1: a\.0: must not hold itself"),
        ("a: !!python/name:os.system x", r"f:1: a: has a tag that cannot be read"),
        ("a: !!int off", r"f:1: a: has a tag that cannot be read"),
        ("a: &x {k: 1}\nb: {<<: *x}", r"f:2: b: must not use '<<'"),
        ("? [a]\n: 1", r"f:1: must have names or numbers as keys"),
        ("1\n---\n2", r"f:2: must be YAML"),
    ],
)
def test_what_is_refused_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_yaml(text, "f")


def test_aliases_of_aliases_end_before_memory_does() -> None:
    text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for level in range(1, 9):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    with pytest.raises(RecipeError, match="be that large"):
        parse_yaml(text, "f")


def test_all_faults_of_a_file_are_told_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_yaml("a: 1\na: 2\nb: !x 3\nc: 1\nc: 2", "f")
    assert [fault.line for fault in caught.value.faults] == [2, 3, 5]


def test_written_yaml_reads_back_to_the_same_values_and_spelling() -> None:
    text = (
        "a: 010\nb: 'off'\nc: off\nd: '1e3'\ne: 1e3\nf: '0o7'\ng: 0o7\nh: [1, [2, {i: ''}], {}]\n"
        "j: null\nk: 'null'\nl: .inf\nm: '${x}'\nn: 'a: b'\no: 1.0\np: true\nq: 'true'\nr: é\n"
    )
    value, _ = parse_yaml(text, "f")
    again, _ = parse_yaml(to_yaml(value), "f")
    assert again == value
    assert {key: type(item) for key, item in again.items()} == {
        key: type(item) for key, item in value.items()
    }
    assert text_of(again["a"]) == "010"
    assert list(again) == list(value)

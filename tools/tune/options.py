"""The texts of `--set` and `--range` in, fixed values and checked ranges out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tools.tune.choices import SEPARATOR, AnyRange, parse_choice
from tools.tune.names import RangeError, check_known, check_settable, check_tunable
from tools.tune.placeholders import MEANING, placeholders_in
from tools.tune.ranges import parse_ends


def parse_set(text: str) -> tuple[str, str]:
    """`NAME=VALUE`. Raises RangeError for a name that is unknown or each trial's own.

    The value is the configuration's to judge.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise RangeError(f"--set {text}: expected NAME=VALUE")
    check_known(name)
    check_settable(name)
    return name, value


def parse_sets(texts: Sequence[str]) -> dict[str, str]:
    """All of them. Raises RangeError for a variable that is set twice, too."""
    pairs = [parse_set(text) for text in texts]
    _check_once([name for name, _ in pairs])
    return dict(pairs)


def parse_range(text: str, placeholders: Collection[str] = ()) -> AnyRange:
    """`NAME=low:high[:log]` or `NAME=a|b|…`. Raises RangeError, with what is accepted."""
    name, _, values = text.partition("=")
    if name not in placeholders:
        in_use = f"; in use: {', '.join(placeholders)}" if placeholders else ""
        check_known(name, also=f"; nor is it a placeholder in use: {MEANING}{in_use}")
        check_tunable(name)
    parse = parse_choice if SEPARATOR in values else parse_ends
    return parse(name, values, f"--range {text}")


def parse_ranges(texts: Sequence[str], base: Mapping[str, str]) -> list[AnyRange]:
    """All of them, of variables and of the placeholders in the base's values.

    Raises RangeError for a placeholder without a range, or in a variable that must be fixed, too.
    """
    over = {text.partition("=")[0] for text in texts}  # the base's values of these are not used
    where = {name: placeholders_in(value) for name, value in base.items() if name not in over}
    placeholders = list(dict.fromkeys(each for names in where.values() for each in names))
    ranges = [parse_range(text, placeholders) for text in texts]
    names = [each.name for each in ranges]
    for variable, held in where.items():
        if held:
            check_tunable(variable)
        if missing := [each for each in held if each not in names]:
            raise RangeError(
                f"{variable}={base[variable]}: no range for {', '.join(f'{{{each}}}' for each in missing)}; give each "
                f"one, --range {missing[0]}=low:high or --range '{missing[0]}=a|b'"
            )
    return ranges


def check_apart(ranges: Sequence[AnyRange], fixed: Mapping[str, str]) -> None:
    """Raises RangeError for a variable with two ranges, or with a range and a value."""
    _check_once([*(each.name for each in ranges), *fixed])


def _check_once(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RangeError(f"{name} is given twice; leave one --range or --set of it")

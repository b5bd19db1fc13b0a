"""A value with lower-case names in braces in, the names or the filled value out."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
MEANING = "a placeholder is a lower-case name that stands in braces in a value of --set or of the base"


def placeholders_in(value: str) -> list[str]:
    """Their names, each once, in the order of their first places."""
    return list(dict.fromkeys(_PLACEHOLDER.findall(value)))


def without(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables whose values hold no placeholder."""
    return {name: value for name, value in variables.items() if not placeholders_in(value)}


def filled(value: str, texts: Mapping[str, str]) -> str:
    """Each placeholder replaced by its text; those without one stay."""
    return _PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), value)

"""Every rule of the verifier, by the module that declares it."""

from __future__ import annotations

from types import ModuleType

from tools.verify import checks
from tools.verify.finding import Rule
from tools.verify.rules import across, bert, clock, events, lines, official, package

MODULES = (official, lines, events, clock, bert, across, checks, package)


def rules_of(module: ModuleType) -> list[Rule]:
    return [value for value in vars(module).values() if isinstance(value, Rule)]


ALL_RULES = [rule for module in MODULES for rule in rules_of(module)]

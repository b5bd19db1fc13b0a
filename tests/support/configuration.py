"""An environment in, what is wrong with it out."""

from __future__ import annotations

import pytest

from benchmarks.bert.config import ConfigError, load


def problems_of(environment: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(environment)
    return str(caught.value).splitlines()

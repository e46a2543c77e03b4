from __future__ import annotations

import pytest

from ckptgov.config.home import config_path, home_dir
from ckptgov.errors import ConfigError

CASES = [
    ({"CKPTGOV_HOME": "/srv/ckpt", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/srv/ckpt"),
    ({"CKPTGOV_HOME": "/srv//ckpt/"}, "/srv/ckpt"),
    ({"CKPTGOV_HOME": "", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/ckptgov"),
    ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/ckptgov"),
    ({"HOME": "/h"}, "/h/.local/state/ckptgov"),
]


@pytest.mark.parametrize(("environ", "home"), CASES)
def test_home_is_taken_from_the_first_variable_that_says_something(environ, home):
    assert home_dir(environ) == home


def test_a_relative_home_is_refused_because_it_would_change_with_the_directory():
    with pytest.raises(ConfigError, match="relative"):
        home_dir({"CKPTGOV_HOME": "state", "HOME": "/h"})


def test_without_any_home_the_hint_names_the_variable_to_set():
    with pytest.raises(ConfigError) as caught:
        home_dir({})
    assert "CKPTGOV_HOME" in (caught.value.hint or "")


def test_the_file_lies_in_the_home():
    assert config_path("/srv/ckpt") == "/srv/ckpt/ckptgov.yaml"

"""A process can be told from every other one, by what a lease keeps of it too."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckptgov.ops.processes import holder_of, process_of, this_process


@pytest.mark.parametrize("boot", ["b00t/pid:[4026531836]", "unknown/unknown", ""])
def test_a_holder_names_its_process(boot: str) -> None:
    process = replace(this_process(), boot=boot)
    assert process_of(holder_of(process)) == process


@pytest.mark.parametrize("text", ["", "host:2", "host:pid:7:boot", "host:2:-7:boot", "host:2:²:b"])
def test_any_other_text_names_no_process(text: str) -> None:
    assert process_of(text) is None

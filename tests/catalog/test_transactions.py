from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from ckptgov.errors import UsageError
from ckptgov.model.checkpoint import RunIdentity


def run(number: int) -> RunIdentity:
    return RunIdentity(run_id=f"i{number}", name=f"n{number}")


def fail_after(catalog, *numbers: int) -> None:
    with catalog.transaction():
        for number in numbers:
            catalog.put_run(run(number), 1)
        raise RuntimeError


def names(catalog) -> list[str]:
    return [each.identity.name for each in catalog.runs()]


def test_a_transaction_is_all_or_nothing(catalog):
    told = catalog.events()
    with pytest.raises(RuntimeError):
        fail_after(catalog, 1, 2)
    assert names(catalog) == []
    assert catalog.events() == told
    with catalog.transaction():
        catalog.put_run(run(1), 1)
        catalog.put_run(run(2), 1)
    assert names(catalog) == ["n1", "n2"]


def test_a_transaction_sees_what_it_wrote_and_others_do_not(catalog, open_catalog):
    other = open_catalog()
    with catalog.transaction():
        catalog.put_run(run(1), 1)
        assert names(catalog) == ["n1"]
        assert names(other) == []
    assert names(other) == ["n1"]


def test_a_call_that_fails_inside_a_transaction_leaves_the_rest(catalog):
    with catalog.transaction():
        catalog.put_run(run(1), 1)
        with pytest.raises(UsageError):
            catalog.put_run(RunIdentity(run_id="other", name="n1"), 1)
        with pytest.raises(RuntimeError):
            fail_after(catalog, 2)
        catalog.put_run(run(3), 1)
    assert names(catalog) == ["n1", "n3"]


def test_another_thread_is_not_part_of_the_transaction(catalog):
    seen: list[list[str]] = []
    with catalog.transaction():
        catalog.put_run(run(1), 1)
        thread = threading.Thread(target=lambda: seen.append(names(catalog)))
        thread.start()
        thread.join()
    assert seen == [[]]


def test_a_writer_waits_for_the_one_before_it(catalog, open_catalog):
    """Read-modify-write under one lock: nobody's update is lost."""
    catalog.adopt_identity("u", 1)
    gate = threading.Barrier(4)

    def raise_epoch(own) -> None:
        gate.wait()
        for _ in range(5):
            with own.transaction():
                own.adopt_identity("u", own.identity().epoch + 1)

    catalogs = [catalog, catalog, open_catalog(), open_catalog()]
    threads = [threading.Thread(target=raise_epoch, args=(own,)) for own in catalogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert catalog.identity().epoch == 21


def test_a_killed_process_leaves_the_state_before_its_transaction(catalog, opening):
    script = textwrap.dedent(
        """
        import os, signal, sys
        from ckptgov.catalog.catalog import Catalog
        from ckptgov.model.checkpoint import RunIdentity
        from ckptgov.model.clock import SystemClock
        catalog = OPENING
        catalog.put_run(RunIdentity(run_id="before", name="before"), 1)
        with catalog.transaction():
            for number in range(500):
                catalog.put_run(RunIdentity(run_id=str(number), name=str(number) * 500), 1)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    script = script.replace("OPENING", opening)
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert names(catalog) == ["before"]
    catalog.put_run(run(1), 1)
    assert names(catalog) == ["before", "n1"]


def test_a_child_that_leaves_at_once_takes_its_transaction_with_it(catalog, opening):
    script = textwrap.dedent(
        """
        import os, sys
        from ckptgov.catalog.catalog import Catalog
        from ckptgov.model.checkpoint import RunIdentity
        from ckptgov.model.clock import SystemClock
        child = os.fork()
        if child == 0:
            catalog = OPENING
            with catalog.transaction():
                catalog.put_run(RunIdentity(run_id="1", name="half"), 1)
                os._exit(7)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    script = script.replace("OPENING", opening)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 7
    assert names(catalog) == []


def test_readers_see_the_last_committed_state_while_another_writes(catalog, open_catalog):
    other = open_catalog()
    catalog.put_run(run(1), 1)
    with catalog.transaction():
        catalog.put_run(run(2), 1)
        assert names(other) == ["n1"]
        assert other.run_by_name("n2") is None
    assert names(other) == ["n1", "n2"]

"""The policies of a cluster: one YAML file each, at most one for any run.

Without a directory of policies this costs one look for it; the YAML parser is loaded only when
there is a file to read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ckptgov.config.load import read_text
from ckptgov.config.selecting import common_run, selects
from ckptgov.errors import ConfigError
from ckptgov.model.policy import Policy
from ckptgov.model.settings import Settings

if TYPE_CHECKING:
    from ckptgov.config.policy_form import ReadPolicy

DIRECTORY = "policies"
_SUFFIX = ".yaml"
MAX_FILES = 1000


def policies_dir(settings: Settings) -> str:
    """Where the policies lie; the directory need not exist unless ``policies:`` names it."""
    return settings.policies_dir or os.path.join(settings.home, DIRECTORY)


def parse_policy(
    text: str, *, file: str, tiers: Collection[str] | None, stores: Collection[str] = ()
) -> Policy:
    """One policy out of its text; ``file`` is for messages and kept in the policy.

    ``tiers``: the names of the configured ones (None: not known, any name goes); ``stores``:
    those of them that are reached through a URL.

    Raises:
        ConfigError: anything wrong or impossible, with file and line.
    """
    from ckptgov.config.policy_form import read_policy

    return read_policy(text, file=file, tiers=tiers, stores=stores).policy


def load_policies(settings: Settings, *, knows_tiers: bool = True) -> tuple[Policy, ...]:
    """Every policy in force, by the names of their files; empty where no directory stands.

    ``knows_tiers``: the settings name every tier of the cluster, so that a policy that names
    another one is wrong.

    Raises:
        ConfigError: a file cannot be read, says something wrong, or two of them have one name or
            surely select one run. Then none of them is in force.
    """
    files = tuple((path, text) for path in policy_files(settings) if (text := _text(path)))
    if not files:
        return ()
    names = frozenset(one.name for one in settings.tiers) if knows_tiers else None
    stores = frozenset(one.name for one in settings.tiers if one.is_url)
    return _parsed(files, names, stores)


def policy_files(settings: Settings) -> tuple[str, ...]:
    """The files that are read, in order.

    Raises:
        ConfigError: the directory cannot be listed, or ``policies:`` names one that is not there;
            a file's name ends in ``.yml`` and would be passed over.
    """
    directory = policies_dir(settings)
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        if error.errno == errno.ENOENT and settings.policies_dir is None:
            return ()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"{directory}: the directory of policies cannot be read: {reason}",
            hint='"policies:" in ckptgov.yaml says where it is',
        ) from error
    shown = [name for name in names if not name.startswith(".")]
    for name in shown:
        if name.endswith(".yml"):
            raise ConfigError(f"{directory}/{name}:1: is not read", hint=f"name it *{_SUFFIX}")
    files = [os.path.join(directory, name) for name in shown if name.endswith(_SUFFIX)]
    if len(files) > MAX_FILES:
        raise ConfigError(f"{directory}: {len(files)} policies, and {MAX_FILES} are the most")
    return tuple(files)


def policy_for(policies: Iterable[Policy], run: str, tags: Collection[str]) -> Policy | None:
    """The policy of a run with these tags; None: no policy, and nothing of it is pruned.

    Raises:
        ConfigError: two of them select it.
    """
    found = [one for one in policies if selects(one.selector, run, tags)]
    if len(found) > 1:
        raise ConfigError(
            f"run {run} is selected by two policies: {found[0].name} ({found[0].file}) "
            f"and {found[1].name} ({found[1].file})",
            hint='narrow "runs", "teams" or "tags" of one: "!lm/*" leaves runs out',
        )
    return found[0] if found else None


def read_each(
    files: Iterable[str], *, tiers: Collection[str] | None, stores: Collection[str] = ()
) -> tuple[tuple[Policy, ...], tuple[ConfigError, ...]]:
    """The policies in some files, and everything that is wrong with them, together too."""
    from ckptgov.config.policy_form import read_policy

    read: list[ReadPolicy] = []
    errors: list[ConfigError] = []
    for path in files:
        try:
            text = read_text(path)
            if text is None:
                raise ConfigError(f"{path}: there is no such file")
            read.append(read_policy(text, file=path, tiers=tiers, stores=stores))
        except ConfigError as error:
            errors.append(error)
    return tuple(one.policy for one in read), (*errors, *_clashes(read))


def _clashes(read: Sequence[ReadPolicy]) -> Iterator[ConfigError]:
    """Policies that cannot be in force together: of one name, or surely for one run."""
    for place, one in enumerate(read):
        for other in read[:place]:
            if one.policy.name == other.policy.name:
                yield ConfigError(
                    f"{one.policy.file}:{one.name_line}: the name {one.policy.name} is taken by "
                    f"{other.policy.file}:{other.name_line}"
                )
            run = common_run(one.policy.selector, other.policy.selector)
            if run is not None:
                yield ConfigError(
                    f"{one.policy.file}:{one.selector_line}: {one.policy.name} and "
                    f"{other.policy.name} ({other.policy.file}:{other.selector_line}) both select "
                    f"runs, such as {run}",
                    hint='one run has one policy: leave runs out of one with "!glob" in "runs"',
                )


@lru_cache(maxsize=16)
def _parsed(
    files: tuple[tuple[str, str], ...], tiers: frozenset[str] | None, stores: frozenset[str]
) -> tuple[Policy, ...]:
    """By the texts themselves: a loaded policy is never older than its file."""
    from ckptgov.config.policy_form import read_policy

    read = [read_policy(text, file=path, tiers=tiers, stores=stores) for path, text in files]
    for clash in _clashes(read):
        raise clash
    return tuple(one.policy for one in read)


def _text(path: str) -> str:
    text = read_text(path)
    if text is None:
        return ""  # gone since it was listed
    return text or "\n"  # an empty file is an error, not an absent one

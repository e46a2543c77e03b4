"""Names: which of them carry a step, and which are temporary. One path component at a time."""

from __future__ import annotations

import re

from ckptgov.model.checkpoint import StepKind

Step = tuple[int, StepKind]

NEGATIVE_MARKER = "-unfinished"
"""NeMo: ``<name>-unfinished`` beside a checkpoint says that it is not whole, whatever it holds
(nemo/lightning/pytorch/callbacks/model_checkpoint.py)."""

# More digits than 18 are a hash or an attack, not a step. A decimal fraction is a metric.
_NUMBER = r"(?P<step>[0-9]{1,18})(?![0-9.]*[0-9])(?=\Z|[-_.@+, ])"
_START = r"(?:\A|(?<=[-_.=+@, ]))"


def _keyed(words: str) -> re.Pattern[str]:
    return re.compile(f"{_START}(?:{words})[-_=]?{_NUMBER}", re.IGNORECASE)


# The first kind of word that is there decides: a step beside an epoch wins.
_WORDS = (
    (_keyed(r"global[-_]?steps?|steps?"), StepKind.STEP),
    (_keyed(r"iter(?:ation)?s?"), StepKind.STEP),
    (_keyed(r"checkpoint|ckpt"), StepKind.STEP),
    (_keyed(r"epochs?"), StepKind.ORDINAL),
)
# fairseq: checkpoint_<epoch>_<updates>; which number counts is not said, so the last one orders.
_TWO_NUMBERS = re.compile(rf"{_START}(?:checkpoint|ckpt)[-_][0-9]+[-_]{_NUMBER}", re.IGNORECASE)
_BARE = re.compile(r"[0-9]{1,18}\Z")
_INTEGER = re.compile(r"(?<![0-9.])(?<![0-9])[0-9]{1,18}(?![0-9])(?!\.[0-9])")
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9_]*\Z")

_STAGING = re.compile(
    r"tmp[-_].*checkpoint.*"  # Hugging Face Trainer
    r"|.*\.orbax-checkpoint-tmp.*"  # Orbax, with and without a time behind it
    r"|\.tmp[A-Za-z0-9]{6}"  # safetensors
    r"|.*[-_.]tmp"  # DCP's .metadata.tmp, fairseq and many others
    r"|.*\.(?:partial|incomplete|part|__lock|dirty\.pt)"  # movers, tensorstore, NVRx
    rf"|.*{NEGATIVE_MARKER}"
    r"|\.nfs.*|\.ckptgov.*",
    re.DOTALL,
)


def step_of_name(name: str) -> Step | None:
    """The step that a directory or file name carries, or None.

    A step follows a word that says so (``step iter iteration checkpoint ckpt``; ``epoch`` gives
    an ordinal) at the start or after a separator, or is the whole name. Padding is any. Temporary
    names carry none.
    """
    if is_staging(name):
        return None
    if _BARE.match(name):
        return int(name), StepKind.STEP
    two = _TWO_NUMBERS.search(name)
    for words, kind in _WORDS:
        matches = list(words.finditer(name))
        if not matches:
            continue
        if two and matches[-1].start() == two.start():
            break
        return int(matches[-1]["step"]), kind
    return (int(two["step"]), StepKind.ORDINAL) if two else None


def step_of_path(path: str) -> Step | None:
    """The step of the last component that carries one (``step=100-val/loss=0.41.ckpt``).

    An ordinal counts only where no component carries a step (``step_100/epoch_3.pt``).
    """
    steps = [step for step in map(step_of_name, path.split("/")) if step is not None]
    real = [step for step in steps if step[1] is StepKind.STEP]
    ordered = real or steps
    return ordered[-1] if ordered else None


def last_integer(name: str) -> Step | None:
    """The step of a generic file name: the keyed one, else its last integer as an ordinal.

    The extension does not count, nor does a decimal fraction (``loss=0.41``).
    """
    keyed = step_of_name(name)
    if keyed is not None:
        return keyed
    numbers = _INTEGER.findall(_EXTENSION.sub("", name))
    return (int(numbers[-1]), StepKind.ORDINAL) if numbers else None


def is_staging(name: str) -> bool:
    """Whether no file or directory of this name is ever a checkpoint or a shard."""
    return _STAGING.fullmatch(name) is not None


def is_debris(name: str) -> bool:
    """Whether this is a framework's temporary name, to be told as staging.

    Names of ours, of the NFS client and negative markers are skipped but never debris: taking
    the marker away would vouch for what it warns of.
    """
    return is_staging(name) and not (
        name.startswith((".nfs", ".ckptgov")) or name.endswith(NEGATIVE_MARKER)
    )

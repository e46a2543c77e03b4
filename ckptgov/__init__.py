"""ckptgov: catalog sharded training checkpoints, prove them whole, say which one restores.

Rooms, from the bottom up (imports point down only, ``tests/test_architecture.py`` proves it)::

    errors, model                                     nouns, seams, the error tree
    config manifest storage layouts catalog planning  one subject each, blind to each other
    work                                              resumable tasks that need no catalog
    ops                                               catalog transitions around work
    governor                                          composition only
    ckptgov_cli                                       parse, call one verb, print, exit code
"""

__version__ = "0.1.0"

"""What this project's tests, and those of other backends and frameworks, are built from.

Promises: fakes here keep the contracts they stand for, so that a test passing on them means
something. Shipped with the package; needs pytest where it holds tests. Must not know: the command
line, and the rooms' insides. Import from the submodules.
"""

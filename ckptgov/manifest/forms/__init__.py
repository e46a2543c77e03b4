"""The forms, version 1: one module per kind of file, each documented to the byte.

Common to all: ASCII JSON, one object a file, one trailing newline, no blanks, members in the
form's order, absent ones left out (never ``null``), integers from 0, the first two members
``"format"`` and ``"version"``, the last one ``"self":"sha256:<64 hex>"`` over every byte of the
file before the comma that precedes it. ``frame`` does these; ``fields`` are the members' rules;
``rows`` the arrays of shards.
"""

"""The nouns: frozen values, closed sets and the seams' protocols. No I/O, no clock.

Paths are ``str``, relative, ``/``-separated, with bytes that are not UTF-8 carried as surrogate
escapes (``os.fsdecode``), so that any POSIX name survives a round trip. They sort by raw bytes.
"""

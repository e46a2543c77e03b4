"""Resumable tasks that need no catalog: look, decide, seal, verify, commit.

This room promises that every task may be killed at any moment and run again, that nothing is
written inside a trainer's checkpoint directory, and that what it reports is what it compared. It
knows storage, manifests, layouts and the pure plans; it must not know the catalog, configuration
files or the command line: this is what an agent without a database can run.
"""

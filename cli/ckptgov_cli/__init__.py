"""The command line: parse, call one verb of the governor, print, exit code. Nothing else."""

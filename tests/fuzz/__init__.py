"""Hostile bytes against everything that reads bytes (RELIABILITY.md F1-F3, F5-F7).

`run` is the tool, `test_fuzz` its slice of every test run and the replay of all scenarios.
"""

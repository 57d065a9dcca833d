"""Pipelines, one module each: functions from DataFrames to DataFrames, and what runs them.

`view` lists those over the journal, `running` runs them once or live; `capture`, `replay` and
`syphon` move messages. The rule: a pipeline knows no command line, no master and no folder but
those that it is given.
"""

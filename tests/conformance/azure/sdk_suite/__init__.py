"""The official SDK's own live tests against `tandem serve`. README.md says how and what.

Two halves. `__main__`, `run` and `download` start servers and pytest, in the project's Python.
`plugin` and what it imports live in that pytest, in a Python of its own beside the SDK: they stand
in for what those tests use of Azure's (resource preparers, a login, a proxy that records).
"""

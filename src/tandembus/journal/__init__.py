"""The journal: the broker's own log as one table of events in Parquet, made beside the broker.

`schema` says what the table has, `follow` reads the log of a running broker without disturbing it,
`decode` turns records into columns, `join` adds what the log says elsewhere (when a message came,
how large it is, when it was locked), `files` writes and resumes, `run` is the side process. The
rule: the log is the truth, and nothing here writes to it; what was written into the journal is
never changed, and its files say up to which place of the log it goes.
"""

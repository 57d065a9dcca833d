"""The single writer around core: group commit, recovery, compaction. `engine` is the heart; `aio`
and `blocking` are its two faces, for the server and for tools."""

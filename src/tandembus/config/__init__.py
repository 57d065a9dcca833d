"""What a server is told: one frozen `ServerConfig` from a file, the environment and flags.

`server` has the settings and what of them cannot work, `reading` their sources and which of them
wins, `emulator` the file of Microsoft's emulator, `entities` what a file says about queues, topics,
subscriptions and rules, and how that differs from what is there, `values` how a value is written.

The rule: a key that is not known is refused by its name, with the one that was probably meant. A
typing mistake would be a server that does something else than it was told.
"""

from tandembus.config.entities import Change, Declared, DeclaredRule, Kind, changes
from tandembus.config.reading import Loaded, load
from tandembus.config.server import OPTIONS, NamespaceConfig, ServerConfig

__all__ = [
    "OPTIONS",
    "Change",
    "Declared",
    "DeclaredRule",
    "Kind",
    "Loaded",
    "NamespaceConfig",
    "ServerConfig",
    "changes",
    "load",
]

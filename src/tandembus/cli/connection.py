"""Which namespace a command means: a connection string, or a broker on this machine by its folder.

The rule: a key is never printed here, and never asked for on the command line alone: the
environment and the folder's own file do as well.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandembus.config.server import POLICIES, ROOT_POLICY, RUNNING
from tandembus.errors import ArgumentError, ConnectionLostError

if TYPE_CHECKING:
    from tandembus.client import Client

VARIABLE: Final = "TANDEM_CONNECTION_STRING"
_HOW: Final = (
    "Which namespace? Give --connection-string, set TANDEM_CONNECTION_STRING, or give --folder, "
    "the data folder of a broker that runs on this machine."
)


def add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which namespace")
    group.add_argument(
        "--connection-string",
        metavar="TEXT",
        help=f"of the namespace, Tandem's or Azure's; or {VARIABLE}",
    )
    group.add_argument(
        "--folder", type=Path, help="the data folder of a broker on this machine; or TANDEM_FOLDER"
    )
    group.add_argument("--namespace", metavar="NAME", help="which one, if the folder has several")
    group.add_argument(
        "--ca-file", metavar="FILE", help="a PEM file to trust instead of the system's"
    )
    group.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="for an answer (60)"
    )


def connect(options: argparse.Namespace) -> Client:
    """A client; it connects when it is used. Close it."""
    from tandembus.client import Client

    return Client(connection_string(options), timeout_s=options.timeout, ca_file=options.ca_file)


def connection_string(options: argparse.Namespace) -> str:
    if options.connection_string:
        return str(options.connection_string)
    if options.folder is None and os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    folder = options.folder or _configured_folder()
    if folder is None:
        raise ArgumentError(_HOW)
    return local(find_namespace(folder, options.namespace))


def _configured_folder() -> Path | None:
    from tandembus.config import load
    from tandembus.config.reading import find_file

    if os.environ.get("TANDEM_FOLDER"):
        return Path(os.environ["TANDEM_FOLDER"])
    if find_file(None, os.environ) is None:
        return None
    return load({}, os.environ, needs_folder=False).config.folder


def find_namespace(folder: Path, name: str | None) -> Path:
    """The folder of a namespace that is below a data folder, or is it itself."""
    if not folder.is_dir():
        raise ArgumentError(f"There is no folder {folder}.")
    if name is not None:
        inside = folder / name
        return inside if inside.is_dir() else folder
    if (folder / POLICIES).exists():
        return folder
    found = sorted(each.parent for each in folder.glob(f"*/{POLICIES}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ArgumentError(f"{folder} is not the data folder of a broker.")
    names = ", ".join(each.name for each in found)
    raise ArgumentError(f"{folder} has several namespaces: give --namespace, one of {names}.")


def local(folder: Path, policy: str | None = None) -> str:
    """The connection string of a namespace that is served from this folder, with the key of a
    policy (None: the root's)."""
    running = read_running(folder)
    if running is None:
        raise ConnectionLostError(f"No broker serves {folder} now: start one with `tandem serve`.")
    policies = read_policies(folder)
    found = next((each for each in policies if each["name"] == (policy or ROOT_POLICY)), None)
    if found is None and policy is not None:
        raise ArgumentError(f"{folder} has no policy '{policy}'.")
    shown = found or policies[0]
    return (
        f"Endpoint=sb://{running['host']}:{running['port']};SharedAccessKeyName={shown['name']};"
        f"SharedAccessKey={shown['primary_key']};UseDevelopmentEmulator=true;"
    )


def read_running(folder: Path) -> dict[str, Any] | None:
    """What the broker that serves a folder says about itself; None: there is none."""
    try:
        running = json.loads((folder / RUNNING).read_text(encoding="utf-8"))
        os.kill(int(running["pid"]), 0)
    except PermissionError:
        return dict(running)  # somebody else's process, but one
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(running)


def read_policies(folder: Path) -> list[dict[str, Any]]:
    file = folder / POLICIES
    try:
        policies = json.loads(file.read_text(encoding="utf-8"))["policies"]
        if all(isinstance(each["primary_key"], str) for each in policies) and policies:
            return list(policies)
    except OSError as error:
        raise ArgumentError(f"{file}: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise ArgumentError(f"{file} does not describe policies.")


# --- entities -------------------------------------------------------------------------------------


def add_entity(parser: argparse.ArgumentParser, *, receives: bool) -> None:
    """Which entity; `receives`: one that has messages, so also a subscription's."""
    if not receives:
        parser.add_argument("entity", metavar="ENTITY", help="a queue or a topic")
        return
    parser.add_argument("entity", metavar="ENTITY", help="a queue; or a topic, with --subscription")
    parser.add_argument("--subscription", "-s", metavar="NAME", help="of the topic")


def add_dead_letters(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dead-letters", "-d", action="store_true", help="of its dead-letter queue")
    which.add_argument(
        "--transfer",
        action="store_true",
        help="of its transfer dead-letter queue: what could not be forwarded",
    )


def path_of(options: argparse.Namespace) -> str:
    """Of what was asked for with `add_entity` and `add_dead_letters`."""
    from tandembus.client import dead_letter_path, subscription_path, transfer_dead_letter_path

    path: str = options.entity
    if getattr(options, "subscription", None):
        path = subscription_path(path, options.subscription)
    if getattr(options, "transfer", False):
        return transfer_dead_letter_path(path)
    return dead_letter_path(path) if getattr(options, "dead_letters", False) else path

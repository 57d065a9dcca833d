"""The web console, on the same port as everything else: what a browser asks for, and who may ask.

    routes     a request in, a response out: the way to the rest, and the safety around it
    visitors   who is signed in
    assets     the page itself: plain files, no build
    entities   what there is, and its settings and rules
    messages   looked at, sent, sent again, deleted
    live       figures as they change, and of the last hour
    board      what processes elsewhere say of themselves: pairs, pools of workers, pipelines

The rule: everything that is done is a command with the claims of whoever signed in, as on every
other road.
"""

from tandembus.admin.console.routes import Console as Console

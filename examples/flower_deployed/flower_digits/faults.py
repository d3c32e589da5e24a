"""What a client that is broken or hostile sends, to see what the server makes of it."""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from pluribus.federated import flower


def spoil(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod: the node config ``fault="nan,shapes,huge"`` says what is wrong with what is sent in rounds 1, 2 and 3.

    Without it, and in rounds after the last that is named, nothing is.
    """
    reply = call_next(message, context)
    named = str(context.node_config.get("fault", "")).split(",")
    server_round = int(message.content["config"]["server-round"])
    fault = named[server_round - 1].strip() if server_round <= len(named) else ""
    if not fault or reply.has_error():
        return reply
    params = flower.tree_of(reply.content["arrays"])
    if fault == "nan":
        spoiled = {name: np.full_like(value, np.nan) for name, value in params.items()}
    elif fault == "shapes":
        spoiled = {name: value[:-1] for name, value in params.items()}
    elif fault == "huge":
        spoiled = {name: value + np.float32(1e6) for name, value in params.items()}
    else:
        raise ValueError(f"no fault is called {fault!r}; there are nan, shapes and huge")
    reply.content["arrays"] = flower.record_of(spoiled)
    return reply

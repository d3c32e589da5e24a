"""Jobs in processes, on executors and on Ray: the bits of jobs done here, whatever dies."""

import os
import pickle
import time
import weakref
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pluribus.engines import Processes
from pluribus.engines.executor import EngineError
from pluribus.federated.clients import worker
from pluribus.federated.clients.base import Job, Plain, Report
from pluribus.federated.clients.engine import _Sender, _Shelf, crew, train_clients
from pluribus.federated.data import Dataset
from pluribus.federated.models import MLP
from pluribus.federated.training import LocalTraining

MODEL = MLP(6, 5, 3, dtype="float32")
HOW = LocalTraining(epochs=2, batch_size=4, momentum=0.5)


@dataclass(frozen=True)
class Counting:
    """Keeps how often a client trained, sends the sum of what it was told."""

    def train(self, job):
        report = job.train()
        times = job.memory.get("times", np.array(0)) + 1
        return report._replace(memory={"times": times}, message={"told": job.told["bias"].sum() + job.round})


@dataclass(frozen=True)
class Native:
    """Lets the model train itself."""

    def train(self, job):
        result = job.model.fit(job.params, job.dataset, job.how, job.seed)
        return Report(result.params, result.loss, result.steps, {}, {})


@dataclass(frozen=True)
class Sleeping:
    """Takes long."""

    def train(self, job):
        time.sleep(100)
        return job.train()


@dataclass(frozen=True)
class Deadly:
    """The process ends at a client's job, once or always."""

    mark: Path
    client: int
    always: bool = False

    def train(self, job):
        if job.client == self.client and (self.always or not self.mark.exists()):
            self.mark.touch()
            os._exit(1)
        return job.train()


class UntoldError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


@dataclass(frozen=True)
class Raising:
    """Some clients raise."""

    clients: tuple
    odd: bool = False

    def train(self, job):
        if job.client in self.clients:
            raise UntoldError(job.client, "more") if self.odd else ValueError(f"client {job.client} will not")
        return job.train()


@dataclass(frozen=True)
class Peeking:
    """Says which process works, and what may be written there."""

    def train(self, job):
        flags = [job.dataset.x.flags.writeable, *(value.flags.writeable for value in job.params.values())]
        return job.train()._replace(message={"process": np.array(os.getpid()), "flags": np.array(flags)})


def _jobs(clients=9, number=0, model=MODEL, size=30_000):
    rng = np.random.default_rng(0)
    params = model.init(0) | {"frozen": rng.normal(size=size).astype(np.float32)}
    jobs = []
    for i in range(clients):
        n = 5 + 3 * i
        data = Dataset(rng.normal(size=(n, 6)), rng.integers(0, 3, size=n), 3)
        jobs.append(Job(model, params, {"bias": np.arange(i)}, data, HOW, {}, 100 * number + i, number, i))
    return jobs


def _equal(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert repr(_plain(one)) == repr(_plain(other))


def _plain(report):
    trees = [
        {k: (v.dtype.str, v.shape, v.tobytes()) for k, v in tree.items()} for tree in (report.params, report.memory)
    ]
    return [*trees, report.loss, report.steps, {k: float(v) for k, v in report.message.items()}]


def _rounds(hired, method, jobs, rounds=3):
    """Reports of some rounds, in which memories and parameters go on."""
    found = []
    for number in range(rounds):
        reports = hired(method, jobs)
        found += reports
        params = {name: np.mean([r.params[name] for r in reports], axis=0) for name in jobs[0].params}
        jobs = [
            replace(job, params=params, memory=r.memory, seed=job.seed + 1000, round=number + 1)
            for job, r in zip(jobs, reports, strict=True)
        ]
    return found


@pytest.fixture(scope="module")
def wanted():
    with crew() as here:
        return _rounds(here, Counting(), _jobs())


def test_processes_give_the_same_bits_round_after_round(wanted):
    with crew(Processes(2)) as hired:
        _equal(_rounds(hired, Counting(), _jobs()), wanted)
    assert [int(report.memory["times"]) for report in wanted] == [1] * 9 + [2] * 9 + [3] * 9


def test_torch_in_processes_gives_the_same_bits():
    torch = pytest.importorskip("torch", reason="torch is not installed; pip install 'pluribus[torch]'")
    from pluribus.federated.torch_model import TorchModel

    nn = torch.nn
    wide = nn.Sequential(nn.Linear(6, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(), nn.Linear(300, 3))
    model = TorchModel(wide, optimizer="adam", scheduler=torch.optim.lr_scheduler.ConstantLR)
    jobs = [replace(job, model=model, params=model.init(0), how=LocalTraining(lr=0.01)) for job in _jobs(3)]
    with crew() as here:
        wanted = here(Native(), jobs)
    with crew(Processes(1)) as hired:
        _equal(hired(Native(), jobs), wanted)


def test_an_executor_of_ones_own_gives_the_same_bits(wanted):
    with ThreadPoolExecutor(2) as pool, crew(pool) as hired:
        _equal(_rounds(hired, Counting(), _jobs()), wanted)
        assert pool.submit(int).result() == 0  # it is still the caller's


def test_ray_gives_the_same_bits_and_survives_a_death(wanted, tmp_path):
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        here = str(Path(__file__).parent)
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            runtime_env={"env_vars": {"PYTHONPATH": here}},
        )
        try:
            with crew("ray") as hired:
                _equal(_rounds(hired, Counting(), _jobs()), wanted)
                jobs = _jobs()
                assert [r.params["hidden.bias"].flags.writeable for r in hired(Plain(), jobs[:1])] == [True]
                deadly = Deadly(tmp_path / "mark", client=4)
                _equal(hired(deadly, jobs), [Plain().train(job) for job in jobs])
                assert deadly.mark.exists()
        finally:
            ray.shutdown()


def test_a_dead_process_is_replaced_and_its_jobs_are_done_again(tmp_path):
    jobs = _jobs()
    with crew(Processes(2)) as hired:
        before = {int(r.message["process"]) for r in hired(Peeking(), jobs)}
        deadly = Deadly(tmp_path / "mark", client=4)
        _equal(hired(deadly, jobs), [Plain().train(job) for job in jobs])
        assert deadly.mark.exists()
        after = hired(Peeking(), jobs)
        assert not before & {int(r.message["process"]) for r in after}
        assert not any(r.message["flags"][0] for r in after)


def test_who_dies_again_and_again_is_named(tmp_path):
    few, jobs = Processes(1), _jobs()
    few.retries = 1
    with crew(few) as hired:
        with pytest.raises(EngineError, match=r"workers died 2 times; not done are clients .*7"):
            hired(Deadly(tmp_path / "mark", client=7, always=True), jobs[5:])
        _equal(hired(Plain(), jobs[:2]), [Plain().train(job) for job in jobs[:2]])  # and it goes on


def test_an_error_outside_ends_processes_in_the_midst_of_their_work():
    jobs, begun = _jobs(1), time.monotonic()

    def interrupted():
        with crew(Processes(1)) as hired:
            hired(Plain(), jobs)
            hired._place.submit(hired._packed(Sleeping(), jobs, set()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert time.monotonic() - begun < 60


def test_what_jobs_raise_is_raised_the_first_first():
    jobs = _jobs(6)
    with crew(Processes(2)) as hired:
        for method in (Raising((5, 2)), Raising((2,))):
            with pytest.raises(ValueError, match="client 2 will not"):
                hired(method, jobs)
        with pytest.raises(RuntimeError, match="UntoldError: 3 and more"):
            hired(Raising((3,), odd=True), jobs)


def test_what_cannot_travel_is_told():
    jobs = _jobs(2, model=MODEL)
    local = replace(jobs[0], model=SimpleNamespace(init=lambda seed: {}))
    with crew(Processes(1)) as hired:
        with pytest.raises(EngineError, match=r"the SimpleNamespace of client 0 cannot be sent .*top of a module"):
            hired(Plain(), [local])
        assert hired(Plain(), []) == []


def test_a_broken_executor_of_ones_own_says_so(tmp_path):
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(1, get_context("spawn")) as pool, crew(pool) as hired, pytest.raises(BrokenProcessPool):
        hired(Deadly(tmp_path / "mark", client=1), _jobs(2))


def test_one_call_for_one_round(wanted):
    _equal(train_clients(Counting(), _jobs()), wanted[:9])
    _equal(train_clients(Counting(), _jobs(), "threads"), wanted[:9])


class _Worker:
    """A worker in this process, that writes down how many bytes came, and forgets on demand."""

    retries = 0

    def __init__(self):
        self.tasks = []

    def submit(self, packed):
        self.tasks.append(pickle.loads(packed))
        return worker.work(packed)

    def collect(self, ticket):
        return ticket

    @property
    def sent(self):
        return sorted(key for task in self.tasks for key in task.supplies)


@pytest.fixture
def forgetful():
    worker._kept.clear()
    yield
    worker._kept.clear()


def test_models_and_data_travel_once_and_again_to_who_lacks_them(forgetful):
    place, jobs = _Worker(), _jobs(4)
    sender = _Sender(place, 1)
    _equal(_rounds(sender, Plain(), jobs), _rounds(lambda m, js: [m.train(j) for j in js], Plain(), jobs))
    assert len(place.sent) == len(set(place.sent)) == 5  # four data sets, one model
    assert all(not task.supplies for task in place.tasks[4:])
    worker._kept.clear()
    place.tasks.clear()
    _equal(sender(Plain(), jobs), [Plain().train(job) for job in jobs])
    assert len(set(place.sent)) == 5


def test_a_worker_without_room_forgets_what_was_used_long_ago(forgetful, monkeypatch):
    monkeypatch.setattr(worker, "ROOM", 5000)
    place, jobs = _Worker(), _jobs(8)
    sender = _Sender(place, 1)
    for _ in range(2):
        _equal(sender(Plain(), jobs), [Plain().train(job) for job in jobs])
    assert sum(size for _, size in worker._kept.values()) <= 5000
    assert len(place.sent) > 9
    assert place.sent.count(sender._shelf.key(MODEL)) == 1  # every task uses it


def test_names_are_for_as_long_as_things_live():
    class Thing:
        pass

    shelf, one = _Shelf(), Thing()
    key, gone = shelf.key(one), weakref.ref(one)
    assert shelf.key(one) == key
    keys = {key}
    del one
    assert gone() is None
    for _ in range(5):
        keys.add(shelf.key(Thing()))
    assert len(keys) == 6
    slots = (1, 2)
    assert shelf.key(slots) == shelf.key(slots)

"""The whole federation on this machine: a SuperLink, SuperNodes and a run, as separate processes over TLS.

    python deploy.py [--nodes 3] [--rounds 5] [--rule TEXT] [--folder FOLDER] [--simulation]

All that is written goes into the folder: keys, logs, Flower's own files, and ``output`` with the checkpoint. Called
again with the same folder it goes on from the checkpoint. Nothing but the loopback is used. All processes are ended
when the script ends, however it ends short of SIGKILL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import certificates

APP = Path(__file__).resolve().parent
HOST = "127.0.0.1"


class Deployment:
    """The processes of one federation, by name: ``superlink``, ``node-0``, ``node-1``, ..."""

    def __init__(self, folder: Path, nodes: int, seconds: float = 60.0) -> None:
        self.folder, self.nodes, self.seconds = folder.resolve(), nodes, seconds
        self.keys, self.logs, self.output = (self.folder / name for name in ("keys", "logs", "output"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs.mkdir(parents=True, exist_ok=True)
        if not (self.keys / "ca.crt").exists():
            certificates.make(self.keys, nodes)
        self.port, *self.node_ports = _free_ports(1 + nodes)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        # Flower's commands find the SuperLink by this file.
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "{HOST}:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self.keys / 'ca.crt'))}\n",
            encoding="utf-8",
        )
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # or the SuperLink installs the app's dependencies
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    # --- processes ----------------------------------------------------------------------------------------------------

    def superlink(self, *, simulation: bool = False) -> None:
        """Start the SuperLink, and wait until it answers. It knows its SuperNodes again by its database.

        With ``simulation`` it makes clients itself, on Ray, and takes no SuperNodes.
        """
        command = ["flower-superlink", "--host", HOST, "--port", str(self.port), "--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(self.keys / "ca.crt"), "--ssl-certfile", str(self.keys / "superlink.crt")]
        command += ["--ssl-keyfile", str(self.keys / "superlink.key"), "--database", str(self.folder / "superlink.db")]
        command += ["--simulation"] if simulation else []
        self._start("superlink", [*command, "--disable-runtime-dependency-installation"])
        trusted = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        waiting = self._patience("the SuperLink to answer", "superlink")
        while waiting():
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"https://{HOST}:{self.port}/health", timeout=2, context=trusted).close()
                return

    def register(self, *nodes: int) -> None:
        """Tell the SuperLink the public keys of SuperNodes: no other one is let in."""
        for i in nodes:
            self._flwr("supernode", "register", str(self.keys / f"node-{i}.pub"), "loopback", "--name", f"node-{i}")

    def supernode(self, i: int, **config: Any) -> None:
        """Start a SuperNode; ``config`` is its node config. One that is started again has the id that it had."""
        memory = str(self.folder / f"node-{i}.safetensors")
        told = {"partition-id": i, "num-partitions": self.nodes, "memory": memory, **config}
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.port}", "--host", HOST]
        command += ["--port", str(self.node_ports[i]), "--root-certificates", str(self.keys / "ca.crt")]
        command += ["--auth-supernode-private-key", str(self.keys / f"node-{i}")]
        self._start(f"node-{i}", [*command, "--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in told.items())])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a process and all that it started, at once."""
        process = self.processes.pop(name)
        try:
            started = below(process.pid)  # some of them have a group of their own
        finally:
            with contextlib.suppress(ProcessLookupError):  # nobody of the group is left
                os.killpg(process.pid, number)
            process.wait()
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """End everything. SuperNodes may say good-bye: one that does not is refused by its SuperLink for a minute."""
        nodes = [process for name, process in self.processes.items() if name.startswith("node-")]
        with contextlib.ExitStack() as stack:  # one that cannot be ended keeps none of the others
            for name in self.processes:
                stack.callback(self.kill, name)
            for process in nodes:
                process.terminate()
            end = time.monotonic() + 5.0
            while time.monotonic() < end and any(process.poll() is None for process in nodes):
                time.sleep(0.05)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def run(self, *, simulation: bool = False, **config: Any) -> None:
        """Submit the app; the log of ``run`` holds what the ServerApp says."""
        config = {"output": str(self.output), "nodes": self.nodes, **config}
        told = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        clients = f"num-supernodes={self.nodes} client-resources-num-cpus=1"
        more = ["--federation-config", clients] if simulation else []
        self._start("run", ["flwr", "run", str(APP), "loopback", "--stream", "--run-config", told, *more])

    def wait(self) -> str:
        """Wait for the end of the last run; how it ended: ``finished:completed`` if all went well."""
        waiting = self._patience("the run to end", "superlink")
        while waiting() and self.processes["run"].poll() is None:
            pass
        del self.processes["run"]
        return str(self._flwr("list", "loopback", "--limit", "1", "--format", "json")["runs"][0]["status"])

    def rounds(self) -> list[dict[str, Any]]:
        """What the server noted after each round, the ones before a restart included."""
        path = self.output / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def log(self, name: str) -> str:
        """What a process has said so far."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- parts --------------------------------------------------------------------------------------------------------

    def _start(self, name: str, command: list[str]) -> None:
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group, which `kill` ends as a whole
            )

    def _flwr(self, *arguments: str) -> Any:
        found = subprocess.run(
            ["flwr", *arguments], env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if found.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)} failed:\n{found.stdout}{found.stderr}")
        start = found.stdout.find("{")
        return json.loads(found.stdout[start:]) if "json" in arguments else None

    def _patience(self, what: str, name: str) -> Callable[[], bool]:
        """Sleeps a little at each call, and raises when the time is over or the process has ended."""
        end = time.monotonic() + self.seconds

        def waiting() -> bool:
            time.sleep(0.1)
            code = self.processes[name].poll()
            if code is not None or time.monotonic() > end:
                why = f"{name} ended with {code}" if code is not None else f"{self.seconds:g} seconds are over"
                raise RuntimeError(f"waiting for {what}: {why}; its log ends\n{self.log(name)[-2000:]}")
            return True

        return waiting


def _free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody has now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind((HOST, 0))
        return [taken.getsockname()[1] for taken in sockets]


def below(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for child, parent in running().items():
        children.setdefault(parent, []).append(child)
    found, left = [], [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += new
    return found


def running() -> dict[int, int]:
    """All processes of this machine that have not ended, with their parents."""
    if Path("/proc/self/stat").exists():  # small containers have no ps
        lines = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended just now
                state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
                lines.append(f"{path.parent.name} {parent} {state}")
    else:
        command = ["ps", "-axo", "pid=,ppid=,stat="]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    table = (line.split() for line in lines)
    return {int(pid): int(parent) for pid, parent, state in table if not state.startswith("Z")}


def main() -> None:
    """Start everything, wait for the run, show what came out, end everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rule", default="fedavgm:momentum=0.5")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--simulation", action="store_true", help="clients on Ray instead of SuperNodes")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM ends the processes too
    folder = given.folder or Path(tempfile.mkdtemp(prefix="flower-digits-"))
    fresh = not (folder / "superlink.db").exists()
    try:
        with Deployment(folder, given.nodes, seconds=60.0 + 30.0 * given.rounds) as here:
            here.superlink(simulation=given.simulation)
            if fresh and not given.simulation:
                here.register(*range(given.nodes))
            for i in range(0 if given.simulation else given.nodes):
                here.supernode(i)
            here.run(simulation=given.simulation, rounds=given.rounds, rule=given.rule)
            print(f"{given.nodes} clients: {here.wait()}; logs in {here.logs}")
            for line in here.rounds():
                print(f"round {line['round']}: accuracy {line['accuracy']:.3f}")
    finally:
        if not given.folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

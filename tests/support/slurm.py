"""A SLURM cluster of one node, on this machine and in a folder of its own, for trying a sweep on a real scheduler.

It needs Debian's packages `slurm-wlm` and `munge` and nothing of the system's own set-up: configuration, key, sockets,
ports, state and logs lie in the folder, and its end takes them all away.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

_NEEDED = ("munged", "slurmctld", "slurmd", "sinfo", "squeue", "sbatch", "srun")
_SETTINGS = """
ClusterName=trial SlurmctldHost={host}(127.0.0.1) SlurmctldPort={ports[0]} SlurmdPort={ports[1]} ReturnToService=2
SlurmUser={user} SlurmdUser={user} AuthType=auth/munge AuthInfo=socket={folder}/munge.socket CredType=cred/munge
StateSaveLocation={folder}/state SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc TaskPlugin=task/none SelectType=select/cons_tres SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none MpiDefault=none SlurmdTimeout=30 InactiveLimit=0 KillWait=5 MinJobAge=300
"""
_NODES = """
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
_CONF = "\n".join(_SETTINGS.split()) + _NODES  # a setting a line


class Cluster:
    """A running cluster; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        if lacking := [name for name in _NEEDED if self.program(name) is None]:
            pytest.fail(f"{', '.join(lacking)} not found; on Debian: apt-get install slurm-wlm munge")
        self.folder = folder
        self.processes: dict[str, subprocess.Popen] = {}
        # What the cluster's commands, and so Snakemake, find it by.
        path = f"{folder / 'bin'}:{os.environ.get('PATH', '')}"
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}

    @staticmethod
    def program(name: str) -> str | None:
        """Find a program, in the folders of the system's administrator too."""
        return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")

    def __enter__(self) -> "Cluster":
        for name in ("state", "spool", "bin"):
            (self.folder / name).mkdir(parents=True)
        conf, srun, key = (self.folder / name for name in ("slurm.conf", "bin/srun", "munge.key"))
        user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname().split(".")[0]
        memory = psutil.virtual_memory().total // 2**20 - 64
        how = {"user": user, "host": host, "ports": _free_ports(2), "cpus": os.cpu_count(), "memory": memory}
        conf.write_text(_CONF.format(folder=self.folder, **how))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        # Snakemake's plugin takes every SLURM_ variable away before it calls srun, which then looks elsewhere.
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {self.program("srun")} "$@"\n')
        srun.chmod(0o755)
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        try:
            for name in ("munged", "slurmctld", "slurmd"):
                self.start(name)
            self.wait_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Jobs outlive the daemon that started them: they end first, as long as somebody can tell them to.
        self._ask("scancel", "--full", "--user", str(os.geteuid()))
        end = time.monotonic() + 20
        while self._ask("squeue", "--noheader") and time.monotonic() < end:
            time.sleep(0.2)
        for process in (self.processes[name] for name in ("slurmd", "slurmctld", "munged") if name in self.processes):
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def start(self, name: str) -> None:
        """Start one of the daemons, in the foreground of a process that is ours."""
        place = self.folder
        munged = ["--foreground", "--force", f"--key-file={place / 'munge.key'}", f"--socket={place / 'munge.socket'}"]
        munged += [f"--{file}-file={place / 'munge'}.{file}" for file in ("pid", "log", "seed")]
        arguments = {"munged": munged, "slurmctld": ["-D", "-i"], "slurmd": ["-D"]}[name]
        with (place / f"{name}.out").open("ab") as out:
            command = [self.program(name), *arguments]
            self.processes[name] = subprocess.Popen(command, env=os.environ | self.environment, stdout=out, stderr=out)
        if name == "munged":
            until(lambda: (place / "munge.socket").exists(), lambda: f"munged does not answer:\n{self.logs()}")

    def kill(self, name: str) -> None:
        """Kill a daemon as a crash would; what it started goes on."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait_idle(self, seconds: float = 60) -> None:
        """Wait until the node takes jobs."""
        until(
            lambda: self._ask("sinfo", "-h", "-o", "%t") in ("idle", "mix", "alloc"),
            lambda: f"the node does not come up:\n{self.logs()}",
            seconds,
        )

    def logs(self) -> str:
        """Return the last lines of the daemons' logs."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(line for file in files for line in file.read_text(errors="replace").splitlines()[-3:])

    def _ask(self, *command: str) -> str:
        """Run one of the cluster's commands, and return its output; nothing where nobody answers."""
        environment = os.environ | self.environment
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()


def until(found: Callable[[], Any], lack: Callable[[], str], seconds: float = 30) -> Any:
    """Wait until something is there, and return it."""
    end = time.monotonic() + seconds
    while not (it := found()):
        if time.monotonic() > end:
            pytest.fail(lack())
        time.sleep(0.01)
    return it


def _free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]

"""A Slurm of our own for as long as a test needs it: munge, controller and one node, each on ports and files of ours.

Two partitions: jobs of `urgent` preempt those of `batch`, which are requeued. The surprise: nothing of a Slurm that may
run on this machine is touched, for clients go by SLURM_CONF and munge by the socket named there.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
REQUEUE_DELAY_S = 5
"""How long a requeued job waits: the lifetime of its credential."""

CONFIGURATION = """
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser={user}
SlurmctldPort={control_port}
SlurmdPort={node_port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge_socket},cred_expire={expire}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=1,bf_interval=1,batch_sched_delay=0,bf_yield_interval=1000000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
InactiveLimit=0
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=batch Nodes={node} Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes={node} PriorityTier=10 MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class SlurmCluster:
    place: Path

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.place / "slurm.conf")}

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=os.environ | self.env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, (command, done.stderr, done.stdout)
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        listed = self.ask("squeue", "--noheader", "--array", "--states=all", "--format=%i %T")
        return dict(line.split() for line in listed.splitlines())

    def logs(self) -> str:
        return "\n".join((self.place / f"{name}.log").read_text()[-3000:] for name in ("slurmctld", "slurmd"))


def missing() -> str | None:
    """Why there can be no such cluster here."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=path()) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (packages slurmctld slurmd slurm-client munge)"
    return None if os.geteuid() == 0 else "slurmd wants to be root"


def path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@contextlib.contextmanager
def running(place: Path) -> Iterator[SlurmCluster]:
    """Ready for jobs; gone afterwards, with every job and all below it."""
    cluster = SlurmCluster(place)
    for name in ("state", "spool"):
        (place / name).mkdir()
    configure(place)
    with contextlib.ExitStack() as daemons:
        key = place / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = [f"--{kind}-file={place / f'munge.{kind}'}" for kind in ("key", "log", "pid", "seed")]
        daemons.enter_context(daemon(place, "munged", "--foreground", "--force", f"--socket={place / 'munge'}", *files))
        wait_for((place / "munge").exists, "munged")
        daemons.enter_context(daemon(place, "slurmctld", "-D", "-i", env=cluster.env))
        daemons.enter_context(daemon(place, "slurmd", "-D", "-N", node(), env=cluster.env))
        wait_for(lambda: "idle" in state(cluster), "slurmd")
        try:
            yield cluster
        finally:
            cluster.ask("scancel", "--user=root", "--signal=KILL", "--full")
            cluster.ask("scancel", "--user=root")
            wait_for(lambda: not {*cluster.states().values()} & {"RUNNING", "COMPLETING"}, "the end of all jobs")
    for step in steps(place):
        step.kill()


def steps(place: Path) -> list[psutil.Process]:
    """Parents of what a job runs; one whose node has gone tries for minutes to tell its controller."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.name() == "slurmstepd" and str(place) in "".join(process.environ().values()):
                found.append(process)
    return found


def configure(place: Path) -> None:
    text = CONFIGURATION.format(
        node=node(),
        user="root",
        control_port=free_port(),
        node_port=free_port(),
        munge_socket=place / "munge",
        expire=REQUEUE_DELAY_S,
        place=place,
        cpus=os.cpu_count(),
    )
    (place / "slurm.conf").write_text(text)


@contextlib.contextmanager
def daemon(place: Path, name: str, *arguments: str, env: dict[str, str] | None = None) -> Iterator[None]:
    """In the foreground; stopped with all below it."""
    program = shutil.which(name, path=path())
    assert program is not None
    with (place / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(
            [program, *arguments], env={**os.environ, **(env or {})}, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield
    finally:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.terminate()
        _, alive = psutil.wait_procs(family, timeout=10)
        for one in alive:
            one.kill()
        psutil.wait_procs(alive, timeout=10)
        process.wait(10)


def state(cluster: SlurmCluster) -> str:
    command = ["sinfo", "--noheader", "--format=%t"]
    done = subprocess.run(command, env=os.environ | cluster.env, capture_output=True, text=True, timeout=30)
    return done.stdout


def wait_for(condition: object, what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.05)


def node() -> str:
    return platform.node().partition(".")[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

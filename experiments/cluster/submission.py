"""A batch as jobs of submitit's: the one that measures the baseline, then an array of the others that waits for it.

The baseline comes first because every gate needs its evidence, and once because a baseline per job would cost each of
them a cell; so the first job carries the whole list and ends at the first cell that can be trusted. The surprise: the
others wait for its end and not for its success. What they do when there is no baseline is theirs to say, in records;
Slurm would let them wait for ever.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from experiments.child import ROOT
from experiments.cluster import queue
from experiments.cluster.batch import chunks
from experiments.cluster.job import work
from experiments.cluster.queue import Job, Jobs
from experiments.cluster.spec import parameters
from experiments.errors import ConfigError
from experiments.gpu import gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from submitit import Executor

    from experiments.cluster.batch import Batch
    from experiments.cluster.job import Role
    from experiments.cluster.spec import LauncherSpec

LOGS = "logs"
"""Of the jobs, in the batch's directory, and what submitit needs there."""


def groups(names: tuple[str, ...], launcher: LauncherSpec) -> list[tuple[str, ...]]:
    """Cells by job; where there are several, the first job's is the baseline, if that can be trusted."""
    if launcher.name == "local" or len(names) <= launcher.cells_per_job:
        return [names]
    return [names[:1], *chunks(names[1:], launcher.cells_per_job)]


def submit(batch: Batch) -> Jobs:
    """The batch's files and its jobs. Raises ConfigError where the cluster takes none; then nothing was started."""
    batch.write()
    first, *others = groups(batch.names, batch.study.launcher)
    try:
        to = executor(batch)
        return baseline_first(batch, to, first, others) if others else one_job(batch, to)
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:  # submitit's ways to say it
        shutil.rmtree(batch.directory)
        raise ConfigError("launcher", f"{batch.study.launcher.name} took no job: {error}") from error


def one_job(batch: Batch, to: Executor) -> Jobs:
    (name,) = submitted(batch, to, [batch.names], "all")
    return noted(batch, [Job(id=name, cells=batch.names)])


def baseline_first(batch: Batch, to: Executor, first: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> Jobs:
    (name,) = submitted(batch, to, [batch.names], "first")
    jobs = [Job(id=name, cells=first)]
    noted(batch, jobs)
    to.update_parameters(slurm_additional_parameters=asked(batch.study.launcher) | {"dependency": f"afterany:{name}"})
    try:
        ids = submitted(batch, to, others, "others")
    except BaseException:
        queue.ask("scancel", name)
        raise
    return noted(batch, [*jobs, *(Job(id=one, cells=group) for one, group in zip(ids, others, strict=True))])


def submitted(batch: Batch, to: Executor, groups: Sequence[Sequence[str]], role: Role) -> list[str]:
    """Ids of one job for each group of cells."""
    count = len(groups)
    jobs = to.map_array(work, [str(batch.directory)] * count, [tuple(group) for group in groups], [role] * count)
    return [job.job_id for job in jobs]


def noted(batch: Batch, jobs: Sequence[Job]) -> Jobs:
    written = Jobs("local" if batch.study.launcher.name == "local" else "slurm", tuple(jobs))
    queue.write(batch.directory, written)
    return written


def executor(batch: Batch) -> Executor:
    """Raises what submitit raises."""
    from submitit import AutoExecutor  # noqa: PLC0415 - only where a sweep goes to a cluster

    launcher = batch.study.launcher
    to = AutoExecutor(folder=batch.directory / LOGS, cluster=launcher.name)
    to.update_parameters(name=f"ling-bench:{batch.study.study}", timeout_min=launcher.time_min)
    if launcher.name == "local":
        count = len(gpus()) if launcher.gpus_per_node is None else launcher.gpus_per_node
        to.update_parameters(gpus_per_node=count, local_setup=setup(launcher))
        return to
    optional = {
        "gpus_per_node": launcher.gpus_per_node,
        "cpus_per_task": launcher.cpus_per_task,
        "mem_gb": launcher.mem_gb,
        "slurm_partition": launcher.partition,
        "slurm_account": launcher.account,
        "slurm_qos": launcher.qos,
        "slurm_constraint": launcher.constraint,
        "slurm_exclusive": launcher.exclusive or None,
    }
    to.update_parameters(
        nodes=1,
        tasks_per_node=1,
        slurm_array_parallelism=launcher.array_parallelism,
        slurm_setup=setup(launcher),
        slurm_additional_parameters=asked(launcher),
        **{key: value for key, value in optional.items() if value is not None},
    )
    return to


def asked(launcher: LauncherSpec) -> dict[str, Any]:
    """TERM before the end, where submitit would have USR2: every process of a job is sent it, servers included."""
    return {"signal": f"TERM@{launcher.notice_s}", "requeue": True, **parameters(launcher)}


def setup(launcher: LauncherSpec) -> list[str]:
    """The job finds this tree as the driver did, whether or not it is installed and wherever the job begins."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return [f"export PYTHONPATH={shlex.quote(paths)}", *launcher.setup]

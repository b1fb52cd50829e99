"""A group of processes that lives as long as a notebook needs it, one rank a process: gloo on the CPU, NCCL on GPUs.

    with Group(4) as group:
        results = group.run(function, *args)      # function(comm, *args) on every rank; a list with one result a rank

A rank that fails, a rank that dies, a time-out and Ctrl-C all end the whole group; so does the end of the notebook's process.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "nccl")
START_SECONDS = 120.0  # to import torch in every process and to find each other
SETTLE_SECONDS = 0.5  # after a failure: how long to wait for the rank that caused it to be known


class RankFailed(RuntimeError):
    """A rank failed, died or did not finish, and the group was ended; `rank` is which one, or None for a time-out."""

    def __init__(self, message: str, rank: int | None = None):
        super().__init__(message)
        self.rank = rank


# ------------------------------------------------------------------------------------------- what a rank works with


class Comm:
    """What a rank function gets: who it is, and the collectives of torch.distributed with a count of what they cost.

    `rank` of `size`, and the `device` of its tensors.  `sent` is how many bytes this rank has to send by the ring algorithms,
    which move the least: 2 (size - 1) / size times the tensor in an all-reduce, size - 1 times in an all-gather; `messages`
    counts the calls.  The functions of this course use nothing else, so they run under torchrun as well:
    `Comm(torch.device("cuda", local_rank))` after `init_process_group`.
    """

    def __init__(self, device: torch.device):
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self.sent, self.messages = 0, 0

    def _count(self, nbytes: float) -> None:
        self.sent += round(nbytes)
        self.messages += 1

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """The sum (or "max") of everyone's `tensor`, in place, the same on every rank."""
        self._count(2 * (self.size - 1) / self.size * tensor.nbytes)
        if tensor.numel() and self.size > 1:
            dist.all_reduce(tensor, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op])
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Everyone's `tensor`, of one shape, in the order of ranks: [size, *shape]."""
        self._count((self.size - 1) * tensor.nbytes)
        if self.size == 1:
            return tensor[None]
        gathered = tensor.new_empty((self.size, *tensor.shape))
        if tensor.numel():
            dist.all_gather_into_tensor(gathered.view(-1), tensor.contiguous().view(-1))
        return gathered

    def pass_on(self, outgoing: torch.Tensor, incoming: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to send `outgoing` to the next rank, and to receive `incoming` from the one before.

        Returns at once; the function that it returns waits, if need be, and gives `incoming`.  Leave both tensors alone until then.
        """
        self._count(outgoing.nbytes)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        transfers = [dist.P2POp(dist.isend, outgoing, after)] * (outgoing.numel() > 0)
        transfers += [dist.P2POp(dist.irecv, incoming, before)] * (incoming.numel() > 0)
        works = dist.batch_isend_irecv(transfers) if transfers else []

        def arrived() -> torch.Tensor:
            while works:
                works.pop().wait()
            return incoming

        return arrived

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)


# --------------------------------------------------------------------------------------------- the notebook's side


class Group:
    """`size` processes of this machine, started now and ended by `close()`, the end of `with`, or any failure.

    backend "gloo" works on CPU tensors and needs no GPU; "nccl" gives each rank a GPU of its own.  Raises ValueError for a
    group that cannot be, RankFailed if it does not come up.
    """

    def __init__(self, size: int, backend: str = "gloo"):
        if backend not in BACKENDS or size < 1:
            raise ValueError(f"a group has at least 1 rank and the backend gloo or nccl, not {size} and {backend!r}")
        if backend == "nccl" and torch.cuda.device_count() < size:
            raise ValueError(f"nccl needs a GPU for each of {size} ranks, and there are {torch.cuda.device_count()}: use gloo")
        self.size, self.backend = size, backend
        folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._folder = Path(folder.name)
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen] = []
        self._end = weakref.finalize(self, _end, self._processes, self._pipes, folder)  # also when Python exits
        try:
            for rank in range(size):
                self._start(rank)
            self._collect(START_SECONDS, "the start")
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        with theirs, open(self._log(rank), "wb") as log:
            self._pipes.append(ours)
            self._processes.append(subprocess.Popen(
                [sys.executable, "-c", "from helpers.many_gpus.group import serve; serve()", str(theirs.fileno())],
                env=_environment(self.size, rank, self.backend, self._folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=[theirs.fileno()], start_new_session=True))  # Ctrl-C is ours to handle

    @property
    def pids(self) -> list[int]:
        """The process of each rank."""
        return [process.pid for process in self._processes]

    def run(self, function: Callable, *args, timeout: float = 60.0) -> list:
        """function(comm, *args) on every rank at the same time; a list of what they returned, in the order of ranks.

        The function must stand in a module, because the ranks import it; arguments and results are pickled.  Raises RankFailed
        if a rank raises or dies, or if not all are done after `timeout` seconds.
        """
        if getattr(function, "__module__", "__main__") == "__main__" or "<" in function.__qualname__:
            raise TypeError(f"the ranks import the function that they run: put {function.__qualname__} into a module")
        if not self._end.alive:
            raise RuntimeError("this group has ended: start a new one")
        task = pickle.dumps((function, args))
        try:
            for pipe in self._pipes:
                try:
                    pipe.send_bytes(task)
                except OSError:
                    pass  # that rank is dead, which _collect reports
            return self._collect(timeout, function.__name__)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process of the group; harmless when there are none."""
        self._end()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def _collect(self, timeout: float, what: str) -> list:
        """One answer from every rank, or RankFailed."""
        deadline, answers, failures = time.monotonic() + timeout, {}, []
        while len(answers) < self.size and not (failures and time.monotonic() > deadline):
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready and not failures:
                raise RankFailed(self._where(f"time-out: {what} took more than {timeout:g} s", list(waiting.values())))
            for pipe in ready:
                kind, *content = answers[waiting[pipe]] = _receive(pipe)
                if kind != "done":
                    deadline = min(deadline, time.monotonic() + SETTLE_SECONDS) if not failures else deadline
                    failures.append((kind != "died", *content, waiting[pipe]))
        if failures:
            raise self._failed(what, *min(failures))
        return [answers[rank][1] for rank in range(self.size)]

    def _failed(self, what: str, raised: bool, when: float, text: str, rank: int) -> RankFailed:
        """The error of the rank that failed first; one that died comes before those that lost it."""
        if not raised:
            code = self._processes[rank].wait()
            text = f"died ({f'signal {-code}' if code < 0 else f'exit status {code}'})" + self._last_words(rank)
        return RankFailed(f"rank {rank} of {self.size} {text}\nDuring {what}; the group was ended.", rank)

    def _where(self, message: str, ranks: list[int]) -> str:
        """`message`, and the line at which each of `ranks` stands."""
        for rank in ranks:
            self._pipes[rank].send_bytes(b"where")
        places = [f"  rank {rank} is at {_receive(self._pipes[rank], 1.0)[-1]}" for rank in ranks]
        done = f"{self.size - len(ranks)} of {self.size} ranks were done."
        return "\n".join([f"{message}; the group was ended. {done}", *places])

    def _log(self, rank: int) -> Path:
        return self._folder / f"{rank}.log"

    def _last_words(self, rank: int) -> str:
        lines = self._log(rank).read_text(errors="replace").strip().splitlines()[-5:]
        return "".join(f"\n  {line}" for line in lines)


def _environment(size: int, rank: int, backend: str, folder: Path) -> dict[str, str]:
    """As torchrun sets it for one machine, and what keeps the ranks on it."""
    cores = str(max(1, (os.cpu_count() or 1) // size))
    environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": cores,
                                "RANKS_BACKEND": backend, "RANKS_FILE": str(folder / "store"), "PYTHONPATH": os.pathsep.join(sys.path),
                                "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}  # NVLink multicast stays off
    if backend == "gloo":
        environment["SOFTMAX_DEVICE"] = "cpu"  # the course's kernels run where the tensors are
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    return environment


def _receive(pipe: Connection, timeout: float | None = None) -> tuple:
    """The next message of a rank; ("died", time, "") if its end of the pipe is closed."""
    try:
        if pipe.poll(timeout):
            return pickle.loads(pipe.recv_bytes())
        return "silent", time.time(), "a place that it does not tell"
    except (EOFError, OSError):
        return "died", time.time(), ""


def _end(processes: list[subprocess.Popen], pipes: list[Connection], folder: tempfile.TemporaryDirectory) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    for pipe in pipes:
        pipe.close()
    folder.cleanup()


# -------------------------------------------------------------------------------------------------- a rank's side


def serve() -> None:
    """The main program of a rank: join the group, then run what the notebook sends until it closes the pipe."""
    pipe, tasks = Connection(int(sys.argv[1])), queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks, threading.get_ident()), daemon=True).start()
    try:
        comm = _join()
        answer = ("done", comm.rank)
    except BaseException as error:
        answer = _raised(error)
    while True:
        pipe.send_bytes(pickle.dumps(answer))
        task = tasks.get()
        try:
            function, args = pickle.loads(task)
            answer = ("done", function(comm, *args))
            pickle.dumps(answer)
        except BaseException as error:
            answer = _raised(error)


def _listen(pipe: Connection, tasks: queue.SimpleQueue, main: int) -> None:
    """Beside the main thread, which may hang: take tasks, tell where it stands, and leave when the notebook is gone."""
    try:
        while (message := pipe.recv_bytes()) != b"where":
            tasks.put(message)
        pipe.send_bytes(pickle.dumps(("at", time.time(), _place(traceback.extract_stack(sys._current_frames()[main])))))
        pipe.recv_bytes()
    except (EOFError, OSError):
        pass
    os._exit(1)


def _join() -> Comm:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    nccl = os.environ["RANKS_BACKEND"] == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if nccl else torch.device("cpu")
    if nccl:
        import cupy

        torch.cuda.set_device(device)
        cupy.cuda.Device(device.index).use()
    dist.init_process_group(os.environ["RANKS_BACKEND"], init_method=f"file://{os.environ['RANKS_FILE']}", rank=rank, world_size=size,
                            device_id=device if nccl else None)
    return Comm(device)


def _raised(error: BaseException) -> tuple:
    """What the notebook needs to know of an exception: when, and its last lines without the folders of this machine."""
    lines = [f"  {_place([frame])}" for frame in _ours(traceback.extract_tb(error.__traceback__))[-3:]]
    return "raised", time.time(), "\n".join([f"raised {type(error).__name__}: {error}", *lines])


def _place(frames) -> str:
    """The innermost line of `frames`, outside of libraries and of this file where there is one."""
    last = (_ours(frames) or list(frames))[-1]
    return f"{Path(last.filename).name}, line {last.lineno}, in {last.name}: {last.line}"


def _ours(frames) -> list:
    return [frame for frame in frames if "site-packages" not in frame.filename and frame.filename not in (__file__, "<string>")]

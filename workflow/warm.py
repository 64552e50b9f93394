"""Run Python programs as forks of one process that has imported the large packages, 8 s of work for each program else.

    python workflow/warm.py over "torch transformers" make book   run a command; what asks below it is forked here
    python workflow/warm.py run -m papermill ARGUMENTS            `python -m papermill ARGUMENTS`, in such a fork

The second is plain Python where the first is not above it, where the system has no `pidfd` (all but Linux), where the
temporary folder's name is too long for a socket, and where the environment is too large for a message. A fork
has the environment, folder, arguments and standard streams of the program that asked for it, and a session of its own.
Signals and the exit code pass through, and it dies with that program. Tests have programs run in the same way, over
other modules (`tests/support/forked.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

ADDRESS = "WARM_PYTHON"
LONGEST = 1 << 17  # bytes of a request, most of them the environment
MOST_OF_A_PATH = 100  # characters of a socket's path; the system takes 107


def run(arguments: list[str]) -> int:
    """Run the arguments in a fork, and exit with its status."""
    asked = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    request = json.dumps(asked).encode()
    address = os.environ.get(ADDRESS, "") if len(request) <= LONGEST else ""  # nobody listens at an empty one
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.connect(address)
    except OSError:
        os.execv(sys.executable, [sys.executable, *arguments])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: link.send(bytes([number])))
    socket.send_fds(link, [request], [0, 1, 2])
    parent = os.getppid()
    while not select.select([link], [], [], 1)[0]:
        if os.getppid() != parent:  # a kernel whose notebook's process was killed
            return 1
    return (link.recv(1) or b"\x01")[0]


def over(modules: list[str], command: list[str]) -> int:
    """Run a command, and fork for the programs below it until it ends; the modules are imported when the first asks."""
    folder = tempfile.mkdtemp(prefix="warm-")
    address = os.path.join(folder, "door")
    if not hasattr(os, "pidfd_open") or len(address) > MOST_OF_A_PATH:
        os.rmdir(folder)
        os.execvp(command[0], command)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(address)
    door.listen(64)
    child = subprocess.Popen(command, env=os.environ | {ADDRESS: address})
    ended = os.pidfd_open(child.pid)
    # The terminal interrupts the command too, and how that ends is what counts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    while ended not in select.select([door, ended], [], [])[0]:
        link, _ = door.accept()
        for module in modules:
            with contextlib.suppress(ImportError):  # the program that needs it will say so
                importlib.import_module(module)
        gc.freeze()  # what is shared is neither copied nor gone through when a fork collects its garbage
        if os.fork() == 0:
            door.close()
            return forked(link)
        link.close()
    shutil.rmtree(folder)
    return child.wait()


def forked(link: socket.socket) -> int:
    """Fork once more: the child runs what was asked for, and its parent passes signals to it and its exit code back."""
    os.setsid()
    request, streams, _, _ = socket.recv_fds(link, LONGEST, 3)
    worker = os.fork()
    if worker == 0:
        link.close()
        return work(**json.loads(request), streams=streams)
    ended = os.pidfd_open(worker)
    while ended not in select.select([link, ended], [], [])[0]:
        os.kill(worker, (link.recv(1) or bytes([signal.SIGKILL]))[0])
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with contextlib.suppress(OSError):
        link.send(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def work(arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]) -> int:
    """Run `python ARGUMENTS` in this process."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    code = 1

    def leave() -> None:
        """Exit at once: tearing down the state shared with the first process takes half a second."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)  # what the program registers after this comes before it
    try:
        if arguments[0] == "-m":
            sys.path[0], sys.argv = folder, arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0], sys.argv = os.path.dirname(os.path.abspath(arguments[0])), arguments
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
        raise
    return code


if __name__ == "__main__":
    if sys.argv[1] == "over":
        sys.exit(over(sys.argv[2].split(), sys.argv[3:]))
    sys.exit(run(sys.argv[2:]))

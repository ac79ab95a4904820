"""Stand-in for `python -m MODULE …` as a process: a server forks the program, which need not import its modules.

Arguments are the module and those of the program. This process passes them to the server at `ASYNCGROUP_TESTS_SERVER`,
with its open files, directory and environment (`tests/forked/server.py`), forwards SIGINT and SIGTERM, and ends as the
program ends. Without the variable it becomes the real program.

It imports no more than it needs: `python -I -S` with the modules below starts in a tenth of the time.
"""

from __future__ import annotations

import _signal
import _socket
import array
import os
import sys

ADDRESS = "ASYNCGROUP_TESTS_SERVER"


def main() -> None:
    address = os.environ.pop(ADDRESS, None)
    if address is None:
        os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])
    early: list[int] = []
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, lambda number, _frame: early.append(number))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(address)
    request = repr((os.getcwd(), dict(os.environ), sys.argv[1:])).encode()  # noqa: PTH109 - pathlib is slow to import
    files = array.array("i", (0, 1, 2)).tobytes()
    server.sendmsg([len(request).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    sent = 0
    while sent < len(request):
        sent += server.send(request[sent:])
    program = int.from_bytes(server.recv(4), "big")
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, lambda number, _frame: os.kill(program, number))
    for number in early:
        os.kill(program, number)
    # files that only the program is to hold: who reads its output waits for its end, not for this one's
    os.close(0)
    os.close(1)
    os.close(2)
    status = os.waitstatus_to_exitcode(int.from_bytes(server.recv(4), "big"))
    if status < 0:
        _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()

"""The engine's process: `python -m verifier_service.engine_process.child FD`.

Knows when it begins and ends; the socket FD says what it serves. Signals are for its parent, which
drains and then says so; when the channel ends without a word, this process does too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from verifier_service.engine_process.host import Host
    from verifier_service.engine_process.wire import Start

_log = logging.getLogger(__name__)

FAILED = 1
_CLOSE_S = 40.0


def main(descriptor: int) -> None:
    """Serve until the other side says or is gone."""
    # A handler, since what is ignored would be ignored in the compiler's processes, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_it_to_the_parent)
    from multiprocessing.connection import Connection

    from outrider import garbage, turns
    from outrider.parent import end_now

    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    # What takes long is imported while the edge reads its tokenizer.
    from verifier_service.engine_process import wire
    from verifier_service.engine_process.building import build

    try:
        start: Start = wire.decode(connection.recv_bytes())
    except EOFError:
        end_now()
    orders = _Orders(connection)
    host = build(start, connection)
    if host is None:
        orders.expect_end()
        end_now()
    garbage.settle()
    turns.be_short()
    orders.serve(host)
    host.ended.wait()
    # A step that never ends must not keep an orphan alive.
    late = threading.Timer(_CLOSE_S, os._exit, (FAILED,))
    late.daemon = True
    late.start()
    host.close()
    # The interpreter's cleanup of an engine takes a second, and nobody needs it any more.
    end_now()


class _Orders:
    """Reads orders on a thread; until there is a host, none come but the end of the channel."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._host: Host | None = None
        self._served = threading.Event()
        self._ending = False
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def serve(self, host: Host) -> None:
        """Give orders to `host` from now on."""
        self._host = host
        self._served.set()

    def expect_end(self) -> None:
        """The channel's end is no surprise any more."""
        self._ending = True

    def _read(self) -> None:
        from verifier_service.engine_process import wire

        try:
            while True:
                order = wire.decode(self._connection.recv_bytes())
                self._served.wait()
                assert self._host is not None
                self._host.take(order)
        except (EOFError, OSError):
            if self._host is None and not self._ending:
                # Loading cannot be interrupted.
                os._exit(FAILED)
        except Exception:
            # The edge sees the process end, and says so.
            _log.exception("an order could not be taken")
        if self._host is not None:
            self._host.ended.set()


def _leave_it_to_the_parent(number: int, frame: FrameType | None) -> None:
    return


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Leadership through `primacy serve` on this machine, with the standard library only.

    with election("billing") as term:      # waits until this process leads
        while term.wait(1):                # False as soon as the work has to stop
            term.check()                   # raises Lost: ask before each act
            write(..., token=term.token)   # the resource refuses a smaller token
    # leaving the block closes the connection, which resigns: the work has stopped by then

The connection is the leadership. If this process dies, the kernel closes it and the next candidate leads at once. If the sidecar dies or hangs, no more
renewals come and term.check() says no at the last deadline that did: the store keeps the name for longer than that.
"""

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from urllib.parse import quote


class Lost(Exception):
    """Leadership is over, or the work has to stop."""


class Term:
    """One reign. Whether it lasts is a comparison of the clock with the deadline, made when you ask; never a flag."""

    def __init__(self, name, token):
        self.name, self.token = name, token  # the token is a string of digits; larger than that of every earlier term
        self.reason = None
        self._deadline = self._ttl = 0
        self._stop = threading.Event()

    def remaining(self):
        """Seconds until this process must not act as leader any more; it moves with each renewal."""
        # CLOCK_BOOTTIME counts suspend; time.monotonic() stops there, and would let a closed laptop lead on.
        return max(0, self._deadline - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9

    def check(self):
        """Raises Lost unless this process leads at this instant. No check recalls a write that is under way: send the token with it."""
        if self.remaining() == 0:
            raise Lost(f"leadership of {self.name} under token {self.token} is over: {self.reason or 'it was not renewed in time'}")

    def wait(self, seconds):
        """Sleeps. False as soon as the work has to stop: an operator asked, the sidecar stops, renewals fail, or the deadline is near."""
        end = time.monotonic() + seconds
        while not self._stop.is_set() and self.remaining() > 0:
            left = end - time.monotonic()
            if left <= 0:
                return True
            self._stop.wait(min(left, self.remaining()))
        return False

    def _take(self, event):
        if event["event"] in ("elected", "renewed"):
            deadline, self._ttl = int(event["deadline_boot_ns"]), event.get("ttl_ms", self._ttl)
            # Of another machine's clock, or of another time namespace's, a deadline says nothing here.
            if event.get("boot_id") != _boot_id() or deadline - time.clock_gettime_ns(time.CLOCK_BOOTTIME) > self._ttl * 1e6:
                self._deadline = 0
                self._end("the sidecar's clock is not this process's")
            else:
                self._deadline = deadline
        elif event["event"] == "stopping":  # its deadline does not move any more
            self._end(event.get("reason"))

    def _end(self, reason):
        self.reason = self.reason or reason
        self._stop.set()

    def _follow(self, answer):
        try:
            for line in answer:
                self._take(json.loads(line))
        except (OSError, ValueError, http.client.HTTPException):
            pass
        self._end("the sidecar is gone")  # what was promised until the deadline holds; nothing is promised beyond


@contextlib.contextmanager
def election(name, path=None, **candidate):
    """Stands for name and leads inside the block. candidate: id, ttl_ms, value, priority, wait_ms. Raises OSError without a sidecar, Lost if it is refused."""
    process = os.getpid()
    candidate["direct"] = True  # closing the connection resigns: no proxy may be in between
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/run")
    connection = _Unix(path or os.environ.get("PRIMACY_SOCKET") or runtime + "/primacy/primacy.sock")
    try:
        connection.request("POST", f"/v1/elections/{quote(name, safe='')}/campaign", json.dumps(candidate), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        term = _won(name, answer)
        reader = threading.Thread(target=term._follow, args=(answer,), daemon=True)
        reader.start()
        try:
            yield term
        finally:
            if os.getpid() == process:
                connection.shut()
                reader.join()
    finally:
        if os.getpid() == process:
            connection.close()
        else:  # a child made by fork shares the connection: its end is not that of the work
            _inherited.append((connection, answer))


def _boot_id():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


_inherited = []  # kept until exit: the reader had a lock of it when it was forked, so that a close would wait for ever


def _won(name, answer):
    for line in answer:
        event = json.loads(line)
        if event.get("event") == "elected":
            term = Term(name, event["token"])
            term._take(event)
            return term
        if event.get("event") != "waiting":
            raise Lost(f"{name}: {event.get('detail') or event.get('problem', {}).get('detail') or event}")
    raise OSError(f"{name}: the sidecar is gone")


class _Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("localhost")
        self._path = path

    def connect(self):
        self.sock = self._own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # no child process inherits it
        self.sock.connect(self._path)

    def shut(self):
        """Ends the connection under a thread that reads."""
        with contextlib.suppress(OSError):
            self._own.shutdown(socket.SHUT_RDWR)

"""worker.py NAME: prints a line ten times a second while it leads NAME.

Exit status: 0 after SIGTERM or SIGINT, 121 no sidecar, 122 leadership was lost.
"""

import signal
import sys

from election import Lost, election


def terminate(*_):
    raise SystemExit(0)  # leaves the block below, which resigns once the work has stopped


def main(name):
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, terminate)
    try:
        with election(name) as term:
            print("leads", term.token, flush=True)
            while term.wait(0.1):
                term.check()
                print("works", term.token, flush=True)  # your work, with the token in each write
            raise Lost(f"leadership of {name} ends: {term.reason or 'it was not renewed in time'}")
    except Lost as why:
        print(why, file=sys.stderr)
        return 122
    except OSError as why:
        print(f"{name}: no sidecar: {why}", file=sys.stderr)
        return 121


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: worker.py NAME")
    sys.exit(main(sys.argv[1]))

"""Clients of a Python lock library, one thread each. They execute the commands and report the events of clients.rs, as JSON
lines on standard input and output. Several worker processes share the clients of a peer, so that the interpreter lock of one
process is not the limit. Invariant: when standard input closes, the process exits, whatever its threads wait for.

Arguments: peer, port of Redis, number of the first client, number of clients, lease of a lock in seconds, pause between two
tries in seconds (or `-` for the default of the library)."""

import json
import os
import queue
import sys
import threading
import time

try:
    import redis
    import redis_lock
except ImportError as error:
    print(json.dumps({"event": "failed", "reason": f"{error}: run `make bench`, which installs it, or choose with --python "
                      "an interpreter that has the packages of peers/requirements.txt"}), flush=True)
    sys.exit(1)

PEER, PORT, FIRST, COUNT, TTL, PAUSE = sys.argv[1:7]
now = time.monotonic_ns
output_lock = threading.Lock()


def report(event, **fields):
    line = json.dumps({"event": event, **fields}, separators=(",", ":"))
    with output_lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def create_lock(connection, name):
    """A lock of the library, which waits in the way of the library."""
    if PEER == "redis-py":
        sleep = {} if PAUSE == "-" else {"sleep": float(PAUSE)}
        return redis.lock.Lock(connection, name, timeout=int(TTL), **sleep)
    return redis_lock.Lock(connection, name, expire=int(TTL))


def run(connection, command):
    locks = [create_lock(connection, name) for name in command["locks"]]
    is_pair, start, end = command["span"] == "pair", command["from_ns"], command["until_ns"]
    samples, longest, turn = [], 0, 0
    while True:
        lock = locks[turn % len(locks)]
        turn += 1
        began = now()
        if began >= end:
            return {"samples_ns": samples, "longest_ns": longest}
        lock.acquire()
        ended = now()
        lock.release()
        if is_pair:
            ended = now()
        if ended >= start:
            longest = max(longest, ended - began)
            if ended < end:
                samples.append(ended - began)


def serve(client, connection, commands):
    held = None
    try:
        while True:
            command = commands.get()
            if command["command"] == "run":
                report("finished", **run(connection, command))
            elif command["command"] == "queue":
                held = create_lock(connection, command["lock"])
                report("acquiring")
                held.acquire()
                report("granted", client=client, at_ns=now())
            elif command["command"] == "release":
                at = now()
                held.release()
                report("released", at_ns=at)
    except Exception as error:  # any error belongs in the report
        report("failed", reason=f"{PEER}: {type(error).__name__}: {error}")


def main():
    threading.stack_size(256 * 1024)
    first, commands = int(FIRST), []
    for client in range(first, first + int(COUNT)):
        # A waiter may wait for longer than the default socket timeout.
        connection = redis.Redis(port=int(PORT), single_connection_client=True, socket_timeout=None)
        connection.ping()
        commands.append(queue.SimpleQueue())
        threading.Thread(target=serve, args=(client, connection, commands[-1]), daemon=True).start()
    report("acquiring")  # all clients are connected
    for line in sys.stdin:
        client, command = json.loads(line)
        commands[client - first].put(command)
    os._exit(0)


if PEER == "versions":
    import hiredis
    import importlib.metadata
    print(json.dumps([
        ["python", sys.version.split()[0]],
        ["redis-py", redis.__version__ + " with hiredis " + hiredis.__version__],
        ["python-redis-lock", importlib.metadata.version("python-redis-lock")],
    ]))
else:
    main()

"""A crowd of clients of a Python library, each a thread: the same orders and events as in crowd.rs, as JSON lines on
standard input and output. Several of these processes share the clients of a peer, so that no interpreter lock is measured
alone. Invariant: when standard input closes, the process ends, whatever its threads wait for.

Arguments: peer, port of Redis, number of the first client, number of clients, seconds of a lock's life, pause between
two tries in seconds (or `-` for the library's own)."""

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
    print(json.dumps({"event": "failed", "why": f"{error}: run `make bench`, which installs it, or name a Python "
                      "that has the packages of bench/requirements.txt with --python"}), flush=True)
    sys.exit(1)

PEER, PORT, FIRST, COUNT, TTL, PAUSE = sys.argv[1:7]
now = time.monotonic_ns
writing = threading.Lock()


def say(event, **fields):
    line = json.dumps({"event": event, **fields}, separators=(",", ":"))
    with writing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def lock_of(connection, name):
    """The library's own lock, with its own way of waiting."""
    if PEER == "redis-py":
        sleep = {} if PAUSE == "-" else {"sleep": float(PAUSE)}
        return redis.lock.Lock(connection, name, timeout=int(TTL), **sleep)
    return redis_lock.Lock(connection, name, expire=int(TTL))


def run(connection, order):
    locks = [lock_of(connection, name) for name in order["locks"]]
    pair, start, end = order["timed"] == "pair", order["from_ns"], order["until_ns"]
    samples, longest, turn = [], 0, 0
    while True:
        lock = locks[turn % len(locks)]
        turn += 1
        asked = now()
        if asked >= end:
            return {"samples_ns": samples, "longest_ns": longest}
        lock.acquire()
        ended = now()
        lock.release()
        if pair:
            ended = now()
        if ended >= start:
            longest = max(longest, ended - asked)
            if ended < end:
                samples.append(ended - asked)


def obey(client, connection, orders):
    held = None
    try:
        while True:
            order = orders.get()
            if order["do"] == "run":
                say("ran", **run(connection, order))
            elif order["do"] == "queue":
                held = lock_of(connection, order["lock"])
                say("asks")
                held.acquire()
                say("granted", client=client, at_ns=now())
            elif order["do"] == "release":
                at = now()
                held.release()
                say("released", at_ns=at)
    except Exception as error:  # whatever it is, the report says it
        say("failed", why=f"{PEER}: {type(error).__name__}: {error}")


def main():
    threading.stack_size(256 * 1024)
    first, orders = int(FIRST), []
    for client in range(first, first + int(COUNT)):
        # A waiter may wait for longer than the client's own time limit for an answer.
        connection = redis.Redis(port=int(PORT), single_connection_client=True, socket_timeout=None)
        connection.ping()
        orders.append(queue.SimpleQueue())
        threading.Thread(target=obey, args=(client, connection, orders[-1]), daemon=True).start()
    say("asks")  # everybody is connected
    for line in sys.stdin:
        client, order = json.loads(line)
        orders[client - first].put(order)
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

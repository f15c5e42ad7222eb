# Runs chromedriver (the arguments) for the guardian. chromedriver does not stop its browsers when it is killed; they notice that
# its pipe is closed and exit some time later. The guardian removes the folder of their profiles, so SIGTERM here kills the whole
# tree and waits until nothing of it runs.

# If the owner dies while a process of its guardian's group is stopped, the kernel sends SIGHUP to the group. Chromium would take
# it as a request to exit and write its profile, so it is not in the group, and this script survives it.
trap '' HUP
ADE_TEST_BROWSER=$PWD setsid "$@" &
driver=$!

# A stopped chromedriver starts no browser and reaps none: process ids stay valid until it is killed too.
stop() {
    trap '' TERM
    kill -s STOP "$driver"
    processes=$(descendants "$driver")
    for process in $processes; do kill -s KILL "$process" 2>/dev/null; done
    for process in $processes; do
        while is_running "$process"; do sleep 0.05; done
    done
    kill -s KILL "$driver"
    # What was forked while the tree was listed, and crash handlers, which leave it.
    while late=$(marked) && [ -n "$late" ]; do
        for process in $late; do kill -s KILL "$process" 2>/dev/null; done
        sleep 0.05
    done
    exit 0
}

descendants() {
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
        echo "$child"
        descendants "$child"
    done
}

# grep also fails if a process exits meanwhile: only its output counts.
marked() {
    grep -lsF "ADE_TEST_BROWSER=$PWD" /proc/[0-9]*/environ | cut -d / -f 3
}

# Exited processes have no command line, also if nobody has reaped them.
is_running() {
    [ -n "$(tr -d '\0' 2>/dev/null <"/proc/$1/cmdline")" ]
}

trap stop TERM
wait "$driver"

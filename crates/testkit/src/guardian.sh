# Runs one server for its owner, in a new folder whose path is the first line of output. The owner sends commands through
# standard input: `prepare` runs the preparation script, `start` starts the server and prints its process id, `reap` waits
# for its exit and logs it. When standard input closes, for any reason, the guardian stops the server and removes the
# folder. The death of the owner closes it too, so that nothing outlives a killed test.
# Arguments: parent of the folder, stop signal, preparation (a shell script), command...

# If the owner dies while the server is stopped, the kernel sends SIGHUP to the orphaned process group. A write to a dead
# owner causes SIGPIPE. The guardian must survive both to clean up.
trap '' HUP PIPE
folder=$(mktemp -d "$1/ade-test-XXXXXX") && cd "$folder" || exit 1
folder=$(pwd)
signal=$2 preparation=$3
shift 3
echo "$folder"
server=
while read -r command; do
    case $command in
    prepare)
        # In the foreground: if the owner dies meanwhile, this ends first, and nothing starts after it.
        sh -c "$preparation" </dev/null >&2
        echo "$?"
        ;;
    start)
        (
            trap - HUP PIPE
            exec "$@" </dev/null >&2
        ) &
        server=$!
        echo "$server"
        ;;
    reap)
        wait "$server"
        echo "process $server exited with status $?" >&2
        echo reaped
        server=
        ;;
    esac
done
exec 2>/dev/null
if [ -n "$server" ]; then
    (
        # A server that has just started may not handle signals yet: repeat the stop signal, then kill.
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do
            kill -s "$signal" "$server"
            kill -s CONT "$server"
            sleep 0.2
        done
        kill -s KILL "$server"
    ) >/dev/null &
    killer=$!
    wait "$server"
    kill "$killer"
fi
cd / && rm -rf "$folder"

# Runs one server for its owner, in a new folder whose path is its first answer. The owner speaks through standard input:
# `prepare` runs the preparation to its end, `start` starts the server and answers with its process id, `reap` waits for
# its end and notes it in the log. When standard input closes, for whatever reason, the server is stopped and the folder
# removed. The owner's death closes it too, so that nothing outlives a killed test.
# Arguments: where to make the folder, stopping signal, preparation (a shell script), command...

# When the owner dies while the server is stopped, the kernel sends SIGHUP to their orphaned process group; and who
# answers an owner that has died gets SIGPIPE. Neither may keep the guardian from its duty.
trap '' HUP PIPE
folder=$(mktemp -d "$1/ade-test-XXXXXX") && cd "$folder" || exit 1
folder=$(pwd)
signal=$2 preparation=$3
shift 3
echo "$folder"
server=
while read -r order; do
    case $order in
    prepare)
        # In the foreground: if the owner dies meanwhile, it ends first, and nothing is started after it.
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
        echo "process $server ended with status $?" >&2
        echo reaped
        server=
        ;;
    esac
done
exec 2>/dev/null
if [ -n "$server" ]; then
    (
        # A server that has just begun may not listen to signals yet: tell it again, and in the end do not ask.
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do
            kill -s "$signal" "$server"
            kill -s CONT "$server"
            sleep 0.2
        done
        kill -s KILL "$server"
    ) >/dev/null &
    insistence=$!
    wait "$server"
    kill "$insistence"
fi
cd / && rm -rf "$folder"

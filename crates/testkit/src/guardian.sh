# Runs one server for its owner, who speaks through standard input: `start` starts it and answers with its process id,
# `reap` waits for its end and notes it in the log. When standard input closes, for whatever reason, the server is stopped and its folder is
# removed. The owner's death closes it too, so that nothing outlives a killed test.
# Arguments: folder, stopping signal, command...
folder=$1 signal=$2
shift 2
server=
# When the owner dies while the server is stopped, the kernel sends SIGHUP to their orphaned process group.
trap '' HUP
while read -r order; do
    case $order in
    start)
        (
            trap - HUP
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
    kill -s "$signal" "$server"
    kill -s CONT "$server"
    (
        sleep 5
        kill -s KILL "$server"
    ) >/dev/null &
    watchdog=$!
    wait "$server"
    kill "$watchdog"
fi
rm -rf "$folder"

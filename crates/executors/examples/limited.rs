//! Processes with limits as a program of their own, because the tests of this crate have no `ade` binary.

fn main() -> std::io::Result<()> {
    ade_executors::limited_process::run(&std::env::args_os().skip(1).collect::<Vec<_>>())
}

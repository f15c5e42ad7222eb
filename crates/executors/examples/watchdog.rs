//! The command watchdog as a program of its own, because the tests of this crate have no `ade` binary.

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ade_executors::watchdog::run())
}

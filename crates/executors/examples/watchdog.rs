//! The watchdog of commands as a program of its own: the tests of this crate have no `ade` beside them.

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ade_executors::watchdog::run())
}

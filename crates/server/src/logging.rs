//! The structured log, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging for the whole process. `format` is `text` or `json`, `level` a level or filters.
///
/// # Errors
/// The level is not one, or the process logs already.
pub fn start(format: &str, level: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|error| format!("log.level: {error}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_target(false);
    let started = match format {
        "json" => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
        _ => builder.compact().try_init(),
    };
    started.map_err(|error| error.to_string())
}

//! The structured log on standard error.

use std::io::IsTerminal;

use ade_app::AUDIT_TARGET;
use tracing_subscriber::EnvFilter;

/// Starts logging for the whole process. Audit events are logged at any level.
///
/// `format` is `text` or `json`; `level` is a level or a list of filters.
pub fn start(format: &str, level: &str) -> Result<(), String> {
    let invalid = |error: &dyn std::fmt::Display| format!("log.level = \"{level}\": {error}");
    let filter = EnvFilter::try_new(level).map_err(|error| invalid(&error))?;
    let audit = format!("{AUDIT_TARGET}=info").parse().map_err(|error| invalid(&error))?;
    let filter = filter.add_directive(audit);
    // PostgreSQL's own notices are noise, unless they are requested.
    let sqlx = "sqlx=warn".parse().map_err(|error| invalid(&error))?;
    let filter = if level.contains("sqlx") { filter } else { filter.add_directive(sqlx) };
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

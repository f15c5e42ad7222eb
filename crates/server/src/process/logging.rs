//! The structured log on standard error.

use std::io::IsTerminal;

use ade_app::AUDIT_TARGET;
use ade_domain::text::escape_hidden;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{self, FormatFields};

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
        _ => builder.fmt_fields(visible_fields()).compact().try_init(),
    };
    started.map_err(|error| error.to_string())
}

/// Fields as `name=value`. Their values come from requests, files and other programs, so hidden characters are escaped; JSON has
/// escapes of its own.
fn visible_fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    let write =
        |writer: &mut format::Writer<'_>, field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            let text = format!("{value:?}");
            match field.name() {
                "message" => write!(writer, "{}", escape_hidden(&text)),
                name => write!(writer, "{name}={}", escape_hidden(&text)),
            }
        };
    format::debug_fn(write).delimited(" ")
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_shows_hidden_characters_as_escapes() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .fmt_fields(visible_fields())
            .compact()
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("request", name = "x\u{202e}y");
            span.in_scope(
                || tracing::warn!(lock = %"a\u{1b}[2J\u{200b}", count = 3, "lost \u{9b}2J\nforged line"),
            );
        });
        let text = String::from_utf8(lines.0.lock().expect("not poisoned").clone()).expect("text");
        assert_eq!(text.lines().count(), 1, "{text:?}");
        for part in ["lost \\u{9b}2J\\nforged line", "lock=a\\u{1b}[2J\\u{200b}", "count=3", "x\\u{202e}y"] {
            assert!(text.contains(part), "{part} not in {text:?}");
        }
        assert!(text.chars().all(|c| c == '\n' || ade_domain::text::is_shown(c)), "{text:?}");
    }
}

//! Arguments of the commands that read a live Redis, and the progress bar that they show.

use std::time::Duration;

use ade_keytool::scan::Pace;
use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug, clap::Args)]
pub(crate) struct ScanArgs {
    /// Redis to read: redis://…, redis+cluster://… or redis+sentinel://…/master-name. A URL with a password belongs in ADE_KEYS_URL
    #[arg(value_name = "URL", env = "ADE_KEYS_URL", hide_env_values = true)]
    pub(crate) url: String,
    /// Keep each server busy for at most this percentage of the time
    #[arg(long, value_name = "PERCENT", default_value_t = Pace::POLITE.share, value_parser = clap::value_parser!(u32).range(1..=100))]
    share: u32,
    /// Send at most this many commands per second to each server
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_ops: Option<u64>,
    /// Read without pauses, whatever other clients notice
    #[arg(long, conflicts_with_all = ["share", "max_ops"])]
    flat_out: bool,
}

impl ScanArgs {
    pub(crate) fn pace(&self) -> Pace {
        if self.flat_out { Pace::FULL } else { Pace { share: self.share, max_ops: self.max_ops } }
    }
}

/// A bar on standard error. Only a terminal shows it.
pub(crate) fn progress_bar(what: &str) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(what.to_owned());
    let style = ProgressStyle::with_template(
        "{msg} [{bar:30}] {human_pos} of {human_len} keys, {per_sec}, {eta} left",
    );
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

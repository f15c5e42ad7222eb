//! `ade keys diff`: what differs between two catalogs.

use ade_keytool::diff::{CatalogDiff, Change, Difference, diff};
use owo_colors::OwoColorize;

use crate::failure::{Failure, Result};
use crate::output::page::Page;
use crate::output::{OutputFormat, Tone};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The older catalog: name of a shipped one, or file
    before: String,
    /// The newer catalog
    after: String,
    /// Fail only for differences that break keys or programs which follow the older catalog
    #[arg(long)]
    breaking: bool,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(args: &Args) -> Result {
    let [before, after] = [&args.before, &args.after].map(|name| super::select_one(name));
    let found = diff(&before?, &after?);
    args.format.print(&found, page)?;
    let (all, breaking) = (found.differences.len(), found.breaking());
    if (if args.breaking { breaking } else { all }) == 0 {
        return Ok(());
    }
    Err(Failure::negative(format!("{all} differences, {breaking} of them breaking")))
}

fn page(diff: &CatalogDiff) -> Page {
    let mut page = Page::default();
    if diff.is_empty() {
        page.line("no differences");
    }
    for Difference { change, kind, name, breaking, fields } in &diff.differences {
        let (sign, tone) = match change {
            Change::Added => ("+", Tone::Good),
            Change::Changed => ("~", Tone::Pending),
            Change::Removed => ("-", Tone::Bad),
        };
        let mark = if *breaking { format!("  {}", Tone::Bad.paint("breaking")) } else { String::new() };
        page.line(format_args!("{} {kind} {}{mark}", tone.paint(sign), name.bold()));
        for field in fields {
            let shown = |text: &str| if text.is_empty() { "(none)".to_owned() } else { text.to_owned() };
            page.line(format_args!(
                "    {}: {} → {}",
                field.field,
                shown(&field.before),
                shown(&field.after)
            ));
        }
    }
    page
}

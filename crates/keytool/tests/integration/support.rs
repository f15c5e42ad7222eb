//! Catalogs, and servers with many keys.

use std::borrow::Cow;

use ade_catalog::slot::slot_of;
use ade_catalog::{Catalog, Layout};
use ade_keytool::audit::{AuditError, AuditOptions, Report};
use ade_keytool::scan::Pace;
use jiff::Timestamp;

/// The example of docs/catalogs.md, and a catalog with envelopes.
pub(crate) fn catalogs() -> Vec<Catalog> {
    let shop = include_str!("../../../catalog/tests/fixtures/shop.toml");
    let mediation = include_str!("../../../keyspace/catalogs/mediation.toml");
    [("shop.toml", shop), ("mediation.toml", mediation)]
        .map(|(file, source)| Catalog::parse(file, source).expect("valid"))
        .into()
}

pub(crate) fn options() -> AuditOptions {
    AuditOptions { pace: Pace::FULL, ..AuditOptions::default() }
}

pub(crate) async fn audit(url: &str, options: &AuditOptions) -> Result<Report, AuditError> {
    ade_keytool::audit::audit(url, &catalogs(), options, Timestamp::UNIX_EPOCH, &|_| ()).await
}

pub(crate) fn command(words: &[&str]) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    command.arg(words);
    command
}

/// Keys of the shop that obey every rule, as commands with their keys.
pub(crate) fn valid_keys(number: u64, layout: Layout) -> Vec<(String, redis::Cmd)> {
    let shop = &catalogs()[0];
    let key = |entry: &str, id: u64| {
        let entry = shop.entry(entry).expect("an entry");
        let raw = |kind: &str| match kind {
            "level" => Cow::Borrowed("info"),
            kind => Cow::Owned(format!("{kind} {id}")),
        };
        shop.build(entry, layout, raw).expect("valid")
    };
    let mut commands = Vec::new();
    for id in 0..number / 4 {
        let items = key("cart.items", id);
        commands.push((items.clone(), command(&["HSET", &items, "sku", "a", "count", "2"])));
        commands.push((items.clone(), command(&["EXPIRE", &items, "1800"])));
        for (entry, ttl) in [("cart.state", "7200"), ("mail.bounced", "7200"), ("mail.draft", "3600")] {
            let key = key(entry, id);
            commands.push((key.clone(), command(&["SET", &key, "\"open\"", "EX", ttl])));
        }
    }
    commands
}

/// The position of the primary that has the slot of a key, in a new cluster of the test kit.
pub(crate) fn owner_of(key: &str) -> usize {
    let slot = usize::from(slot_of(key.as_bytes()));
    (0..3).rev().find(|number| 16384 * number / 3 <= slot).expect("one has it")
}

/// Sends the commands in pipelines.
pub(crate) fn send(connection: &mut redis::Connection, commands: &[(String, redis::Cmd)]) {
    for chunk in commands.chunks(1000) {
        let mut pipeline = redis::pipe();
        for (_, command) in chunk {
            pipeline.add_command(command.clone()).ignore();
        }
        pipeline.query::<()>(connection).expect("written");
    }
}

/// The numbers of violations as `rule class count`.
pub(crate) fn counts(report: &Report) -> Vec<String> {
    report.counts.iter().map(|row| format!("{} {} {}", row.rule.name(), row.class, row.count)).collect()
}

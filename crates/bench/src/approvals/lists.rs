//! Lists by each filter, the inbox, and searches in the audit log: the first page, and one from the middle.

use ade_client::wire::{AuditVerdict, Overview, Page};
use ade_domain::Moment;
use indicatif::ProgressBar;
use serde_json::Value;
use tokio::time::Instant;

use super::history::{self, LONG_MS, before};
use super::people::{LOOKS, TYPES, author, reviewer, sign_in};
use super::place::Filled;
use crate::error::{BenchError, ErrorKind};
use crate::link::{Link, Target};
use crate::samples::{Latencies, Samples};

const DAY_MS: u64 = 86_400_000;
/// Tasks up to which the whole log is verified.
const VERIFIED: usize = 20_000;

/// A list, and how long each of its pages took.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: &'static str,
    pub(super) page: &'static str,
    /// What the page held.
    pub(super) items: usize,
    pub(super) latencies: Latencies,
}

/// Where the page in the middle begins. With few tasks some lists are short: their second page has to do, and they are asked
/// for in smaller pages, so that as much is found with few tasks as with many.
enum Middle {
    None,
    /// At a cursor that is known.
    At(String),
    /// Where the first page ends.
    Next,
}

struct Query {
    name: &'static str,
    path: String,
    /// Whether an ordinary person asks, or somebody who sees everything.
    ordinary: bool,
    middle: Middle,
}

fn queries(filled: &Filled, entries: u64) -> Vec<Query> {
    let task = || Middle::At(filled.middle_task.clone());
    let number = || Middle::At((entries / 2).to_string());
    let all = |name, path: String, middle| Query { name, path, ordinary: false, middle };
    let own = |name, path: &str, middle| Query { name, path: path.to_owned(), ordinary: true, middle };
    let time = |moment: Moment| moment.timestamp().to_string();
    let from = before(filled.now, LONG_MS / 2);
    let span = format!("/audit?from={}&to={}", time(from), time(from.plus_ms(30 * DAY_MS)));
    vec![
        all("state=COMPLETED", "/tasks?state=COMPLETED".to_owned(), task()),
        all("state=REVIEWING", "/tasks?state=REVIEWING".to_owned(), Middle::Next),
        all("author", format!("/tasks?author={}", author(0)), task()),
        all("resource", format!("/tasks?resource={}", history::resource(0).name()), task()),
        all("tag", format!("/tasks?tag={}", history::tag(0)), task()),
        all("type", format!("/tasks?type={}", TYPES.first().copied().unwrap_or_default()), task()),
        own("visible to me", "/tasks?limit=20", task()),
        own("visible to me, state", "/tasks?state=COMPLETED&limit=20", task()),
        own("inbox", "/approvals?reviewer=me&status=PENDING&limit=20", Middle::Next),
        all("audit by task", format!("/audit?task={}", filled.middle_task), Middle::None),
        all("audit by actor", format!("/audit?actor={}", author(0)), number()),
        all("audit by action", "/audit?action=task.submit".to_owned(), number()),
        all("audit by time", span.clone(), Middle::Next),
        all("audit by actor, time", format!("{span}&actor={}&limit=10", author(0)), Middle::Next),
    ]
}

async fn page(link: &mut Link, path: &str) -> Result<(usize, Option<String>), BenchError> {
    let page: Page<Value> = link.get(path).await?.expect(200)?.read()?;
    Ok((page.items.len(), page.next_cursor))
}

/// The log must be what was written, where reading all of it does not take too long.
async fn verify(link: &mut Link) -> Result<(), BenchError> {
    let verdict: AuditVerdict = link.get("/api/v1/audit/verify").await?.expect(200)?.read()?;
    if verdict.valid && verdict.entries > 0 {
        return Ok(());
    }
    Err(BenchError::new(
        ErrorKind::Unavailable,
        format!("the log that was loaded is not valid: {:?}", verdict.first_bad),
    ))
}

/// One page, and who asks for it how often.
struct Asked {
    name: &'static str,
    page: &'static str,
    path: String,
    ordinary: bool,
    items: usize,
    samples: Samples,
}

/// A server, those who ask it, and what they ask.
struct Asking {
    sees_all: Link,
    ordinary: Link,
    asked: Vec<Asked>,
}

impl Asking {
    async fn begin(filled: &Filled) -> Result<Self, BenchError> {
        let target: &Target = &filled.subject.target;
        let mut admin = target.link().await?;
        let mut sees_all = sign_in(&mut admin, target, LOOKS, false).await?.link().await?;
        let mut ordinary = sign_in(&mut admin, target, &reviewer(0), false).await?.link().await?;
        if filled.tasks <= VERIFIED {
            verify(&mut sees_all).await?;
        }
        let overview: Overview = sees_all.get("/api/v1/stats/overview").await?.expect(200)?.read()?;
        let entries = overview.audit_entries;
        let mut asked = Vec::new();
        for Query { name, path, ordinary: own, middle } in queries(filled, entries) {
            let link = if own { &mut ordinary } else { &mut sees_all };
            let path = format!("/api/v1{path}");
            let joint = if path.contains('?') { '&' } else { '?' };
            let cursor = match middle {
                Middle::None => None,
                Middle::At(cursor) => Some(cursor),
                Middle::Next => page(link, &path).await?.1,
            };
            let middle = cursor.map(|cursor| ("middle", format!("{path}{joint}cursor={cursor}")));
            for (which, path) in [("first", path)].into_iter().chain(middle) {
                let (items, _) = page(link, &path).await?;
                asked.push(Asked {
                    name,
                    page: which,
                    path,
                    ordinary: own,
                    items,
                    samples: Samples::default(),
                });
            }
        }
        Ok(Self { sees_all, ordinary, asked })
    }

    async fn round(&mut self, counts: bool) -> Result<(), BenchError> {
        for one in &mut self.asked {
            let link = if one.ordinary { &mut self.ordinary } else { &mut self.sees_all };
            let began = Instant::now();
            let answer = link.get(&one.path).await?;
            if counts {
                one.samples.add(began.elapsed());
            }
            answer.expect(200)?;
        }
        Ok(())
    }
}

/// Asks all servers for everything in turns, so that a noisy neighbour disturbs all alike.
pub(super) async fn measure(
    places: &[Filled],
    rounds: usize,
    bar: &ProgressBar,
) -> Result<Vec<Vec<Listed>>, BenchError> {
    let mut all = Vec::new();
    for filled in places {
        all.push(Asking::begin(filled).await?);
    }
    bar.set_length(rounds as u64);
    let warm = rounds.div_ceil(10);
    for round in 0..warm + rounds {
        for asking in &mut all {
            asking.round(round >= warm).await?;
        }
        bar.inc(u64::from(round >= warm));
    }
    let listed = |Asked { name, page, items, samples, .. }| Listed {
        name,
        page,
        items,
        latencies: samples.latencies(),
    };
    Ok(all.into_iter().map(|asking| asking.asked.into_iter().map(listed).collect()).collect())
}

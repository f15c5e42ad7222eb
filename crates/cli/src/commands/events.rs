//! `ade events`: lists the latest events, or follows them as they happen.

use std::io::Write;
use std::time::Duration;

use ade_client::wire::Event;
use ade_client::{Client, EventFollower, FollowError};
use ade_domain::text::escape_hidden_in_json;
use clap::Args as ClapArgs;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::output::{self, Table, Tone, safe, time};

/// Largest page that a server returns.
const PAGE_SIZE: usize = 200;
/// Ids begin with their time: so much of one is enough to find it again.
const SHORT_ID_LEN: usize = 13;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Keep running, and print events as they happen
    #[arg(short, long)]
    follow: bool,
    /// Begin after the event with this id [default: the latest events; with --follow, from now on]
    #[arg(long, value_name = "ID")]
    after: Option<u64>,
    /// Only events with this name; * stands for any characters, as in 'task:*'. Repeatable
    #[arg(long, value_name = "NAME")]
    filter: Vec<String>,
    /// Only events about this noun, such as task, approval or lock. Repeatable
    #[arg(long, value_name = "NOUN")]
    topic: Vec<String>,
    /// Only events of this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Show at most this many, unless you follow
    #[arg(long, value_name = "NUMBER", default_value_t = 50, conflicts_with = "follow")]
    limit: usize,
    /// Print whole ids
    #[arg(long)]
    full_ids: bool,
    /// Print one JSON object per line
    #[arg(long, display_order = 100)]
    json: bool,
}

pub(crate) async fn run(client: &Client, args: Args) -> Result {
    if args.follow {
        return follow(client, &args).await;
    }
    let events = list(client, &args).await?;
    if args.json {
        return events.iter().try_for_each(json_line);
    }
    output::line(table(&events, args.full_ids))
}

/// The events after an id, or the latest ones; in order.
async fn list(client: &Client, args: &Args) -> Result<Vec<Event>> {
    let (topics, names) = (args.topic.join(","), args.filter.join(","));
    let direction = if args.after.is_some() { "after" } else { "before" };
    let mut cursor = args.after.map_or_else(|| "end".to_owned(), |after| after.to_string());
    let mut found = Vec::new();
    while found.len() < args.limit {
        let size = (args.limit - found.len()).min(PAGE_SIZE).to_string();
        let mut query = vec![(direction, cursor.as_str()), ("limit", size.as_str())];
        let lists = [("topics", topics.as_str()), ("events", names.as_str())];
        query.extend(lists.into_iter().filter(|(_, list)| !list.is_empty()));
        query.extend(args.task.as_deref().map(|task| ("task_id", task)));
        let page = client.events(&query, Duration::ZERO).await?;
        found.extend(page.items);
        // Going back, 0 says that nothing older is kept.
        if page.next_cursor == cursor || page.next_cursor == "0" {
            break;
        }
        cursor = page.next_cursor;
    }
    if args.after.is_none() {
        found.reverse();
    }
    Ok(found)
}

fn parse_cursor(cursor: &str) -> Result<u64> {
    cursor.parse().map_err(|_| Failure::unavailable(format!("unexpected cursor {cursor:?} of the server")))
}

async fn follow(client: &Client, args: &Args) -> Result {
    let mut follower = client.follow_events().topics(&args.topic).events(&args.filter);
    if let Some(task) = &args.task {
        follower = follower.task(task);
    }
    // A server that cannot be reached at the start is an error; later, the follower waits for it.
    let end = parse_cursor(&client.events(&[], Duration::ZERO).await?.next_cursor)?;
    follower = follower.after(args.after.unwrap_or(end));
    follower.connect().await.map_err(explain)?;
    output::note("following events; press Ctrl-C to stop");
    loop {
        let event = next(&mut follower).await?;
        if args.json {
            json_line(&event)?;
        } else {
            output::line(summary(&event, args.full_ids))?;
        }
    }
}

async fn next(follower: &mut EventFollower) -> Result<Event> {
    follower.next().await.map_err(explain)
}

fn explain(error: FollowError) -> Failure {
    match error {
        FollowError::Expired { oldest } => Failure::negative(error.to_string())
            .hint(format!("use --after {} to begin with the oldest", oldest.saturating_sub(1))),
        FollowError::Refused(error) => error.into(),
    }
}

fn json_line(event: &Event) -> Result {
    let text = serde_json::to_string(event).map_err(|error| Failure::cannot("write JSON", error))?;
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", escape_hidden_in_json(&text))?;
    Ok(out.flush()?)
}

fn table(events: &[Event], full_ids: bool) -> Table<'_, Event> {
    output::list(events, "no events found")
        .column("#", |event| event.id.as_deref().map(safe).unwrap_or_default())
        .column("TIME", |event| time::timestamp(event.timestamp))
        .column("EVENT", |event| tone(event).cell(safe(&event.event)))
        .column("OBJECT", move |event| object(event, full_ids))
        .column("WHO", who)
        .column("FROM → TO", states)
}

/// One line: time, name, ids, who, states.
fn summary(event: &Event, full_ids: bool) -> String {
    let name = tone(event).paint(&format!("{:<24}", safe(&event.event)));
    let parts = [time::timestamp(event.timestamp), name, object(event, full_ids), who(event), states(event)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

fn text<'a>(event: &'a Event, field: &str) -> Option<&'a str> {
    event.payload.get(field).and_then(Value::as_str)
}

/// The ids of the object and its task.
fn object(event: &Event, full_ids: bool) -> String {
    let topic = event.event.split(':').next().unwrap_or_default();
    let shorten = |id: &str| {
        let is_uuid = uuid::Uuid::parse_str(id).is_ok() && !full_ids;
        safe(if is_uuid { id.get(..SHORT_ID_LEN).unwrap_or(id) } else { id })
    };
    let own = text(event, &format!("{topic}_id"));
    let ids = [own, text(event, "task_id").filter(|task| Some(*task) != own)];
    ids.into_iter().flatten().map(shorten).collect::<Vec<_>>().join(" of ")
}

fn who(event: &Event) -> String {
    let who = event.payload.get("who").cloned().unwrap_or_default();
    let field = |name: &str| who.get(name).and_then(Value::as_str).map(safe);
    match (field("user_id"), field("agent_id"), field("service")) {
        (Some(user), Some(agent), _) => format!("{agent} for {user}"),
        (Some(one), None, _) | (None, Some(one), _) => one,
        (None, None, Some(service)) => format!("ade ({service})"),
        (None, None, None) => text(event, "agent_id").map(safe).unwrap_or_default(),
    }
}

fn states(event: &Event) -> String {
    match (text(event, "from"), text(event, "to")) {
        (Some(from), Some(to)) if from != to => format!("{} → {}", safe(from), safe(to)),
        (_, Some(state)) | (Some(state), None) => safe(state),
        (None, None) => String::new(),
    }
}

fn tone(event: &Event) -> Tone {
    match event.event.rsplit(':').next().unwrap_or_default() {
        "approved" | "completed" => Tone::Good,
        "failed" | "rejected" | "deadlock" | "broken" | "mismatch" | "quarantined" | "rollback_failed" => {
            Tone::Bad
        }
        "requested" | "submitted" => Tone::Pending,
        _ => Tone::Plain,
    }
}

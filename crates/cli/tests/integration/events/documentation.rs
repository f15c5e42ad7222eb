//! docs/events.md: names every event, and its examples run.

use std::collections::BTreeSet;
use std::process::Stdio;

use ade_domain::event::{TOPICS, UNSTORED_LOCK_FACTS, facts, topic};
use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::Deployment;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::rust_example::print_decisions;
use super::{TIMEOUT, comment};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const GUIDE: &str = include_str!("../../../../../docs/events.md");

/// The first example in a language.
fn example(language: &str) -> &'static str {
    let start = GUIDE.find(&format!("```{language}\n")).expect("an example") + language.len() + 4;
    GUIDE[start..].split("```").next().expect("a block")
}

#[test]
fn every_event_is_listed() {
    let table = GUIDE.split("## Names").nth(1).and_then(|rest| rest.split("## ").next()).expect("a section");
    let listed: BTreeSet<&str> =
        table.split('`').skip(1).step_by(2).filter(|name| name.contains(':')).collect();
    let known: BTreeSet<&str> = facts().chain(["state_changed"]).collect();
    for name in &listed {
        let fact = name.split(':').nth(1).expect("a fact");
        assert!(TOPICS.contains(&topic(name)), "{name}");
        assert!(known.contains(fact) || UNSTORED_LOCK_FACTS.contains(&fact), "{name} does not exist");
    }
    let listed_facts: BTreeSet<&str> = listed.iter().filter_map(|name| name.split(':').nth(1)).collect();
    let missing: Vec<&&str> = known.difference(&listed_facts).collect();
    assert!(missing.is_empty(), "not in docs/events.md: {missing:?}");
    let unnamed: Vec<&&str> = TOPICS.iter().filter(|noun| !table.contains(**noun)).collect();
    assert!(unnamed.is_empty(), "not in docs/events.md: {unnamed:?}");
}

/// Runs an example as a child process; returns its first line.
async fn first_line(command: &mut Command) -> String {
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = timeout(TIMEOUT, lines.next_line()).await.expect("a line in time");
    line.expect("text").expect("some output")
}

#[tokio::test]
async fn examples_run() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let task = pat.create_submitted(json!({})).await;
    comment(&pat, &task).await;
    let request = org.approval_id(&task, "rex").await;
    let _ = rex.decide(&request, "approve").await.expect_status(200);
    let environment = [("ADE_SERVER", ade.url()), ("ADE_TOKEN", pat.token.clone())];
    let page = first_line(Command::new("sh").args(["-c", example("sh")]).envs(environment.clone())).await;
    let page: Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(page["items"][0]["event"], "task:created");
    let script = ade.folder().join("follow.mjs");
    std::fs::write(&script, example("js")).expect("written");
    let line = first_line(Command::new("node").arg(&script).envs(environment)).await;
    assert!(line.contains("approval:requested") && line.contains(&task), "{line}");
    let documented = example("rust");
    // Who may call it depends on where it is.
    let tested = include_str!("rust_example.rs").replace("pub(super) ", "");
    assert!(tested.ends_with(documented), "the example of the guide is another one");
    let client = super::client_of(&ade.url(), &pat);
    let last = timeout(TIMEOUT, print_decisions(&client, 0, 1)).await.expect("in time").expect("followed");
    assert!(last > 0);
}

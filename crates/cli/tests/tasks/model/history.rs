//! What became of one task, told by its entries in the audit log alone: a small model of its own, which knows nothing of how
//! the servers decide. A policy says in its name how many people it wants.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::task::{State, TABLE, TaskCommand};
use serde_json::Value;

use super::{Known, text};

/// Decisions, which nobody of the authors makes.
const DECISIONS: [&str; 8] = [
    "approval.approve",
    "approval.reject",
    "approval.request_changes",
    "approval.delegate",
    "task.revoke",
    "task.override",
    "task.confirm_override",
    "task.force_apply",
];

/// One task on its way.
pub(crate) struct History<'a> {
    known: &'a Known,
    /// Every request there ever was, as it is now, by id.
    approvals: BTreeMap<String, &'a Value>,
    authors: BTreeSet<String>,
    /// Who is named to answer for it, and belongs to its authors as long as that is so.
    named: BTreeSet<String>,
    pub(crate) state: String,
    revision: u64,
    /// Who was asked in this round of the review.
    asked: BTreeSet<String>,
    /// What they said last, and who said it.
    said: BTreeMap<String, (String, String)>,
    override_by: Option<String>,
    /// When it was last changed in review.
    changed_at: Option<String>,
    /// Entries that made a revision.
    pub(crate) revisions: u64,
}

fn number_in(policy: &str, word: &str) -> usize {
    let found = policy.split(' ').find_map(|part| part.strip_prefix(word)?.parse().ok());
    found.unwrap_or(1)
}

fn policies(approval: &Value) -> Vec<String> {
    approval["policies"].as_array().expect("policies").iter().map(text).collect()
}

/// What is told when something is wrong.
impl std::fmt::Debug for History<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let requests: Vec<String> = self.approvals.values().map(|one| format!("\n  {one}")).collect();
        write!(f, "asked {:?}, said {:?}, requests {}", self.asked, self.said, requests.concat())
    }
}

impl<'a> History<'a> {
    pub(crate) fn new(known: &'a Known, approvals: &'a [Value], authors: BTreeSet<String>) -> Self {
        let approvals = approvals.iter().map(|one| (text(&one["approval_id"]), one)).collect();
        Self {
            known,
            approvals,
            authors,
            named: BTreeSet::new(),
            state: "DRAFT".to_owned(),
            revision: 0,
            asked: BTreeSet::new(),
            said: BTreeMap::new(),
            override_by: None,
            changed_at: None,
            revisions: 0,
        }
    }

    /// One more entry.
    pub(crate) fn step(&mut self, entry: &Value) {
        let (action, from, to) = (text(&entry["action"]), text(&entry["from"]), text(&entry["to"]));
        assert_eq!(from, self.state, "out of a state in which it was not: {entry}");
        self.is_in_the_table(entry, &action, &from, &to);
        let revision = entry["revision"].as_u64().expect("a revision");
        assert!(revision >= self.revision, "back to an earlier revision: {entry}");
        self.revision = revision;
        self.revisions += u64::from(!matches!(action.as_str(), "task.comment" | "task.delete"));
        let actor = text(&entry["who"]["user_id"]);
        if DECISIONS.contains(&action.as_str()) {
            self.may_decide(entry, &actor);
        }
        match action.as_str() {
            "task.create" | "task.modify" => {
                let id = text(&entry["task_id"]);
                let joined = self.known.authors.get(&(id, revision)).expect("somebody was told of it");
                self.authors.extend(joined.acted.iter().cloned());
                if let Some(named) = &joined.named {
                    self.named.clone_from(named);
                }
                if action == "task.modify" {
                    self.begin_anew();
                    self.changed_at = (from != "DRAFT").then(|| text(&entry["at"]));
                }
            }
            "task.submit" => self.begin_anew(),
            "approval.request" => {
                self.asked.insert(text(&entry["object_id"]));
            }
            "approval.approve" | "approval.reject" | "approval.request_changes" => {
                let id = text(&entry["object_id"]);
                let digest = &self.approvals.get(&id).expect("a request")["digest"];
                assert_eq!(*digest, entry["digest"], "answered for another digest: {entry}");
                self.said.insert(id, (action, actor));
            }
            "task.override" => self.override_by = Some(actor),
            "task.confirm_override" => {
                let first = self.override_by.take().expect("somebody asked for it");
                assert_ne!(first, actor, "one administrator overrode alone: {entry}");
                for who in [&first, &actor] {
                    assert!(self.known.admins.contains(who), "{who} was never an administrator: {entry}");
                }
            }
            "task.approve" => self.is_approved(entry),
            "task.reject" => {
                let rejected = self
                    .wanted()
                    .iter()
                    .any(|policy| self.votes("approval.reject", policy).len() >= number_in(policy, "no"));
                assert!(rejected, "rejected, and not enough said no: {entry}: {self:?}");
            }
            _ => {}
        }
        self.state = to;
    }

    fn begin_anew(&mut self) {
        self.asked.clear();
        self.said.clear();
        self.override_by = None;
    }

    fn is_in_the_table(&self, entry: &Value, action: &str, from: &str, to: &str) {
        let Some(verb) = action.strip_prefix("task.") else {
            assert_eq!((from, to), ("REVIEWING", "REVIEWING"), "{entry}");
            return;
        };
        // What a batch approves may be put first at once, which changes nothing else.
        if verb == "apply_first" {
            assert_eq!((from, to), ("APPROVED", "APPROVED"), "{entry}");
            return;
        }
        let fits = |(of, by, into): &(State, TaskCommand, State)| {
            of.word() == from && by.word() == verb && into.word() == to
        };
        let is_made = verb == "create" && self.revision == 0 && (from, to) == ("DRAFT", "DRAFT");
        assert!(is_made || TABLE.iter().any(fits), "no such transition: {entry}");
    }

    fn may_decide(&self, entry: &Value, actor: &str) {
        assert!(!actor.is_empty() && entry["who"]["agent_id"].is_null(), "decided by nobody: {entry}");
        let authors = self.everybody_behind();
        assert!(!authors.contains(actor), "decided by its author: {entry}: {authors:?}");
        let maker = self.known.makers.get(&text(&entry["who"]["token_id"])).expect("a token").as_ref();
        assert!(
            maker.is_none_or(|maker| !authors.contains(maker)),
            "decided with a token of its author: {entry}"
        );
    }

    /// The policies of this round.
    fn wanted(&self) -> BTreeSet<String> {
        self.asked.iter().filter_map(|id| self.approvals.get(id)).flat_map(|one| policies(one)).collect()
    }

    /// The people who said something for a policy, by themselves or in the place of others.
    fn votes(&self, action: &str, policy: &str) -> BTreeSet<String> {
        let counts = |approval: &&&Value| policies(approval).iter().any(|one| one == policy);
        let reviewers: BTreeSet<String> =
            self.approvals.values().filter(counts).map(|one| text(&one["reviewer_id"])).collect();
        let of = |id: &String| text(&self.approvals.get(id).expect("a request")["reviewer_id"]);
        let mut people = BTreeSet::new();
        for (id, (said, by)) in &self.said {
            if said == action && reviewers.contains(&of(id)) && !self.is_handed_on(id) {
                people.insert(by.clone());
            }
        }
        if action == "approval.approve" {
            // Those who follow somebody who agreed by itself, and said nothing themselves.
            for id in self.asked.iter().filter(|id| !self.said.contains_key(*id) && !self.is_handed_on(id)) {
                let follows = text(&self.approvals.get(id).expect("a request")["follows"]);
                let agreed = |(other, (said, by)): (&String, &(String, String))| {
                    said == action && *by == follows && of(other) == follows
                };
                if reviewers.contains(&of(id)) && self.said.iter().any(agreed) {
                    people.insert(follows);
                }
            }
        }
        people
    }

    fn is_handed_on(&self, id: &str) -> bool {
        self.approvals.get(id).is_some_and(|one| one["status"] == "DELEGATED")
    }

    /// Whether somebody wants changes, and whoever has that request now did not say anything else.
    fn is_blocked(&self) -> bool {
        let wants_changes =
            |id: &String| self.said.get(id).is_some_and(|(said, _)| said == "approval.request_changes");
        self.said.keys().filter(|id| wants_changes(id)).any(|id| {
            let now = self.handed_on_to(id);
            !self.said.contains_key(&now) || wants_changes(&now)
        })
    }

    /// Where a request ended up.
    fn handed_on_to(&self, id: &str) -> String {
        let mut id = id.to_owned();
        while self.is_handed_on(&id) {
            let old = self.approvals.get(&id).expect("a request");
            let to =
                |one: &&&Value| one["reviewer_id"] == old["delegated_to"] && one["digest"] == old["digest"];
            let last = self.approvals.values().filter(to).max_by_key(|one| text(&one["approval_id"]));
            id = text(&last.expect("somebody has it")["approval_id"]);
        }
        id
    }

    /// What is missing, if anything.
    pub(crate) fn missing(&self) -> Option<String> {
        if self.is_blocked() {
            return Some("somebody wants changes".to_owned());
        }
        let short = |policy: &String| self.votes("approval.approve", policy).len() < number_in(policy, "min");
        self.wanted()
            .into_iter()
            .find(short)
            .or_else(|| self.asked.is_empty().then(|| "nobody was asked".to_owned()))
    }

    fn is_approved(&self, entry: &Value) {
        if let Some(why) = entry["reason"].as_str() {
            assert!(self.asked.is_empty() && self.said.is_empty(), "asked for nothing: {entry}");
            for policy in why.split("; ") {
                let name = policy.split(':').next().unwrap_or_default();
                assert!(
                    name.split(' ').any(|word| word == "auto"),
                    "{name} never approves by itself: {entry}"
                );
            }
            return;
        }
        assert_eq!(self.missing(), None, "approved too early: {entry}: {self:?}");
    }

    /// What is left of it at the end.
    pub(crate) fn end(&self, task: Option<&Value>) -> BTreeSet<String> {
        if let Some(task) = task {
            assert_eq!(task["state"], self.state.as_str(), "{task}");
            assert_eq!(
                task["revision"].as_u64(),
                Some(self.revisions),
                "one entry for each revision: {task}"
            );
            self.rounds_are_apart(task);
        }
        self.everybody_behind()
    }

    fn everybody_behind(&self) -> BTreeSet<String> {
        self.authors.union(&self.named).cloned().collect()
    }

    /// What was said before a change does not count after it.
    fn rounds_are_apart(&self, task: &Value) {
        for approval in self.approvals.values() {
            let status = text(&approval["status"]);
            let is_over = matches!(status.as_str(), "INVALIDATED" | "DELEGATED" | "CLOSED");
            let is_older = self.changed_at.as_ref().is_some_and(|at| text(&approval["created_at"]) < *at);
            assert!(is_over || !is_older, "not invalidated by a change: {approval}: {task}");
            assert!(
                is_over || approval["digest"] == task["digest"],
                "for another digest: {approval}: {task}"
            );
            let by = text(&approval["reviewed_by"]);
            if status == "APPROVED" {
                let is_asked = by == text(&approval["reviewer_id"]) || by == text(&approval["follows"]);
                assert!(is_asked || self.known.admins.contains(&by), "{by} was not asked: {approval}");
            }
        }
        let waits = self.approvals.values().any(|approval| approval["status"] == "PENDING");
        assert!(self.state == "REVIEWING" || !waits, "somebody is still asked: {task}");
        let requirements = task["requirements"].as_array().expect("requirements");
        let is_satisfied = |one: &Value| one["status"] == "SATISFIED" || one["status"] == "OVERRIDDEN";
        let satisfied = requirements.iter().all(is_satisfied);
        assert!(self.state != "APPROVED" || satisfied, "approved, and not satisfied: {task}");
        if self.state == "REVIEWING" && satisfied {
            assert!(self.is_blocked(), "nothing is missing, and it is not approved: {task}: {self:?}");
        }
    }
}

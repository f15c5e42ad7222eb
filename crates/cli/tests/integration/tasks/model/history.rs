//! Replays the audit entries of one task and checks each transition independently of the server's implementation. The name of
//! a policy encodes how many approvals it requires.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::task::{TRANSITIONS, TaskCommand, TaskState};
use serde_json::Value;

use super::{ModelState, text};

/// Actions that no author of the task may take.
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

pub(crate) struct History<'a> {
    model: &'a ModelState,
    /// All approval requests of the task in their present state, by id.
    approvals: BTreeMap<String, &'a Value>,
    authors: BTreeSet<String>,
    /// Sponsors of the present draft. They count as authors.
    sponsors: BTreeSet<String>,
    pub(crate) state: String,
    revision: u64,
    /// Requests of the present review round.
    round: BTreeSet<String>,
    /// The last decision on each request: action and actor.
    decisions: BTreeMap<String, (String, String)>,
    override_by: Option<String>,
    /// The last modification during review.
    changed_at: Option<String>,
    /// Number of entries that added a revision.
    pub(crate) revisions: u64,
}

fn number_in(policy: &str, word: &str) -> usize {
    let found = policy.split(' ').find_map(|part| part.strip_prefix(word)?.parse().ok());
    found.unwrap_or(1)
}

fn policies(approval: &Value) -> Vec<String> {
    approval["policies"].as_array().expect("policies").iter().map(text).collect()
}

impl std::fmt::Debug for History<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let requests: Vec<String> =
            self.approvals.values().map(|approval| format!("\n  {approval}")).collect();
        write!(f, "round {:?}, decisions {:?}, requests {}", self.round, self.decisions, requests.concat())
    }
}

impl<'a> History<'a> {
    pub(crate) fn new(model: &'a ModelState, approvals: &'a [Value], authors: BTreeSet<String>) -> Self {
        let approvals = approvals.iter().map(|approval| (text(&approval["approval_id"]), approval)).collect();
        Self {
            model,
            approvals,
            authors,
            sponsors: BTreeSet::new(),
            // A new task has no state before.
            state: String::new(),
            revision: 0,
            round: BTreeSet::new(),
            decisions: BTreeMap::new(),
            override_by: None,
            changed_at: None,
            revisions: 0,
        }
    }

    pub(crate) fn apply(&mut self, entry: &Value) {
        let (action, from, to) = (text(&entry["action"]), text(&entry["from"]), text(&entry["to"]));
        assert_eq!(from, self.state, "the entry does not start in the present state: {entry}");
        self.check_transition(entry, &action, &from, &to);
        let revision = entry["revision"].as_u64().expect("a revision");
        assert!(revision >= self.revision, "the revision decreased: {entry}");
        self.revision = revision;
        self.revisions += u64::from(!matches!(action.as_str(), "task.comment" | "task.delete"));
        let actor = text(&entry["who"]["user_id"]);
        if DECISIONS.contains(&action.as_str()) {
            self.check_decision(entry, &actor);
        }
        match action.as_str() {
            "task.create" | "task.modify" => {
                let id = text(&entry["task_id"]);
                let change = self.model.authors.get(&(id, revision)).expect("a response for this revision");
                self.authors.extend(change.actors.iter().cloned());
                if let Some(sponsors) = &change.sponsors {
                    self.sponsors.clone_from(sponsors);
                }
                if action == "task.modify" {
                    self.start_round();
                    self.changed_at = (from != "DRAFT").then(|| text(&entry["at"]));
                }
            }
            "task.submit" => {
                // The submitter, if only an administrator, is an author from then on.
                let change = self.model.authors.get(&(text(&entry["task_id"]), revision));
                let change = change.expect("a response for this revision");
                self.authors.extend(change.actors.iter().cloned());
                self.start_round();
            }
            "approval.request" => {
                self.round.insert(text(&entry["object_id"]));
            }
            "approval.approve" | "approval.reject" | "approval.request_changes" => {
                let id = text(&entry["object_id"]);
                let digest = &self.approvals.get(&id).expect("a request")["digest"];
                assert_eq!(*digest, entry["digest"], "decision for another digest: {entry}");
                self.decisions.insert(id, (action, actor));
            }
            // The role of the person who decided was lost before the decision was counted.
            "approval.lapse" => {
                self.decisions.remove(&text(&entry["object_id"]));
            }
            "task.override" => self.override_by = Some(actor),
            "task.confirm_override" => {
                let first = self.override_by.take().expect("an override was requested");
                assert_ne!(first, actor, "one administrator requested and confirmed the override: {entry}");
                for user in [&first, &actor] {
                    assert!(
                        self.model.ever_admins.contains(user),
                        "{user} was never an administrator: {entry}"
                    );
                }
            }
            "task.approve" => self.check_approved(entry),
            "task.reject" => {
                let rejected = self
                    .policies()
                    .iter()
                    .any(|policy| self.votes("approval.reject", policy).len() >= number_in(policy, "no"));
                assert!(rejected, "rejected without enough rejections: {entry}: {self:?}");
            }
            _ => {}
        }
        self.state = to;
    }

    fn start_round(&mut self) {
        self.round.clear();
        self.decisions.clear();
        self.override_by = None;
    }

    fn check_transition(&self, entry: &Value, action: &str, from: &str, to: &str) {
        let Some(command) = action.strip_prefix("task.") else {
            let is_decided = matches!(from, "APPROVED" | "REJECTED" | "CANCELLED");
            let is_possible = if action == "approval.resolve" { is_decided } else { from == "REVIEWING" };
            assert!(is_possible && from == to, "{entry}");
            return;
        };
        let matches = |(before, by, after): &(TaskState, TaskCommand, TaskState)| {
            before.as_str() == from && by.to_string() == command && after.as_str() == to
        };
        let is_creation = command == "create" && self.revision == 0 && (from, to) == ("", "DRAFT");
        assert!(is_creation || TRANSITIONS.iter().any(matches), "no such transition: {entry}");
    }

    fn check_decision(&self, entry: &Value, actor: &str) {
        assert!(!actor.is_empty() && entry["who"]["agent_id"].is_null(), "decision without a user: {entry}");
        let authors = self.all_authors();
        assert!(!authors.contains(actor), "decision by an author: {entry}: {authors:?}");
        let creator =
            self.model.token_creators.get(&text(&entry["who"]["token_id"])).expect("a token").as_ref();
        assert!(
            creator.is_none_or(|creator| !authors.contains(creator)),
            "decision with a token that an author created: {entry}"
        );
    }

    /// The policies of the present round.
    fn policies(&self) -> BTreeSet<String> {
        self.round
            .iter()
            .filter_map(|id| self.approvals.get(id))
            .flat_map(|approval| policies(approval))
            .collect()
    }

    /// Users whose decisions count for a policy, their own and those on behalf of others.
    fn votes(&self, action: &str, policy: &str) -> BTreeSet<String> {
        let belongs = |approval: &&&Value| policies(approval).iter().any(|name| name == policy);
        let reviewers: BTreeSet<String> =
            self.approvals.values().filter(belongs).map(|approval| text(&approval["reviewer_id"])).collect();
        let reviewer = |id: &String| text(&self.approvals.get(id).expect("a request")["reviewer_id"]);
        let mut users = BTreeSet::new();
        for (id, (decision, by)) in &self.decisions {
            if decision == action && reviewers.contains(&reviewer(id)) && !self.is_delegated(id) {
                users.insert(by.clone());
            }
        }
        if action == "approval.approve" {
            // Followers of a user who approved, and who made no decision themselves.
            for id in
                self.round.iter().filter(|id| !self.decisions.contains_key(*id) && !self.is_delegated(id))
            {
                let follows = text(&self.approvals.get(id).expect("a request")["follows"]);
                let approved = |(other, (decision, by)): (&String, &(String, String))| {
                    decision == action && *by == follows && reviewer(other) == follows
                };
                if reviewers.contains(&reviewer(id)) && self.decisions.iter().any(approved) {
                    users.insert(follows);
                }
            }
        }
        users
    }

    fn is_delegated(&self, id: &str) -> bool {
        self.approvals.get(id).is_some_and(|approval| approval["status"] == "DELEGATED")
    }

    /// Whether changes were requested, and the present owner of that request has not decided otherwise.
    fn is_blocked(&self) -> bool {
        let requests_changes = |id: &String| {
            self.decisions.get(id).is_some_and(|(decision, _)| decision == "approval.request_changes")
        };
        self.decisions.keys().filter(|id| requests_changes(id)).any(|id| {
            let now = self.end_of_delegation(id);
            !self.decisions.contains_key(&now) || requests_changes(&now)
        })
    }

    /// The request at the end of a chain of delegations.
    fn end_of_delegation(&self, id: &str) -> String {
        let mut id = id.to_owned();
        while self.is_delegated(&id) {
            let old = self.approvals.get(&id).expect("a request");
            let to = |approval: &&&Value| {
                approval["reviewer_id"] == old["delegated_to"] && approval["digest"] == old["digest"]
            };
            let last =
                self.approvals.values().filter(to).max_by_key(|approval| text(&approval["approval_id"]));
            id = text(&last.expect("a delegated request")["approval_id"]);
        }
        id
    }

    /// Why the task cannot be approved yet.
    fn unmet_requirement(&self) -> Option<String> {
        if self.is_blocked() {
            return Some("changes were requested".to_owned());
        }
        let has_too_few_votes =
            |policy: &String| self.votes("approval.approve", policy).len() < number_in(policy, "min");
        self.policies()
            .into_iter()
            .find(has_too_few_votes)
            .or_else(|| self.round.is_empty().then(|| "no request exists".to_owned()))
    }

    fn check_approved(&self, entry: &Value) {
        if let Some(reason) = entry["reason"].as_str() {
            assert!(
                self.round.is_empty() && self.decisions.is_empty(),
                "automatically approved during a review: {entry}"
            );
            for policy in reason.split("; ") {
                let name = policy.split(':').next().unwrap_or_default();
                assert!(
                    name.split(' ').any(|word| word == "auto"),
                    "{name} does not approve automatically: {entry}"
                );
            }
            return;
        }
        assert_eq!(self.unmet_requirement(), None, "approved too early: {entry}: {self:?}");
    }

    /// Compares the task with the replayed state and returns its authors.
    pub(crate) fn finish(&self, task: Option<&Value>) -> BTreeSet<String> {
        if let Some(task) = task {
            assert_eq!(task["state"], self.state.as_str(), "{task}");
            assert_eq!(
                task["revision"].as_u64(),
                Some(self.revisions),
                "one entry for each revision: {task}"
            );
            self.check_requests(task);
        }
        self.all_authors()
    }

    fn all_authors(&self) -> BTreeSet<String> {
        self.authors.union(&self.sponsors).cloned().collect()
    }

    /// Decisions made before a change do not count after it.
    fn check_requests(&self, task: &Value) {
        for approval in self.approvals.values() {
            let status = text(&approval["status"]);
            let is_closed = matches!(status.as_str(), "INVALIDATED" | "DELEGATED" | "CLOSED");
            let is_outdated = self.changed_at.as_ref().is_some_and(|at| text(&approval["created_at"]) < *at);
            assert!(is_closed || !is_outdated, "not invalidated by a change: {approval}: {task}");
            assert!(
                is_closed || approval["digest"] == task["digest"],
                "for another digest: {approval}: {task}"
            );
            let by = text(&approval["reviewed_by"]);
            if status == "APPROVED" {
                let is_reviewer = by == text(&approval["reviewer_id"]) || by == text(&approval["follows"]);
                assert!(
                    is_reviewer || self.model.ever_admins.contains(&by),
                    "{by} was not a reviewer: {approval}"
                );
            }
        }
        let has_pending = self.approvals.values().any(|approval| approval["status"] == "PENDING");
        assert!(self.state == "REVIEWING" || !has_pending, "a request is still pending: {task}");
        let requirements = task["requirements"].as_array().expect("requirements");
        let is_satisfied = |requirement: &Value| {
            requirement["status"] == "SATISFIED" || requirement["status"] == "OVERRIDDEN"
        };
        let satisfied = requirements.iter().all(is_satisfied);
        assert!(self.state != "APPROVED" || satisfied, "approved with unsatisfied requirements: {task}");
        // Requested changes leave a requirement unsatisfied.
        let is_in_review = self.state == "REVIEWING";
        assert!(
            !(is_in_review && satisfied),
            "all requirements are satisfied but it is not approved: {task}: {self:?}"
        );
    }
}

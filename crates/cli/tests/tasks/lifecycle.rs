//! The lifecycle through HTTP, on both records: every row of the table, carried out by an agent that asks for work, and a
//! refusal with the state and what it allows for everything that is not in the table.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{State, TABLE, TaskCommand, next};
use ade_testkit::api::Answer;
use ade_testkit::people::text;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};
use uuid::Uuid;

/// States that a task can be in after the transaction that brought it there.
const REACHED: [State; 8] = [
    State::Draft,
    State::Reviewing,
    State::Approved,
    State::Applying,
    State::Completed,
    State::Failed,
    State::Rejected,
    State::Cancelled,
];

/// What somebody does; everything else happens by itself, or is done by whoever applies.
const DRIVEN: [TaskCommand; 13] = [
    TaskCommand::Modify,
    TaskCommand::Delete,
    TaskCommand::Submit,
    TaskCommand::Approve,
    TaskCommand::Reject,
    TaskCommand::Revoke,
    TaskCommand::Override,
    TaskCommand::ConfirmOverride,
    TaskCommand::ForceApply,
    TaskCommand::Cancel,
    TaskCommand::Resubmit,
    TaskCommand::Comment,
    TaskCommand::Stop,
];

/// What follows from something else: a submission, an executor, time.
const BY_ITSELF: [TaskCommand; 3] = [TaskCommand::Assign, TaskCommand::GoStale, TaskCommand::Expire];

/// What whoever carries it out says: refused for another reason where it does not fit.
const CARRIED_OUT: [TaskCommand; 3] = [TaskCommand::BeginApply, TaskCommand::Complete, TaskCommand::Fail];

/// What needs something that can be undone, or that fails before it changes anything: driven where files are changed.
const OF_WORKERS: [TaskCommand; 2] = [TaskCommand::Retry, TaskCommand::RollBack];

/// The agent that carries tasks out here.
const BOT: &str = "bot";

struct Stage {
    office: Office,
    pat: Person,
    rex: Person,
    ada: Person,
    abe: Person,
    bot: Person,
}

impl Stage {
    async fn of(house: &House) -> Self {
        let office = house.office().await;
        // Nobody is asked about these.
        let conditions = json!({ "risk_below": 101 });
        office.policy(json!({ "name": "auto", "task_types": ["auto"], "auto_approve_if": conditions })).await;
        let pat = office.person("pat", &[AUTHOR]).await;
        let bot = office.agent(BOT, &pat).await;
        // Many tasks stay under way here.
        let _ =
            office.admin.patch(&format!("/agents/{BOT}"), &json!({ "max_tasks": 1000 })).await.expect(200);
        Self {
            bot,
            pat,
            rex: office.person("rex", &[REVIEWER]).await,
            ada: office.person("ada", &[ADMIN]).await,
            abe: office.person("abe", &[ADMIN]).await,
            office,
        }
    }

    /// A task in a state.
    async fn task_in(&self, state: State) -> String {
        // Each has a type of its own, so that the agent is given this one.
        let of_its_own = json!({ "type": Uuid::new_v4().to_string(), "executor": "agent", "parameters": { "agent": BOT } });
        if state == State::Draft {
            return self.pat.draft(of_its_own).await;
        }
        let id = self.pat.submitted(of_its_own).await;
        match state {
            State::Reviewing => {}
            State::Approved => drop(self.does(TaskCommand::Approve, &id).await.expect(200)),
            State::Rejected => drop(self.does(TaskCommand::Reject, &id).await.expect(200)),
            State::Cancelled => drop(self.does(TaskCommand::Cancel, &id).await.expect(200)),
            State::Applying => {
                let _ = self.does(TaskCommand::Approve, &id).await.expect(200);
                let _ = self.does(TaskCommand::BeginApply, &id).await.expect(200);
            }
            State::Completed | State::Failed => {
                let _ = self.does(TaskCommand::Approve, &id).await.expect(200);
                let _ = self.does(TaskCommand::BeginApply, &id).await.expect(200);
                let verb = if state == State::Failed { TaskCommand::Fail } else { TaskCommand::Complete };
                let _ = self.does(verb, &id).await.expect(200);
            }
            other => panic!("{other} is passed through"),
        }
        assert_eq!(self.state(&id).await, state.word());
        id
    }

    async fn state(&self, id: &str) -> String {
        text(&self.office.task(id).await, "state")
    }

    /// Whoever may do it.
    async fn doer(&self, verb: TaskCommand, id: &str) -> &Person {
        match verb {
            TaskCommand::Approve | TaskCommand::Reject => &self.rex,
            TaskCommand::Revoke => self.rex_or_ada(id).await,
            TaskCommand::Override | TaskCommand::ForceApply | TaskCommand::Stop | TaskCommand::RollBack => {
                &self.ada
            }
            TaskCommand::ConfirmOverride => &self.abe,
            TaskCommand::BeginApply | TaskCommand::Complete | TaskCommand::Fail => &self.bot,
            _ => &self.pat,
        }
    }

    /// Whoever may do it does it.
    async fn does(&self, verb: TaskCommand, id: &str) -> Answer {
        let why = json!({ "reason": "because", });
        let on = |what: &str| format!("/tasks/{id}/{what}");
        let who = self.doer(verb, id).await;
        match verb {
            TaskCommand::Modify => {
                who.patch(&format!("/tasks/{id}"), &json!({ "description": "other" })).await
            }
            TaskCommand::Delete => who.delete(&format!("/tasks/{id}")).await,
            TaskCommand::Submit => who.post(&on("submit"), &json!({})).await,
            TaskCommand::Approve => who.answers(&self.office.request(id, "rex").await, "approve").await,
            TaskCommand::Reject => who.answers(&self.office.request(id, "rex").await, "reject").await,
            TaskCommand::Revoke => who.post(&on("revoke"), &why).await,
            TaskCommand::Override => {
                let body = json!({ "reason": "because", "incident_ticket": "INC-1" });
                who.post(&on("override"), &body).await
            }
            TaskCommand::ConfirmOverride => who.post(&on("override/confirm"), &json!({})).await,
            TaskCommand::ForceApply => who.post(&on("force-apply"), &why).await,
            TaskCommand::Cancel => who.post(&on("cancel"), &why).await,
            TaskCommand::Resubmit => who.post(&on("resubmit"), &json!({})).await,
            TaskCommand::Comment => who.post(&on("comments"), &json!({ "text": "look" })).await,
            TaskCommand::Stop => who.post(&on("stop"), &why).await,
            TaskCommand::RollBack => who.post(&on("rollback"), &why).await,
            TaskCommand::BeginApply => {
                let of = text(&self.office.task(id).await["config"], "type");
                who.post("/tasks/claim", &json!({ "types": [of] })).await
            }
            TaskCommand::Complete | TaskCommand::Fail => {
                let result = if verb == TaskCommand::Fail { "failure" } else { "success" };
                let body = json!({ "attempt": 1, "result": result, "output": "said", "error": "no" });
                who.post(&on("complete"), &body).await
            }
            other => panic!("{other} is done by nobody"),
        }
    }

    /// Who approved takes it back, else an administrator.
    async fn rex_or_ada(&self, id: &str) -> &Person {
        let approved = self.office.requests(id).await.iter().any(|one| text(one, "status") == "APPROVED");
        if approved { &self.rex } else { &self.ada }
    }
}

async fn every_row_and_nothing_else(house: &House) {
    let stage = Stage::of(house).await;
    for state in REACHED {
        for verb in DRIVEN {
            let decided =
                matches!(verb, TaskCommand::Approve | TaskCommand::Reject) && state != State::Reviewing;
            if decided && state == State::Draft {
                // There is no request that could be answered.
                continue;
            }
            let id = stage.task_in(state).await;
            if (state, verb) == (State::Reviewing, TaskCommand::ConfirmOverride) {
                let _ = stage.does(verb, &id).await.problem(409, "NO_OVERRIDE");
                let _ = stage.does(TaskCommand::Override, &id).await.expect(200);
            }
            let before = stage.office.task(&id).await;
            let seen = stage.doer(verb, &id).await.get(&format!("/tasks/{id}")).await.expect(200);
            let told = seen["allowed"].as_array().is_some_and(|all| all.iter().any(|one| one == verb.word()));
            assert_eq!(told, next(state, verb).is_ok(), "{verb} in {state}: {seen}");
            let answer = stage.does(verb, &id).await;
            match next(state, verb) {
                Ok(_) if verb == TaskCommand::Delete => {
                    assert_eq!(answer.status, 204);
                    let _ =
                        stage.office.admin.get(&format!("/tasks/{id}")).await.problem(404, "TASK_NOT_FOUND");
                }
                Ok(to) => {
                    assert!(answer.status < 300, "{verb} in {state}: {}", answer.text());
                    // A submission passes through SUBMITTED to what it leads to.
                    let to = if verb == TaskCommand::Submit { State::Reviewing } else { to };
                    let now = stage.office.task(&id).await;
                    assert_eq!(now["state"], to.word(), "{verb} in {state}");
                    assert!(now["metadata"]["since"].get(to.word()).is_some(), "{now}");
                }
                Err(_) if decided => {
                    let refused = answer.problem(409, "ALREADY_DECIDED");
                    assert_eq!(refused["state"], state.word());
                    assert_eq!(stage.office.task(&id).await, before);
                }
                Err(refusal) => {
                    let refused = answer.problem(409, "INVALID_TRANSITION");
                    assert_eq!(refused["state"], state.word(), "{verb} in {state}");
                    let words: Vec<&str> = refusal.allowed.iter().map(|verb| verb.word()).collect();
                    assert_eq!(refused["allowed"], json!(words), "{verb} in {state}");
                    assert_eq!(stage.office.task(&id).await, before);
                }
            }
        }
    }
    what_workers_say(&stage).await;
    submissions(&stage).await;
    one_record_for_each_step(&stage).await;
    changes_are_asked_for(&stage).await;
    an_approval_ends(&stage).await;
}

/// Whoever carries a task out is heard only while it does, and only as the present attempt.
async fn what_workers_say(stage: &Stage) {
    for state in REACHED.into_iter().filter(|state| *state != State::Applying) {
        let id = stage.task_in(state).await;
        let before = stage.office.task(&id).await;
        if state != State::Approved {
            let nothing = stage.does(TaskCommand::BeginApply, &id).await;
            assert_eq!(nothing.status, 204, "nothing is given out in {state}: {}", nothing.text());
        }
        // The same again is answered the same; anything else does not count any more.
        let ends = [(TaskCommand::Complete, State::Completed), (TaskCommand::Fail, State::Failed)];
        for (verb, same) in ends {
            let answer = stage.does(verb, &id).await;
            if same == state {
                assert_eq!(answer.expect(200), stage.bot.get(&format!("/tasks/{id}")).await.expect(200));
            } else {
                let _ = answer.problem(409, "NOT_PRESENT");
            }
        }
        let body = json!({ "attempt": 1, "text": "still there" });
        let _ = stage
            .bot
            .post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 }))
            .await
            .problem(409, "NOT_PRESENT");
        let _ = stage.bot.post(&format!("/tasks/{id}/logs"), &body).await.problem(409, "NOT_PRESENT");
        let rolled = stage.does(TaskCommand::RollBack, &id).await;
        let code = if state == State::Failed { "NOTHING_TO_ROLL_BACK" } else { "INVALID_TRANSITION" };
        let _ = rolled.problem(409, code);
        assert_eq!(stage.office.task(&id).await, before, "what is refused changes nothing");
    }
    an_agent_from_claim_to_end(stage).await;
    what_is_stopped_is_told(stage).await;
}

async fn an_agent_from_claim_to_end(stage: &Stage) {
    let id = stage.task_in(State::Approved).await;
    let claim = stage.does(TaskCommand::BeginApply, &id).await.expect(200);
    assert_eq!((&claim["attempt"], &claim["task"]["task_id"]), (&json!(1), &json!(id)));
    let grants = claim["grants"].as_array().expect("a list");
    assert!(grants.iter().any(|one| one["lock"] == format!("task:{id}") && one["fencing_token"].is_u64()));
    let (attempt, on) = (json!({ "attempt": 1 }), |what: &str| format!("/tasks/{id}/{what}"));
    let alive = stage.bot.post(&on("heartbeat"), &attempt).await.expect(200);
    assert_eq!(alive["stop"], false);
    for line in ["one", "two"] {
        let said = stage.bot.post(&on("logs"), &json!({ "attempt": 1, "text": line })).await;
        assert_eq!(said.status, 204, "{}", said.text());
    }
    let told = stage.pat.get(&on("logs?after=1")).await.expect(200);
    assert_eq!((&told["items"][0]["text"], &told["items"][1]), (&json!("two"), &Value::Null));
    // Somebody else says nothing about it, and another attempt neither.
    let _ = stage.pat.post(&on("heartbeat"), &json!({ "attempt": 2 })).await.problem(409, "NOT_PRESENT");
    let _ = stage
        .rex
        .post(&on("complete"), &json!({ "attempt": 1, "result": "success" }))
        .await
        .problem(403, "FORBIDDEN");
    let done = stage.does(TaskCommand::Complete, &id).await.expect(200);
    assert_eq!((&done["state"], &done["execution"]["result"]), (&json!("COMPLETED"), &json!("success")));
    assert_eq!(stage.pat.get(&on("execution")).await.expect(200), done["execution"]);
    let lock = stage.office.admin.get(&format!("/locks/task:{id}")).await.expect(200);
    assert_eq!(lock["holders"], json!([]), "its locks are free");
}

async fn what_is_stopped_is_told(stage: &Stage) {
    let id = stage.task_in(State::Applying).await;
    let refused = stage.pat.post(&format!("/tasks/{id}/stop"), &json!({ "reason": "mine" })).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    let _ = stage.ada.post(&format!("/tasks/{id}/stop"), &json!({})).await.problem(422, "REASON_REQUIRED");
    let asked = stage.does(TaskCommand::Stop, &id).await.expect(202);
    assert_eq!(asked["execution"]["stop"]["by"], "ada");
    let alive = stage.bot.post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 })).await.expect(200);
    assert_eq!(alive["stop"], true);
    let body = json!({ "attempt": 1, "result": "cancelled" });
    let ended = stage.bot.post(&format!("/tasks/{id}/complete"), &body).await.expect(200);
    assert_eq!((&ended["state"], &ended["execution"]["result"]), (&json!("FAILED"), &json!("cancelled")));
}

/// Both ways out of SUBMITTED, and that it was passed through.
async fn submissions(stage: &Stage) {
    for (kind, to) in [("note", State::Reviewing), ("auto", State::Approved)] {
        let id = stage.pat.submitted(json!({ "type": kind })).await;
        let task = stage.office.task(&id).await;
        assert_eq!(task["state"], to.word());
        assert!(task["metadata"]["since"].get("SUBMITTED").is_some());
        assert_eq!(task["auto_approved"].is_string(), to == State::Approved);
    }
}

/// One entry of the audit log for each transition, with from and to.
async fn one_record_for_each_step(stage: &Stage) {
    let id = stage.task_in(State::Approved).await;
    let _ = stage.does(TaskCommand::Modify, &id).await.expect(200);
    let statuses = |all: Vec<Value>| all.iter().map(|one| text(one, "status")).collect::<Vec<_>>();
    assert_eq!(statuses(stage.office.requests(&id).await), ["INVALIDATED", "PENDING"]);
    let _ = stage.does(TaskCommand::Override, &id).await.expect(200);
    let confirmed = stage.does(TaskCommand::ConfirmOverride, &id).await.expect(200);
    assert_eq!(confirmed["requirements"][0]["status"], "OVERRIDDEN");
    assert_eq!(statuses(stage.office.requests(&id).await), ["INVALIDATED", "CLOSED"]);
    let _ = stage.does(TaskCommand::ForceApply, &id).await.expect(200);
    let revoked =
        stage.ada.post(&format!("/tasks/{id}/revoke"), &json!({ "reason": "because" })).await.expect(200);
    assert_eq!((&revoked["state"], &revoked["forced"]), (&json!("REJECTED"), &json!(false)));
    let copy = stage.does(TaskCommand::Resubmit, &id).await.expect(201);
    assert_eq!((&copy["state"], &copy["predecessor"]), (&json!("DRAFT"), &json!(id)));
    let steps = [
        "task.create DRAFT DRAFT",
        "task.submit DRAFT SUBMITTED",
        "task.assign SUBMITTED REVIEWING",
        "approval.request REVIEWING REVIEWING",
        "approval.approve REVIEWING REVIEWING",
        "task.approve REVIEWING APPROVED",
        "task.modify APPROVED REVIEWING",
        "approval.request REVIEWING REVIEWING",
        "task.override REVIEWING REVIEWING",
        "task.confirm_override REVIEWING APPROVED",
        "task.force_apply APPROVED APPROVED",
        "task.revoke APPROVED REJECTED",
        "task.resubmit REJECTED REJECTED",
    ];
    // Entries get their numbers a moment later.
    let look = || async {
        let all = stage.office.audit(&format!("task={id}")).await;
        let told: Vec<String> =
            all.iter().map(|one| ["action", "from", "to"].map(|field| text(one, field)).join(" ")).collect();
        if told.len() >= steps.len() { Ok(told) } else { Err(told.join(", ")) }
    };
    let long = std::time::Duration::from_secs(60);
    let told = ade_testkit::wait::until("every entry has its number", long, look).await.expect("they have");
    assert_eq!(told, steps);
    let verdict = stage.office.admin.get("/audit/verify").await.expect(200);
    assert_eq!(verdict["valid"], true);
}

/// Who asks for changes blocks the approval until the author changes something.
async fn changes_are_asked_for(stage: &Stage) {
    let policy = stage
        .office
        .policy(json!({ "name": "two", "task_types": ["two"], "reviewers": ["rex", "ada"] }))
        .await;
    let id = stage.pat.submitted(json!({ "type": "two" })).await;
    let (rex, ada) = (stage.office.request(&id, "rex").await, stage.office.request(&id, "ada").await);
    let asked = stage.rex.answers(&rex, "request-changes").await.expect(200);
    assert_eq!((&asked["status"], &asked["task_state"]), (&json!("CHANGES_REQUESTED"), &json!("REVIEWING")));
    let _ = stage.ada.answers(&ada, "approve").await.expect(200);
    assert_eq!(stage.state(&id).await, "REVIEWING", "one asked for changes");
    for how in ["reject", "request-changes"] {
        let refused = stage.rex.post(&format!("/approvals/{rex}/{how}"), &json!({ "reason": " " })).await;
        let _ = refused.problem(422, "REASON_REQUIRED");
    }
    let _ = stage.does(TaskCommand::Modify, &id).await.expect(200);
    let _ = stage.ada.answers(&ada, "approve").await.problem(409, "NOT_ANSWERABLE");
    let again = stage.office.request(&id, "ada").await;
    let _ = stage.ada.answers(&again, "approve").await.expect(200);
    assert_eq!(stage.state(&id).await, "APPROVED");
    assert_eq!(
        stage.office.admin.delete(&format!("/policies/{}", text(&policy, "policy_id"))).await.status,
        204
    );
}

/// An approval that is not used ends, and people are asked again.
async fn an_approval_ends(stage: &Stage) {
    stage.office.set("approval:validity", json!(1)).await;
    let id = stage.task_in(State::Approved).await;
    let ended = stage.office.wait_for("the approval ends", &id, |task| task["state"] == "REVIEWING").await;
    assert_eq!(ended["requirements"][0]["needed"], 1);
    let requests = stage.office.requests(&id).await;
    let statuses: Vec<String> = requests.iter().map(|one| text(one, "status")).collect();
    assert_eq!(statuses, ["INVALIDATED", "PENDING"]);
    let old = text(requests.first().expect("the old one"), "approval_id");
    let _ = stage.rex.answers(&old, "approve").await.problem(409, "NOT_ANSWERABLE");
    stage.office.set("approval:validity", json!(3_600)).await;
    let _ = stage.does(TaskCommand::Approve, &id).await.expect(200);
    assert_eq!(stage.state(&id).await, "APPROVED");
}

#[test]
fn what_is_in_the_table_is_driven_here_or_where_files_are_changed() {
    for (from, verb, to) in TABLE {
        let by_hand = REACHED.contains(from) && DRIVEN.contains(verb);
        let on_the_way = *from == State::Submitted || BY_ITSELF.contains(verb);
        let worker = CARRIED_OUT.contains(verb) || OF_WORKERS.contains(verb);
        assert!(by_hand || on_the_way || worker, "{from} {verb} {to}");
    }
}

#[tokio::test]
async fn every_row_embedded() {
    every_row_and_nothing_else(&House::embedded(env!("CARGO_BIN_EXE_ade"))).await;
}

#[tokio::test]
async fn every_row_on_postgres() {
    every_row_and_nothing_else(&House::distributed(env!("CARGO_BIN_EXE_ade"), 2)).await;
}

//! Nobody decides about what it proposed, on no path: whoever belongs to the authors of a task is refused by each of them,
//! and the task stays as it was.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::people::text;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};

/// Roles by which one may do everything, if it is not about one's own.
const ALL: [&str; 3] = [AUTHOR, REVIEWER, ADMIN];

struct Stage {
    _house: House,
    office: Office,
    rex: Person,
    ada: Person,
}

impl Stage {
    async fn new() -> Self {
        let house = House::embedded(env!("CARGO_BIN_EXE_ade"));
        let office = house.office().await;
        office.policy(json!({ "name": "rex alone", "reviewers": ["rex"] })).await;
        let (rex, ada) = (office.person("rex", &[REVIEWER]).await, office.person("ada", &[ADMIN]).await);
        Self { _house: house, office, rex, ada }
    }

    async fn requests_and_task(&self, id: &str) -> (Value, Vec<Value>) {
        (self.office.task(id).await, self.office.requests(id).await)
    }

    /// Somebody tries everything that decides, and nothing happens. `task` must be in review.
    async fn nothing_goes(&self, who: &Person, task: &str) {
        let request = self.office.request(task, "rex").await;
        let before = self.requests_and_task(task).await;
        let digest = text(&before.0, "digest");
        let own = "OWN_TASK";
        for how in ["approve", "reject", "request-changes"] {
            // Also as an administrator, in the place of whoever was asked.
            let _ = who.answers(&request, how).await.problem(403, own);
            let body = json!({ "reason": "because", "digest": digest });
            let _ = who.post(&format!("/approvals/{request}/{how}"), &body).await.problem(403, own);
        }
        for action in ["approve", "reject", "request_changes"] {
            for skip in [false, true] {
                let options = json!({ "skip_validation": skip, "apply_immediately": true });
                let body = json!({ "approval_ids": [request], "action": action, "reason": "because", "options": options });
                let refused = who.post("/approvals/batch", &body).await;
                // Who does not administer skips nothing, and is told so.
                if refused.status == 403 {
                    continue;
                }
                let refused = refused.problem(409, "BATCH_REFUSED");
                assert_eq!(refused["items"][0]["code"], own, "{}", who.id);
            }
        }
        let to = |to: &str| json!({ "to": to });
        let _ = who.post(&format!("/approvals/{request}/delegate"), &to("ada")).await.problem(403, own);
        let refused = self.rex.post(&format!("/approvals/{request}/delegate"), &to(&who.id)).await;
        let _ = refused.problem(422, "CANNOT_BE_ASKED");
        let refused = self.ada.post(&format!("/approvals/{request}/delegate"), &to(&who.id)).await;
        let _ = refused.problem(422, "CANNOT_BE_ASKED");
        let why = json!({ "reason": "because", "incident_ticket": "INC-1" });
        let _ = who.post(&format!("/tasks/{task}/override"), &why).await.problem(403, own);
        let _ = who.post(&format!("/tasks/{task}/override/confirm"), &json!({})).await.problem(403, own);
        assert_eq!(self.requests_and_task(task).await, before, "{}", who.id);
        // What another asked for is not confirmed.
        let asked = self.ada.post(&format!("/tasks/{task}/override"), &why).await.expect(200);
        let _ = who.post(&format!("/tasks/{task}/override/confirm"), &json!({})).await.problem(403, own);
        assert_eq!(self.ada.get(&format!("/tasks/{task}")).await.expect(200), asked);
        // What is approved is neither hurried nor taken back.
        let _ = self.rex.answers(&request, "approve").await.expect(200);
        let approved = self.requests_and_task(task).await;
        assert_eq!(approved.0["state"], "APPROVED");
        let why = json!({ "reason": "because" });
        for verb in ["force-apply", "revoke"] {
            let _ = who.post(&format!("/tasks/{task}/{verb}"), &why).await.problem(403, own);
        }
        for how in ["approve", "reject", "request-changes"] {
            let _ = who.answers(&request, how).await.problem(403, own);
        }
        assert_eq!(self.requests_and_task(task).await, approved, "{}", who.id);
    }
}

#[tokio::test]
async fn nobody_of_the_authors_decides() {
    let stage = Stage::new().await;
    let office = &stage.office;
    let author = office.person("author", &ALL).await;
    let sponsor = office.person("sponsor", &ALL).await;
    let maker = office.person("maker", &ALL).await;
    let parent = office.person("parent", &ALL).await;
    let boss = office.person("boss", &ALL).await;
    // The author itself, and whom it names.
    let task = author.submitted(json!({ "lineage": { "sponsor_id": "sponsor" } })).await;
    stage.nothing_goes(&author, &task).await;
    let task = author.submitted(json!({ "lineage": { "sponsor_id": "sponsor" } })).await;
    stage.nothing_goes(&sponsor, &task).await;
    // Whoever made the token that it was proposed with.
    let made = json!({ "name": "for another", "scopes": ["read", "propose"] });
    let given = office.holder("author", &maker.post("/users/author/tokens", &made).await.expect(201));
    let task = given.submitted(json!({})).await;
    stage.nothing_goes(&maker, &task).await;
    // An agent's sponsor, whoever made its token, and whoever answers for the agents before it in the lineage.
    let bot = office.agent("bot", &boss).await;
    let _ = office.agent("elder", &parent).await;
    let task = bot.submitted(json!({})).await;
    stage.nothing_goes(&boss, &task).await;
    let given =
        office.holder("bot", &maker.post("/agents/bot/tokens", &json!({ "name": "t" })).await.expect(201));
    let task = given.submitted(json!({})).await;
    stage.nothing_goes(&maker, &task).await;
    let task = bot.submitted(json!({ "lineage": { "parent_agent_id": "elder" } })).await;
    stage.nothing_goes(&parent, &task).await;
    let task = author.submitted(json!({ "lineage": { "agent_id": "bot" } })).await;
    stage.nothing_goes(&boss, &task).await;
    // The agent decides nothing by any token: it has none that could.
    let task = author.submitted(json!({})).await;
    let request = office.request(&task, "rex").await;
    let _ = bot.answers(&request, "approve").await.problem(403, "SCOPE_MISSING");
}

#[tokio::test]
async fn a_token_that_an_author_made_decides_nothing_either() {
    let stage = Stage::new().await;
    let office = &stage.office;
    let author = office.person("author", &ALL).await;
    // What could decide for another is made by nobody but that one.
    for scope in [Scope::Decide, Scope::Admin] {
        let body = json!({ "name": "sly", "scopes": [scope] });
        let _ = author.post("/users/ada/tokens", &body).await.problem(403, "FORBIDDEN");
    }
    // What it can make does not decide.
    let body = json!({ "name": "sly", "scopes": ["read", "propose", "lock"] });
    let puppet = office.holder("rex", &author.post("/users/rex/tokens", &body).await.expect(201));
    let task = author.submitted(json!({})).await;
    let request = office.request(&task, "rex").await;
    let _ = puppet.answers(&request, "approve").await.problem(403, "SCOPE_MISSING");
    // Nor does it make another that would.
    let body = json!({ "name": "slier", "scopes": ["decide"] });
    let _ = puppet.post("/users/me/tokens", &body).await.problem(403, "FORBIDDEN");
    // A new password is an administrator's to give: then somebody signs in as another, and the audit log shows it.
    assert_eq!(office.task(&task).await["state"], "REVIEWING");
}

#[tokio::test]
async fn chains_and_followers_do_not_lead_to_an_author() {
    let stage = Stage::new().await;
    let office = &stage.office;
    let author = office.person("author", &ALL).await;
    let pia = office.person("pia", &[REVIEWER]).await;
    office.policy(json!({ "name": "pia", "task_types": ["chain"], "reviewers": ["pia", "rex"] })).await;
    // pia -> quin -> author: nobody is asked at the end of this chain.
    let quin = office.person("quin", &[REVIEWER]).await;
    for (owner, to) in [(&pia, "quin"), (&quin, "author")] {
        let _ = owner.post("/delegations", &json!({ "delegate_to": to })).await.expect(201);
    }
    let task = author.submitted(json!({ "type": "chain" })).await;
    let asked: Vec<String> =
        office.requests(&task).await.iter().map(|one| text(one, "reviewer_id")).collect();
    assert_eq!(asked, ["rex"]);
    let passed_by = office.task(&task).await["passed_by"].to_string();
    assert!(passed_by.contains("author cannot decide on this task: author is its author"), "{passed_by}");
    // The author cannot ask itself by handing on what it was given as the delegate of another.
    stage.nothing_goes(&author, &task).await;
    // Where nobody else is left, the submission says so.
    office.policy(json!({ "name": "only", "task_types": ["only"], "reviewers": ["pia"] })).await;
    let draft = author.draft(json!({ "type": "only" })).await;
    let refused = author.post(&format!("/tasks/{draft}/submit"), &json!({})).await.problem(422, "NO_QUORUM");
    assert_eq!(refused["policy"], "only");
    assert!(refused["passed_by"].to_string().contains("author cannot decide"), "{refused}");
    assert_eq!(office.task(&draft).await["state"], "DRAFT");
    // Who follows the author follows nobody.
    let _ = stage
        .rex
        .post("/delegations", &json!({ "delegate_to": "author", "kind": "follow" }))
        .await
        .expect(201);
    let task = author.submitted(json!({})).await;
    let request = office.requests(&task).await.remove(0);
    assert_eq!((&request["reviewer_id"], &request["follows"]), (&json!("rex"), &Value::Null));
    stage.nothing_goes(&author, &task).await;
    // Who leaves is not replaced by an author, also not by one who is the manager and an administrator.
    let gone = office.made(json!({ "user_id": "gone", "roles": [REVIEWER], "manager_id": "author" })).await;
    office.policy(json!({ "name": "gone", "task_types": ["gone"], "reviewers": ["gone"] })).await;
    let task = author.submitted(json!({ "type": "gone" })).await;
    let _ = office.admin.patch(&format!("/users/{}", gone.id), &json!({ "active": false })).await.expect(200);
    let requests = office.requests(&task).await;
    let asked: Vec<String> = requests.iter().map(|one| text(one, "reviewer_id")).collect();
    assert_eq!(asked, ["gone", "rex", "ada"], "an administrator who is no author");
}

#[tokio::test]
async fn whoever_changes_a_task_becomes_one_of_its_authors_and_its_copy_has_all_of_them() {
    let stage = Stage::new().await;
    let office = &stage.office;
    let author = office.person("author", &ALL).await;
    let sponsor = office.person("sponsor", &ALL).await;
    let maker = office.person("maker", &ALL).await;
    let late = office.person("late", &ALL).await;
    let task = author.draft(json!({ "lineage": { "sponsor_id": "sponsor" } })).await;
    // Another is named before anybody is asked; who was named before, and changed something, stays.
    let place = format!("/tasks/{task}");
    let _ = sponsor.patch(&place, &json!({ "description": "the sponsor's" })).await.expect(200);
    let _ = author.patch(&place, &json!({ "lineage": { "sponsor_id": "late" } })).await.expect(200);
    let _ = author.post(&format!("{place}/submit"), &json!({})).await.expect(202);
    // Another author changes it, by a token that somebody made.
    let body = json!({ "name": "t", "scopes": ["read", "propose"] });
    let given = office.holder("sponsor", &maker.post("/users/sponsor/tokens", &body).await.expect(201));
    let _ = given.patch(&place, &json!({ "description": "other" })).await.expect(200);
    let copy = |task: String| {
        let (office, author, rex) = (office.clone(), author.clone(), stage.rex.clone());
        async move {
            let request = office.request(&task, "rex").await;
            let _ = rex.answers(&request, "reject").await.expect(200);
            let copy = author.post(&format!("/tasks/{task}/resubmit"), &json!({})).await.expect(201);
            let copy = text(&copy, "task_id");
            // Who was only named belongs to the authors of the copy, whoever is named there.
            let other = json!({ "lineage": { "sponsor_id": "author" } });
            let _ = author.patch(&format!("/tasks/{copy}"), &other).await.expect(200);
            let _ = author.post(&format!("/tasks/{copy}/submit"), &json!({})).await.expect(202);
            copy
        }
    };
    // An administrator who is no author changes nothing, so that it stays one who may decide.
    let _ = stage
        .ada
        .patch(&format!("/tasks/{task}"), &json!({ "description": "mine" }))
        .await
        .problem(403, "FORBIDDEN");
    // Those of the first revision and those of the second; and the same in a copy of a copy.
    let first = copy(task).await;
    let second = copy(first).await;
    let mut task = second;
    for who in [&author, &sponsor, &maker, &late] {
        stage.nothing_goes(who, &task).await;
        let _ =
            stage.rex.post(&format!("/tasks/{task}/revoke"), &json!({ "reason": "again" })).await.expect(200);
        let next = author.post(&format!("/tasks/{task}/resubmit"), &json!({})).await.expect(201);
        task = text(&next, "task_id");
        let _ = author.post(&format!("/tasks/{task}/submit"), &json!({})).await.expect(202);
    }
}

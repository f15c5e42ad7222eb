//! What is judged is what is executed: targets, bindings and normal forms over HTTP.

use std::fs;
use std::path::Path;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};
use tempfile::TempDir;

const ADE: &str = env!("CARGO_BIN_EXE_ade");

/// A handbook that may change without a reviewer, and a folder of configuration files that may not.
fn config(folder: &Path, etc: &str) -> String {
    for name in ["handbook", "etc", "other"] {
        fs::create_dir_all(folder.join(name)).expect("created");
    }
    format!(
        "[executors.files.roots.handbook]\npath = {:?}\nresources = [\"docs:handbook\"]\ncriticality = 5\n\
         task_types = [\"docs\"]\nauthors = [\"user:ann\", \"team:writers\"]\n\
         [executors.files.roots.etc]\npath = {:?}\n\
         [executors.command.templates.restart]\nargv = [\"true\", \"{{service}}\"]\nresources = [\"service:{{service}}\"]\n",
        folder.join("handbook"),
        folder.join(etc),
    )
}

struct Fixture {
    folder: TempDir,
    house: Deployment,
    org: AdminClient,
    ann: TestUser,
    rex: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let house = Deployment::with_worker(ADE, &config(folder.path(), "etc"));
        let org = house.admin().await;
        let docs = json!({
            "name": "docs", "executors": ["files"], "targets": ["files:handbook/*"], "resource_patterns": ["docs:*"],
            "auto_approve_if": { "risk_below": 25 },
        });
        org.create_policy(docs).await;
        // A lax policy for authors who call their tasks documentation.
        org.create_policy(json!({ "name": "lax", "task_types": ["docs"], "reviewers": ["friend"] })).await;
        org.create_policy(json!({ "name": "prod", "resource_patterns": ["database:prod-*"] })).await;
        let ann = org.create_user("ann", &[AUTHOR]).await;
        let rex = org.create_user("rex", &[REVIEWER]).await;
        org.create_user("friend", &[REVIEWER]).await;
        Self { folder, house, org, ann, rex }
    }

    async fn submitted(&self, task: Value) -> Value {
        self.org.task_request(&self.ann.create_submitted(task).await).await
    }
}

fn files(task_type: &str, root: &str, path: &str) -> Value {
    let parameters = json!({ "root": root, "files": [{ "path": path, "content": "changed\n" }] });
    json!({ "type": task_type, "executor": "files", "parameters": parameters })
}

fn policies(task: &Value) -> Vec<String> {
    let requirements = task["requirements"].as_array().expect("requirements");
    requirements.iter().map(|requirement| text_field(requirement, "policy")).collect()
}

fn criticality(task: &Value) -> Value {
    let factors = task["risk"]["factors"].as_array().expect("factors");
    let is_wanted = |factor: &&Value| factor["name"] == "resource_criticality";
    factors.iter().find(is_wanted).expect("a factor")["value"].clone()
}

#[tokio::test]
async fn words_of_the_author_choose_neither_risk_nor_reviewers() {
    let fixture = Fixture::new().await;
    // "docs, no resources" over a configuration file.
    let task = fixture.submitted(files("docs", "etc", "app.conf")).await;
    assert_eq!(task["state"], "REVIEWING");
    assert_eq!(policies(&task), ["lax", "default"]);
    assert_eq!(criticality(&task), json!(50.0), "an unregistered target counts as 50");
    assert_eq!(task["scope"][0]["targets"], json!(["files:etc/app.conf"]));
    assert!(task["not_automatic"].to_string().contains("has no conditions"), "{}", task["not_automatic"]);
    // Without the type, the default policy alone.
    assert_eq!(policies(&fixture.submitted(files("config", "etc", "app.conf")).await), ["default"]);

    // A policy that names the page approves it, whatever the author calls it; here the operator allows one type only.
    let refused =
        fixture.ann.post("/tasks", &ade_testkit::deployment::task(files("note", "handbook", "a.md"))).await;
    assert_eq!((refused.status, refused.error_pointers()), (422, vec!["/type".to_owned()]));
    let path = "/policies";
    let listed = fixture.org.api.get(path).await.expect_status(200);
    let lax = listed["items"]
        .as_array()
        .expect("items")
        .iter()
        .find(|policy| policy["name"] == "lax")
        .expect("lax");
    let lax = format!("/policies/{}", text_field(lax, "policy_id"));
    let _ = fixture.org.api.delete(&lax).await.expect_status(204);
    let page = fixture.submitted(files("docs", "handbook", "a.md")).await;
    assert!(page["auto_approved"].is_string(), "{page}");
    assert_eq!(page["scope"][0]["resources"][0]["id"], "handbook", "the operator binds it");
    let locks: Vec<String> =
        page["lock_preview"].as_array().expect("locks").iter().map(|lock| text_field(lock, "lock")).collect();
    assert_eq!(locks[1..], ["resource:docs:handbook", "resource:files:handbook"]);
    let with_database = json!([{ "type": "database", "id": "PROD-x" }]);
    let mut page = files("docs", "handbook", "b.md");
    page["resources"] = with_database;
    let page = fixture.submitted(page).await;
    assert_eq!(
        (&page["state"], policies(&page)),
        (&json!("REVIEWING"), vec!["docs".to_owned(), "prod".to_owned()])
    );

    // Spellings and reserved types.
    for (resource_type, hint) in [
        ("Database", "write database"),
        ("data base", "lowercase"),
        ("files", "derived"),
        ("Agent", "derived"),
    ] {
        let body = ade_testkit::deployment::task(
            json!({ "resources": [{ "type": resource_type, "id": "prod-x" }] }),
        );
        let refused = fixture.ann.post("/tasks", &body).await;
        assert_eq!((refused.status, refused.error_pointers()), (422, vec!["/resources/0/type".to_owned()]));
        assert!(refused.text().contains(hint), "{}", refused.text());
    }
    let decomposed = files("config", "etc", "cafe\u{301}");
    let refused = fixture.ann.post("/tasks", &ade_testkit::deployment::task(decomposed)).await;
    assert_eq!(refused.error_pointers(), ["/parameters/files/0/path"]);
    // A command binds the resource that its argument names.
    let parameters = json!({ "template": "restart", "arguments": { "service": "Shop" } });
    let restart = fixture.submitted(json!({ "executor": "command", "parameters": parameters })).await;
    assert_eq!(restart["scope"][0]["resources"][0]["id"], "Shop");
    for service in ["docs/../prod", "shop\u{200b}", "shop "] {
        let parameters = json!({ "template": "restart", "arguments": { "service": service } });
        let body = json!({ "executor": "command", "parameters": parameters });
        let refused = fixture.ann.post("/tasks", &ade_testkit::deployment::task(body)).await;
        let expected = (422, vec!["/parameters/arguments/service".to_owned()]);
        assert_eq!((refused.status, refused.error_pointers()), expected, "{service:?}");
    }
    // Anybody may simulate policies, so their patterns are bounded.
    let task = ade_testkit::deployment::task(json!({}));
    let long = json!({ "name": "long", "resource_patterns": ["a".repeat(257)] });
    let many: Vec<Value> =
        (0..3).map(|number| json!({ "name": format!("many-{number}"), "targets": vec!["a"; 200] })).collect();
    for (policies, pointer) in [(vec![long], "/policies/0/resource_patterns/0"), (many, "/policies")] {
        let refused = fixture.ann.post("/simulations", &json!({ "task": task, "policies": policies })).await;
        assert_eq!((refused.status, refused.error_pointers()), (422, vec![pointer.to_owned()]));
    }
}

#[tokio::test]
async fn bindings_name_who_may_propose_and_preview() {
    let fixture = Fixture::new().await;
    fs::write(fixture.folder.path().join("handbook/secret.md"), "do not tell\n").expect("written");
    let page = ade_testkit::deployment::task(files("docs", "handbook", "secret.md"));
    let ben = fixture.org.create_user("ben", &[AUTHOR]).await;
    for (path, body) in [("/tasks", page.clone()), ("/simulations", json!({ "task": page }))] {
        let refused = ben.post(path, &body).await;
        let _ = refused.expect_problem(403, "FORBIDDEN");
        assert!(!refused.text().contains("do not tell"), "{}", refused.text());
    }
    let writer =
        fixture.org.create_user_from(json!({ "user_id": "wim", "roles": [AUTHOR], "team": "writers" })).await;
    let _ = writer.post("/tasks", &page).await.expect_status(201);
    // An agent of Ann's is not Ann.
    let bot = fixture.org.create_agent("bot", &fixture.ann).await;
    let _ = bot.post("/tasks", &page).await.expect_problem(403, "FORBIDDEN");
    let listed = fixture.rex.get("/executors").await.expect_status(200);
    let names: Vec<String> =
        listed["items"].as_array().expect("items").iter().map(|one| text_field(one, "name")).collect();
    assert_eq!(names, ["command:restart", "files:etc", "files:handbook"]);
    assert_eq!(listed["items"][2]["authors"], json!(["user:ann", "team:writers"]));
    assert_eq!(listed["items"][2]["workers"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn changed_binding_sends_an_approved_task_back_to_review() {
    let fixture = Fixture::new().await;
    let admin = fixture.org.create_user("ada", &[ADMIN]).await;
    // Keeps the worker from applying the task.
    let lock = json!({ "locks": [{ "lock": "resource:files:etc" }], "ttl_seconds": 300 });
    let _ = fixture.ann.post("/locks/acquire", &lock).await.expect_problem(403, "FORBIDDEN");
    let granted = admin.post("/locks/acquire", &lock).await.expect_status(200);
    let id = fixture.ann.create_submitted(files("config", "etc", "app.conf")).await;
    let request = fixture.org.approval_id(&id, "rex").await;
    let wrong = json!({ "scope_digest": "0".repeat(64) });
    let _ = fixture
        .rex
        .post(&format!("/approvals/{request}/approve"), &wrong)
        .await
        .expect_problem(409, "STALE_SCOPE");
    let _ = fixture.rex.decide(&request, "approve").await.expect_status(200);
    let server = fixture.house.server();
    server.stop().expect("stopped");
    // The same name, another folder.
    let file = server.folder().join("ade.toml");
    let before = fs::read_to_string(&file).expect("a file");
    let (old, new) = (fixture.folder.path().join("etc"), fixture.folder.path().join("other"));
    fs::write(&file, before.replace(&format!("{old:?}"), &format!("{new:?}"))).expect("written");
    server.start_again().expect("starts");
    let org = fixture.house.admin().await;
    let held = json!({ "locks": [{ "lock": "resource:files:etc", "fencing_token": granted["grants"][0]["fencing_token"] }] });
    let admin = admin.at_server(&org.api);
    let _ = admin.post("/locks/release", &held).await.expect_status(200);
    let task = org.wait_for_task("stale", &id, |task| task["state"] == "REVIEWING").await;
    assert!(text_field(&task["reopened"], "reason").starts_with("STALE_SCOPE"), "{task}");
    assert!(!new.join("app.conf").exists() && !old.join("app.conf").exists(), "nothing is applied");
    let rex = fixture.rex.at_server(&org.api);
    let _ = rex.decide(&org.approval_id(&id, "rex").await, "approve").await.expect_status(200);
    org.wait_for_task("applied", &id, |task| task["state"] == "COMPLETED").await;
    assert!(new.join("app.conf").exists());
}

#[tokio::test]
async fn author_of_a_rule_is_not_approved_by_it() {
    let fixture = Fixture::new().await;
    let ada = fixture.org.create_user("ada", &[ADMIN, AUTHOR]).await;
    let notes = json!({
        "name": "notes", "active": true, "resource_patterns": ["note:*"], "auto_approve_if": { "risk_below": 101 },
    });
    let _ = ada.post("/policies", &notes).await.expect_status(201);
    let note = json!({ "resources": [{ "type": "note", "id": "1" }] });
    let own = fixture.org.task_request(&ada.create_submitted(note.clone()).await).await;
    assert_eq!(own["state"], "REVIEWING");
    assert!(own["not_automatic"].to_string().contains("changed the rules"), "{}", own["not_automatic"]);
    let others = fixture.org.task_request(&fixture.ann.create_submitted(note.clone()).await).await;
    assert!(others["auto_approved"].is_string(), "{others}");
    // What an agent writes is not approved automatically either, unless the policy says so.
    let bot = fixture.org.create_agent("bot", &fixture.ann).await;
    let by_agent = fixture.org.task_request(&bot.create_submitted(note).await).await;
    assert_eq!(by_agent["state"], "REVIEWING");
}

/// Somebody without the role of a policy neither uses the name of somebody who has it, nor takes the role for the occasion.
#[tokio::test]
async fn role_of_another_approves_nothing() {
    let fixture = Fixture::new().await;
    let Fixture { org, .. } = &fixture;
    let wim = org.create_user("wim", &[AUTHOR, "writer"]).await;
    let eve = org.create_user("eve", &[ADMIN, AUTHOR]).await;
    let conditions = json!({ "risk_below": 30, "author_has_role": ["writer"] });
    let policy = json!({ "name": "notes", "resource_patterns": ["note:*"], "auto_approve_if": conditions });
    org.create_policy(policy).await;
    let note = |about: &str| json!({ "description": about, "resources": [{ "type": "note", "id": "1" }] });
    let outcome = async |id: &str| {
        let task = org.task_request(id).await;
        (task["auto_approved"].is_string(), task["not_automatic"].to_string())
    };
    assert!(outcome(&wim.create_submitted(note("own")).await).await.0);
    // With a token that an administrator made for the writer.
    let token = eve.post("/users/wim/tokens", &json!({ "name": "x" })).await.expect_status(201);
    let as_wim = org.user_with_token("wim", &token);
    let (approved, why) = outcome(&as_wim.create_submitted(note("by token")).await).await;
    assert!(!approved && why.contains("the author eve has none of the roles writer"), "{why}");
    // By submitting the writer's draft, which does not make it one's own.
    let draft = wim.create_draft(note("harmless")).await;
    let change = json!({ "description": "harmful" });
    let _ = eve.patch(&format!("/tasks/{draft}"), &change).await.expect_problem(403, "FORBIDDEN");
    let _ = eve.post(&format!("/tasks/{draft}/submit"), &json!({})).await.expect_status(202);
    let _ = eve.patch(&format!("/tasks/{draft}"), &change).await.expect_problem(403, "FORBIDDEN");
    assert!(!outcome(&draft).await.0);
    // By taking the role.
    let roles = json!({ "roles": [ADMIN, AUTHOR, "writer"] });
    let _ = eve.patch("/users/eve", &roles).await.expect_status(200);
    let (approved, why) = outcome(&eve.create_submitted(note("role")).await).await;
    assert!(!approved && why.contains("granted eve the role writer"), "{why}");
    assert!(outcome(&wim.create_submitted(note("still")).await).await.0);
}

/// Who writes a draft of a policy is kept from automatic approval, also if somebody else activates it.
#[tokio::test]
async fn author_of_a_policy_draft_is_not_approved_by_it() {
    let fixture = Fixture::new().await;
    let Fixture { org, .. } = &fixture;
    let ada = org.create_user("ada", &[ADMIN, AUTHOR]).await;
    let draft =
        json!({ "name": "notes", "resource_patterns": ["note:*"], "auto_approve_if": { "risk_below": 101 } });
    let policy = text_field(&ada.post("/policies", &draft).await.expect_status(201), "policy_id");
    let _ = org.api.post(&format!("/policies/{policy}/activate"), &json!({})).await.expect_status(200);
    let note = json!({ "resources": [{ "type": "note", "id": "1" }] });
    let own = org.task_request(&ada.create_submitted(note.clone()).await).await;
    assert_eq!(own["state"], "REVIEWING", "{own}");
    let others = org.task_request(&fixture.ann.create_submitted(note).await).await;
    assert!(others["auto_approved"].is_string(), "{others}");
}

#[tokio::test]
async fn spellings_of_a_resource_are_one_lock() {
    let fixture = Fixture::new().await;
    let other = fixture.org.create_user("ben", &[AUTHOR]).await;
    let lock = |name: &str| json!({ "locks": [{ "lock": name }], "ttl_seconds": 60 });
    let granted =
        fixture.ann.post("/locks/acquire", &lock("resource:database:PROD-x")).await.expect_status(200);
    assert_eq!(granted["grants"][0]["lock"], "resource:database:PROD-x", "as given");
    let _ = other
        .post("/locks/acquire", &lock("resource:Database:prod-X"))
        .await
        .expect_problem(423, "LOCK_HELD");
    let shown = other.get("/locks/resource:database:Prod-X").await.expect_status(200);
    assert_eq!(
        (&shown["lock"], shown["holders"].as_array().map(Vec::len)),
        (&json!("resource:database:Prod-X"), Some(1))
    );
    let token = &granted["grants"][0]["fencing_token"];
    let held = json!({ "locks": [{ "lock": "resource:database:PROD-x", "fencing_token": token }] });
    let released = fixture.ann.post("/locks/release", &held).await.expect_status(200);
    assert_eq!(released["results"][0]["lock"], "resource:database:PROD-x");
}

//! Passwords, invitations, sessions and tokens: nothing that somebody else made or knows decides.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::Deployment;
use ade_testkit::api::fill_path;
use ade_testkit::deployment::text_field;
use ade_testkit::session::{SessionClient, accept_invitation, sign_in};
use serde_json::{Value, json};

use crate::tasks::UNKNOWN_ID;

const PASSWORD: &str = "correct horse battery staple";
/// More attempts than users have.
const LIMIT: &str = "[limit]\nsign_ins_per_minute = 100\n";
const OWN: &str = "a password of my own";

fn own_password(present: &str) -> Value {
    json!({ "password": OWN, "current_password": present })
}

#[tokio::test]
async fn temporary_password_only_leads_to_an_own_one() {
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), LIMIT);
    let org = deployment.admin().await;
    let user = json!({ "user_id": "rex", "roles": [REVIEWER, ADMIN], "password": PASSWORD });
    let _ = org.api.post("/users", &user).await.expect_status(201);
    let rex = SessionClient::sign_in(&org.api, "rex", PASSWORD).await;
    let shown = rex.get("/sessions/current").await.expect_status(200);
    assert_eq!((&shown["password_change_required"], &shown["scopes"]), (&json!(true), &json!([])));
    assert_eq!(shown["user"]["user_id"], "rex");
    for (method, path, operation) in org.api.operations() {
        let is_public = operation["security"].as_array().is_some_and(|all| all.contains(&json!({})));
        if is_public || path == "/sessions/current" {
            continue;
        }
        let response =
            rex.call(&method, &fill_path(&path, UNKNOWN_ID), Some(&rex.csrf_token), &json!({})).await;
        let _ = response.expect_problem(403, "PASSWORD_CHANGE_REQUIRED");
    }
    // Not even with the password does it change anything else.
    for change in
        [json!({ "name": "R" }), json!({ "password": OWN, "current_password": PASSWORD, "roles": [ADMIN] })]
    {
        let _ = rex.patch("/users/me", &change).await.expect_problem(403, "PASSWORD_CHANGE_REQUIRED");
    }
    // The password of the administrator does not become an own one.
    let kept = json!({ "password": PASSWORD, "current_password": PASSWORD });
    let _ = rex.patch("/users/me", &kept).await.expect_problem(422, "INVALID_REQUEST");
    let _ = rex.patch("/users/me", &own_password(PASSWORD)).await.expect_status(200);
    // Another server of the same host may have planted a second cookie: nobody knows which is whose.
    let planted = format!("ade_session=other; {}", rex.cookie);
    let refused = org.api.send_raw("GET", "/api/v1/sessions/current", &[("cookie", &planted)], "").await;
    let _ = refused.expect_problem(401, "UNAUTHENTICATED");
    let shown = rex.get("/sessions/current").await.expect_status(200);
    assert_eq!(shown["password_change_required"], false);
    let _ = rex.get("/tasks").await.expect_status(200);
}

#[tokio::test]
async fn new_password_needs_the_old_one_and_ends_what_it_authenticated() {
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), LIMIT);
    let org = deployment.admin().await;
    let eve = org.join_and_sign_in("eve", &[ADMIN, REVIEWER, AUTHOR], PASSWORD).await;
    let other = SessionClient::sign_in(&org.api, "eve", PASSWORD).await;
    let token = async |scopes: &[Scope]| {
        let body = json!({ "name": "t", "scopes": scopes });
        let created = eve.post("/users/me/tokens", &body).await.expect_status(201);
        org.user_with_token("eve", &created)
    };
    let (deciding, admin) =
        (token(&[Scope::Read, Scope::Decide]).await, token(&[Scope::Read, Scope::Admin]).await);
    let service = token(&[Scope::Read, Scope::Propose]).await;
    // Neither an administrator nor a token does without the present password.
    let refused = eve.patch("/users/me", &json!({ "password": OWN })).await;
    assert_eq!(refused.expect_problem(422, "INVALID_REQUEST")["errors"][0]["pointer"], "/current_password");
    let _ =
        eve.patch("/users/me", &own_password("wrong password")).await.expect_problem(403, "WRONG_PASSWORD");
    for change in [json!({ "password": OWN }), own_password(PASSWORD)] {
        let _ = admin.patch("/users/eve", &change).await.expect_problem(403, "FORBIDDEN");
    }
    let with_roles = json!({ "password": OWN, "current_password": PASSWORD, "roles": [ADMIN] });
    let _ = eve.patch("/users/me", &with_roles).await.expect_problem(422, "INVALID_REQUEST");
    assert_eq!(
        (eve.status().await, other.status().await, deciding.get("/tasks").await.status),
        (200, 200, 200)
    );

    let _ = eve.patch("/users/me", &own_password(PASSWORD)).await.expect_status(200);
    assert_eq!(
        (eve.status().await, other.status().await),
        (200, 401),
        "this session goes on, the other ends"
    );
    for token in [&deciding, &admin] {
        let _ = token.get("/tasks").await.expect_problem(401, "UNAUTHENTICATED");
    }
    let _ = service.get("/tasks").await.expect_status(200);
    let _ = sign_in(&org.api, "eve", PASSWORD).await.expect_problem(401, "UNAUTHENTICATED");
    // The rest on request.
    let again = json!({ "password": PASSWORD, "current_password": OWN, "revoke_tokens": true });
    let _ = eve.patch("/users/me", &again).await.expect_status(200);
    let _ = service.get("/tasks").await.expect_problem(401, "UNAUTHENTICATED");
    // The role of the service itself cannot be granted.
    for roles in [json!(["system"]), json!(["author", "system"])] {
        let _ =
            eve.patch("/users/eve", &json!({ "roles": roles })).await.expect_problem(422, "INVALID_REQUEST");
        let body = json!({ "user_id": "robot", "roles": roles });
        for path in ["/users", "/users/invitations"] {
            let _ = org.api.post(path, &body).await.expect_problem(422, "INVALID_REQUEST");
        }
    }
}

#[tokio::test]
async fn invitation_is_used_once_and_decides_nothing() {
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), LIMIT);
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let body = json!({ "user_id": "rex", "roles": [REVIEWER] });
    let _ = pat.post("/users/invitations", &body).await.expect_problem(403, "FORBIDDEN");
    let invite = async || org.api.post("/users/invitations", &body).await.expect_status(201);
    let first = invite().await;
    assert_eq!(first["user"]["active"], false);
    // Nobody waits for a reviewer who has not joined.
    let draft = pat.create_draft(json!({})).await;
    let _ = pat.post(&format!("/tasks/{draft}/submit"), &json!({})).await.expect_problem(422, "NO_QUORUM");
    // A second invitation replaces the first; a repeated request does not show the code.
    let code = text_field(&invite().await, "code");
    let key = [("idempotency-key", "invite")];
    let ivy = json!({ "user_id": "ivy" }).to_string();
    let shown =
        org.api.request_with_headers("POST", "/users/invitations", &key, &ivy).await.expect_status(201);
    let again =
        org.api.request_with_headers("POST", "/users/invitations", &key, &ivy).await.expect_status(201);
    assert!(shown["code"].is_string() && again["code"].is_null(), "{again}");
    assert_eq!(shown["expires_at"], again["expires_at"]);
    let accept = async |code: &str, password: &str| accept_invitation(&org.api, code, password).await;
    for wrong in [
        &text_field(&first, "code"),
        &code.replace("rex", "pat"),
        "rex:adei_0",
        "rex:",
        "rex",
        "nobody:x",
        "",
    ] {
        let _ = accept(wrong, PASSWORD).await.expect_problem(403, "INVALID_INVITATION");
    }
    let _ = accept(&code, "short").await.expect_problem(422, "INVALID_REQUEST");
    // The link itself does nothing.
    assert_eq!(org.api.send_raw("GET", "/api/v1/users/invitations/accept", &[], "").await.status, 405);
    let joined = accept(&code, PASSWORD).await.expect_status(200);
    assert_eq!((&joined["user_id"], &joined["active"]), (&json!("rex"), &json!(true)));
    let _ = accept(&code, OWN).await.expect_problem(403, "INVALID_INVITATION");
    let _ = org.api.post("/users/invitations", &body).await.expect_problem(409, "ALREADY_EXISTS");
    let rex = SessionClient::sign_in(&org.api, "rex", PASSWORD).await;
    let _ = pat.post(&format!("/tasks/{draft}/submit"), &json!({})).await.expect_status(202);
    let path = format!("/approvals/{}/approve", org.approval_id(&draft, "rex").await);
    assert_eq!(rex.post(&path, &json!({})).await.expect_status(200)["task_state"], "APPROVED");
    // Giving the password again needs a session and the right password.
    let give = |password: &str| json!({ "password": password });
    let _ = rex.post("/sessions/reauthenticate", &give(OWN)).await.expect_problem(403, "WRONG_PASSWORD");
    let renewed = rex.post("/sessions/reauthenticate", &give(PASSWORD)).await.expect_status(200);
    assert!(renewed["decides_until"].is_string(), "{renewed}");
    let _ = pat.post("/sessions/reauthenticate", &give(PASSWORD)).await.expect_problem(403, "FORBIDDEN");
}

#[tokio::test]
async fn tokens_made_for_others_never_decide() {
    let config = "[security]\nbootstrap_decides = false\n";
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), config);
    let org = deployment.admin().await;
    for (id, roles) in [("pat", AUTHOR), ("rex", REVIEWER)] {
        let _ = org.api.post("/users", &json!({ "user_id": id, "roles": [roles] })).await.expect_status(201);
    }
    let eve = org.join_and_sign_in("eve", &[ADMIN], PASSWORD).await;
    let token = |scopes: &[Scope]| json!({ "name": "t", "scopes": scopes });
    for scopes in [&[Scope::Decide][..], &Scope::ALL] {
        let _ = org.api.post("/users/rex/tokens", &token(scopes)).await.expect_problem(403, "FORBIDDEN");
        let _ = eve.post("/users/rex/tokens", &token(scopes)).await.expect_problem(403, "FORBIDDEN");
    }
    let pat = org.issue_token("pat", &[Scope::Read, Scope::Propose]).await;
    let rex = org.issue_token("rex", &[Scope::Read, Scope::Propose]).await;
    let task = pat.create_submitted(json!({})).await;
    let request = org.approval_id(&task, "rex").await;
    let _ = rex.decide(&request, "approve").await.expect_problem(403, "SCOPE_MISSING");
    // Its own user makes one in a session, for as long as the session decides.
    let _ = org.api.patch("/users/rex", &json!({ "password": PASSWORD })).await.expect_status(200);
    let session = SessionClient::sign_in(&org.api, "rex", PASSWORD).await;
    let _ = session.patch("/users/me", &own_password(PASSWORD)).await.expect_status(200);
    let created =
        session.post("/users/me/tokens", &token(&[Scope::Read, Scope::Decide])).await.expect_status(201);
    let until = session.get("/sessions/current").await.expect_status(200);
    assert_eq!(created["expires_at"], until["decides_until"], "the password was given at the sign-in");
    let own = org.user_with_token("rex", &created);
    assert_eq!(own.decide(&request, "approve").await.expect_status(200)["task_state"], "APPROVED");
    // The setting can only be made in the file.
    let log = deployment.server().process().log_lines_with("security.bootstrap_decides").len();
    assert_eq!(log, 0, "no warning while it is off");
}

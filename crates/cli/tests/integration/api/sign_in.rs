//! Sign-in at the edge: trusted proxies, plain HTTP, cookies, delays after failed attempts, and known devices.

use ade_domain::people::AUTHOR;
use ade_testkit::api::{ApiClient, ApiResponse};
use ade_testkit::{AdminClient, Deployment};
use serde_json::{Value, json};

const PASSWORD: &str = "correct horse battery staple";

async fn deployment(config: &str) -> (Deployment, AdminClient) {
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), config);
    let org = deployment.admin().await;
    for user_id in ["ann", "ben"] {
        let user = json!({ "user_id": user_id, "roles": [AUTHOR], "password": PASSWORD });
        let _ = org.api.post("/users", &user).await.expect_status(201);
    }
    (deployment, org)
}

async fn sign_in(api: &ApiClient, user: &str, password: &str, headers: &[(&str, &str)]) -> ApiResponse {
    let body = json!({ "user_id": user, "password": password }).to_string();
    api.send_raw("POST", "/api/v1/sessions", headers, body).await
}

fn cookies(response: &ApiResponse) -> Vec<String> {
    let values = response.headers.get_all("set-cookie").iter();
    values.map(|value| value.to_str().expect("text").to_owned()).collect()
}

/// `name=value` of a cookie that a response sets.
fn cookie(response: &ApiResponse, name: &str) -> Option<String> {
    let pairs = cookies(response).into_iter().filter_map(|line| line.split(';').next().map(str::to_owned));
    pairs.into_iter().find(|pair| pair.starts_with(&format!("{name}=")))
}

async fn audited_addresses(org: &AdminClient) -> Vec<Value> {
    let check = || async {
        let found = org.audit_entries("action=session.create").await;
        if found.len() == 3 { Ok(found) } else { Err(format!("{found:?}")) }
    };
    let found = ade_testkit::wait::until("three sign-ins", std::time::Duration::from_secs(60), check).await;
    found.expect("in time").iter().map(|entry| entry["who"]["ip"].clone()).collect()
}

#[tokio::test]
async fn trusted_proxies_name_the_client() {
    let config =
        "[server]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\n[limit]\nsign_ins_per_minute = 4\n";
    let (_deployment, org) = deployment(config).await;
    let api = &org.api;
    let tls = ("x-forwarded-proto", "https");
    // A client behind the proxy needs TLS up to the proxy; its cookies are for TLS only.
    let client = ("x-forwarded-for", "127.0.0.1, 203.0.113.9, 10.1.2.3");
    let refused = sign_in(api, "ann", PASSWORD, &[client]).await.expect_problem(403, "PLAIN_HTTP");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("203.0.113.9")), "{refused}");
    let signed_in = sign_in(api, "ann", PASSWORD, &[client, tls]).await;
    let _ = signed_in.expect_status(201);
    assert_eq!(cookies(&signed_in).len(), 2, "session and device");
    assert!(
        cookies(&signed_in).iter().all(|cookie| cookie.ends_with("; Secure")),
        "{:?}",
        cookies(&signed_in)
    );
    assert_eq!(signed_in.header("strict-transport-security"), "max-age=31536000");
    assert_eq!(signed_in.header("referrer-policy"), "same-origin");
    let standard = ("forwarded", "for=198.51.100.7;proto=https");
    let _ = sign_in(api, "ann", PASSWORD, &[standard]).await.expect_status(201);
    // A client on this machine needs neither.
    let local = sign_in(api, "ann", PASSWORD, &[]).await;
    let _ = local.expect_status(201);
    assert!(cookies(&local).iter().all(|cookie| !cookie.contains("Secure")));
    assert_eq!(audited_addresses(&org).await, ["203.0.113.9", "198.51.100.7", "127.0.0.1"]);
    let disagreeing = sign_in(api, "ann", PASSWORD, &[standard, client]).await;
    let _ = disagreeing.expect_problem(400, "PROXY_HEADERS");
    // Attempts are counted by the client behind the proxy: 20 a minute.
    for number in 0..22 {
        let client = [("x-forwarded-for", "203.0.113.66"), tls];
        let response = sign_in(api, &format!("name-{number}"), "wrong", &client).await;
        assert_eq!(response.status, if number < 20 { 401 } else { 429 }, "{}", response.text());
    }
    let other = sign_in(api, "name-x", "wrong", &[("x-forwarded-for", "203.0.113.67"), tls]).await;
    let _ = other.expect_problem(401, "UNAUTHENTICATED");
}

#[tokio::test]
async fn headers_of_others_do_not_count() {
    let (_deployment, org) = deployment("").await;
    // Somebody who is no trusted proxy forwards a request: where it comes from is unknown, and certainly not from here.
    let forged = [("x-forwarded-for", "203.0.113.9"), ("x-forwarded-proto", "https")];
    let refused = sign_in(&org.api, "ann", PASSWORD, &forged).await.expect_problem(403, "PLAIN_HTTP");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("127.0.0.1")), "{refused}");
    let (_deployment, org) = deployment("[server]\nallow_plain_http = true\n").await;
    let allowed = sign_in(&org.api, "ann", PASSWORD, &forged).await;
    let _ = allowed.expect_status(201);
    assert!(
        cookies(&allowed).iter().all(|cookie| cookie.ends_with("; Secure")),
        "the client is not this machine"
    );
}

#[track_caller]
fn assert_delayed(response: &ApiResponse) {
    let problem = response.expect_problem(429, "RATE_LIMITED");
    let seconds: u64 = response.header("retry-after").parse().expect("seconds");
    assert!(seconds >= 1 && problem["retry_after"] == seconds, "{problem}");
}

#[tokio::test]
async fn failed_sign_ins_delay_others_but_not_known_devices() {
    let (_deployment, org) = deployment("[limit]\nsign_ins_per_minute = 1000\n").await;
    let api = &org.api;
    let first = sign_in(api, "ann", PASSWORD, &[]).await;
    let _ = first.expect_status(201);
    let device = cookie(&first, "ade_device").expect("a device");
    assert_ne!(Some(&device), cookie(&sign_in(api, "ann", PASSWORD, &[]).await, "ade_device").as_ref());
    let known = [("cookie", device.as_str())];
    let again = sign_in(api, "ann", PASSWORD, &known).await;
    let _ = again.expect_status(201);
    assert_eq!(cookie(&again, "ade_device"), None, "the device keeps its secret");
    // Whether the name exists makes no difference, nor does the right password.
    for name in ["ann", "nobody"] {
        for _ in 0..5 {
            let _ = sign_in(api, name, "wrong password", &[]).await.expect_problem(401, "UNAUTHENTICATED");
        }
        assert_delayed(&sign_in(api, name, "wrong password", &[]).await);
    }
    assert_delayed(&sign_in(api, "ann", PASSWORD, &[]).await);
    assert_delayed(&sign_in(api, "ann", PASSWORD, &[("cookie", "ade_device=aded_guessed")]).await);
    // Ben is not delayed, ann not on her device, and her device is of no use for ben.
    let _ = sign_in(api, "ben", PASSWORD, &[]).await.expect_status(201);
    let _ = sign_in(api, "ann", PASSWORD, &known).await.expect_status(201);
    for _ in 0..5 {
        let _ = sign_in(api, "ben", "wrong password", &known).await.expect_problem(401, "UNAUTHENTICATED");
    }
    assert_delayed(&sign_in(api, "ben", PASSWORD, &known).await);
    // A device is delayed by its own failures.
    for _ in 0..5 {
        let _ = sign_in(api, "ann", "wrong password", &known).await.expect_problem(401, "UNAUTHENTICATED");
    }
    assert_delayed(&sign_in(api, "ann", PASSWORD, &known).await);
}

/// A session is no way to guess the password, and somebody who guesses does not keep the owner from changing it.
#[tokio::test]
async fn wrong_passwords_in_a_session_delay_like_failed_sign_ins() {
    let (_deployment, org) = deployment("[limit]\nsign_ins_per_minute = 1000\n").await;
    let api = &org.api;
    let reauthenticate: fn(&str) -> Value = |password| json!({ "password": password });
    let change: fn(&str) -> Value = |password| json!({ "password": PASSWORD, "current_password": password });
    let routes = [
        ("eve", "POST", "/api/v1/sessions/reauthenticate", reauthenticate),
        ("kim", "PATCH", "/api/v1/users/me", change),
    ];
    for (user, method, path, body) in routes {
        org.join(user, &[AUTHOR], PASSWORD).await;
        let signed_in = sign_in(api, user, PASSWORD, &[]).await;
        let csrf = signed_in.expect_status(201)["csrf_token"].as_str().expect("a token").to_owned();
        let [session, device] =
            ["ade_session", "ade_device"].map(|name| cookie(&signed_in, name).expect("a cookie"));
        let send = async |cookies: &str, password: &str| {
            let headers = [("cookie", cookies), ("x-csrf-token", csrf.as_str())];
            api.send_raw(method, path, &headers, body(password).to_string()).await
        };
        let known = format!("{session}; {device}");
        for cookies in [&session, &known] {
            let _ = send(&known, PASSWORD).await.expect_status(200);
            for _ in 0..5 {
                let _ = send(cookies, "wrong password").await.expect_problem(403, "WRONG_PASSWORD");
            }
            assert_delayed(&send(cookies, PASSWORD).await);
            assert_delayed(&sign_in(api, user, PASSWORD, &[("cookie", cookies)]).await);
        }
    }
}

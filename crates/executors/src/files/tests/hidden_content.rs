//! A preview shows authors nothing of files that they may not read, not even whether a guess of the content is right.

use super::*;
use crate::{Visibility, bounded};

const SECRET: &str = "password = hunter2\n";

/// The preview as stored and as authors see it, both as JSON.
async fn previews(files: &FilesExecutor, run: &Run) -> (Value, Value) {
    let preview = files.preview(&run.parameters).await.expect("previewed");
    let json = |preview: &Preview| serde_json::to_value(preview).expect("plain");
    (json(&preview), json(&preview.restricted()))
}

#[tokio::test]
async fn authors_see_name_size_and_keyed_hash_of_private_files() {
    let root = TestRoot::new();
    root.write("private", SECRET, 0o600);
    root.write(".env", SECRET, 0o644);
    root.write("public", SECRET, 0o644);
    let (_stop, run) = root.run(json!([
        { "path": "private", "content": "password = other\n" },
        { "path": ".env", "delete": true },
        { "path": "public", "content": "password = other\n" },
        { "path": ".new", "content": "mine\n" },
    ]));
    let (stored, restricted) = previews(&root.files, &run).await;
    for (change, is_hidden) in [(0, true), (1, true), (2, false), (3, false)] {
        let diff = restricted["changes"][change]["diff"].as_str().expect("a diff");
        assert_eq!(diff.contains("hidden"), is_hidden, "{diff}");
        let full = stored["changes"][change]["diff"].as_str().expect("a diff");
        assert!(full.contains(if change == 3 { "mine" } else { "hunter2" }), "{full}");
    }
    let hash = Digest::of_bytes(SECRET.as_bytes()).to_string();
    let before = |change: usize| restricted["changes"][change]["before"].as_str().expect("a hash");
    assert!(before(0).ends_with(" 0600, 19 bytes") && !before(0).contains(&hash), "{}", before(0));
    assert!(before(1).ends_with(" 0644, 19 bytes") && !before(1).contains(&hash), "{}", before(1));
    assert_ne!(before(0).split(' ').next(), before(1).split(' ').next(), "equal contents are not recognized");
    assert_eq!(before(2), format!("{hash} 0644"));
}

#[tokio::test]
async fn guesses_of_hidden_content_look_like_other_changes() {
    let root = TestRoot::new();
    root.write("private", SECRET, 0o600);
    let (_stop, right) = root.run(json!([{ "path": "private", "content": SECRET }]));
    let (_stop, wrong) = root.run(json!([{ "path": "private", "content": "password = hunter3\n" }]));
    let (_, right_preview) = previews(&root.files, &right).await;
    let (_, wrong_preview) = previews(&root.files, &wrong).await;
    let known = |preview: &Value| {
        let change = &preview["changes"][0];
        (change["kind"].clone(), change["before"].clone(), change["diff"].clone())
    };
    assert_eq!(known(&right_preview), known(&wrong_preview));
    let after = |preview: &Value| preview["changes"][0]["after"].as_str().expect("a hash").to_owned();
    let plain = |text: &str| format!("{} 0600", Digest::of_bytes(text.as_bytes()));
    assert_eq!(after(&right_preview), plain(SECRET));
    assert_eq!(after(&wrong_preview), plain("password = hunter3\n"));
}

/// The size of the diff of a hidden file depends on how much of it was guessed.
#[tokio::test]
async fn size_of_a_hidden_diff_does_not_change_what_is_shown() {
    let root = TestRoot::new();
    let secret = "password = hunter2\n".repeat(10_000);
    root.write("private", &secret, 0o600);
    let mut shown = Vec::new();
    for guess in [secret.as_str(), "other\n"] {
        let (_stop, run) = root.run(json!([
            { "path": "private", "content": guess },
            { "path": "public", "content": "line of text\n".repeat(30_000) },
        ]));
        let preview = bounded(root.files.preview(&run.parameters).await.expect("previewed")).restricted();
        shown.push(preview.changes.into_iter().map(|change| change.diff).collect::<Vec<_>>());
    }
    assert!(shown[0] == shown[1], "the length of the hidden diff shows");
}

#[tokio::test]
async fn operator_chooses_what_is_shown() {
    let root = TestRoot::new();
    for path in ["readme.md", "app.conf", "key.pem"] {
        root.write(path, SECRET, 0o644);
    }
    let patterns = |patterns: &[&str]| Some(patterns.iter().map(|text| (*text).to_owned()).collect());
    let visibility =
        Visibility { show: patterns(&["**/*.md"]), show_reviewers: patterns(&["*.md", "*.conf"]) };
    let files = root.files.clone().with_visibility(visibility);
    let change = |path: &str| json!({ "path": path, "content": "" });
    let (_stop, run) = root.run(json!([change("readme.md"), change("app.conf"), change("key.pem")]));
    let (stored, restricted) = previews(&files, &run).await;
    let shows = |preview: &Value| {
        let shows = |change: &Value| change["diff"].as_str().is_some_and(|diff| diff.contains("hunter2"));
        preview["changes"].as_array().expect("a list").iter().map(shows).collect::<Vec<_>>()
    };
    assert_eq!((shows(&stored), shows(&restricted)), (vec![true, true, false], vec![true, false, false]));
}

/// The fingerprint still detects that a hidden file has changed, and depends on the key.
#[tokio::test]
async fn fingerprint_covers_hidden_content() {
    let root = TestRoot::new();
    root.write("private", SECRET, 0o600);
    let keyed =
        |key: &'static str| FilesExecutor { keyed_hash: KeyedHash::for_tests(key), ..root.files.clone() };
    let files = keyed("key");
    let (_stop, run) = root.run(json!([{ "path": "private", "content": "new" }]));
    let approved = files.preview(&run.parameters).await.expect("previewed").fingerprint;
    let other_key = keyed("other").preview(&run.parameters).await.expect("previewed").fingerprint;
    assert_ne!(other_key, approved);
    let run = Run { approved_fingerprint: approved.map(|fingerprint| fingerprint.to_string()), ..run };
    keyed("key").prepare_rollback(&run).await.expect("another process with the same key");
    root.write("private", "password = hunter3\n", 0o600);
    assert_ne!(files.preview(&run.parameters).await.expect("previewed").fingerprint, approved);
    let failure = files.prepare_rollback(&run).await.expect_err("it has changed");
    assert!(failure.message.contains("have changed since the approval"), "{failure}");
}

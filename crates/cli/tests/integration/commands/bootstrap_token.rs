//! Commands send the bootstrap token only to the address that the server wrote into its data folder, and only from a folder of
//! their own or one that is named.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output};

use ade_testkit::server::ServerBuilder;
use rustix::process::geteuid;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const TOKEN: &str = "ade_token-of-the-administrator";

fn whoami(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(ADE);
    command.arg("whoami").args(arguments).env_clear().env("NO_COLOR", "1").current_dir(folder);
    command.env("HOME", folder).output().expect("runs")
}

/// Whether the command authenticated as the administrator, and its errors.
fn is_admin(output: &Output) -> (bool, String) {
    let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success() && shown.contains("the admin token of the server"), errors.into_owned())
}

#[test]
fn token_goes_to_the_server_of_the_data_folder_only() {
    // The test kit passes a token in a variable, which takes precedence over the file; so the file has the same one.
    let ade = ServerBuilder::new(ADE).env("ADE_ADMIN_TOKEN", TOKEN).start().expect("starts");
    fs::write(ade.data().join("admin-token"), TOKEN).expect("written");
    let data = ade.data().to_string_lossy().into_owned();
    let home = tempfile::tempdir().expect("a folder");
    let (found, errors) = is_admin(&whoami(home.path(), &["--data", &data]));
    assert!(found, "{errors}");
    let config = |port: u16| format!("[server]\nlisten = \"127.0.0.1:{port}\"\ndata = {data:?}\n");
    // A file in the current folder that names another port does not redirect the token.
    let thief = TcpListener::bind("127.0.0.1:0").expect("a port");
    thief.set_nonblocking(true).expect("set");
    let port = thief.local_addr().expect("bound").port();
    fs::write(home.path().join("ade.toml"), config(port)).expect("written");
    let (found, errors) = is_admin(&whoami(home.path(), &[]));
    assert!(found, "the address in the data folder counts: {errors}");
    for arguments in [
        &["--server", &format!("http://127.0.0.1:{port}")][..],
        &["--server", &format!("http://localhost:{port}"), "--data", &data],
    ] {
        let (found, errors) = is_admin(&whoami(home.path(), arguments));
        assert!(!found && errors.contains("no token for"), "{errors}");
    }
    let nobody_came = thief.accept().expect_err("no connection");
    assert_eq!(nobody_came.kind(), ErrorKind::WouldBlock, "the token was sent to another address");
    // A folder of another user counts only if it is named. Without root there is none to try.
    if geteuid().is_root() {
        chown(ade.data(), Some(12_345), None).expect("changed");
        let (found, errors) = is_admin(&whoami(home.path(), &[]));
        assert!(!found && errors.contains("belongs to another user"), "{errors}");
        assert!(is_admin(&whoami(home.path(), &["--data", &data])).0);
        chown(ade.data(), Some(0), None).expect("changed");
    }
    // A server that has stopped has no address any more.
    ade.stop().expect("stops");
    let (found, errors) = is_admin(&whoami(home.path(), &["--data", &data]));
    assert!(!found && errors.contains("no server is running on"), "{errors}");
}

#[test]
fn token_of_a_killed_server_is_not_sent_to_its_successor_on_the_port() {
    let ade = ServerBuilder::new(ADE).env("ADE_ADMIN_TOKEN", TOKEN).start().expect("starts");
    fs::write(ade.data().join("admin-token"), TOKEN).expect("written");
    let (data, url) = (ade.data().to_string_lossy().into_owned(), ade.url());
    ade.kill().expect("killed");
    assert!(ade.data().join("address").exists(), "nobody removed it");
    let thief = TcpListener::bind(url.trim_start_matches("http://")).expect("the port is free");
    thief.set_nonblocking(true).expect("set");
    let home = tempfile::tempdir().expect("a folder");
    fs::write(home.path().join("ade.toml"), format!("[server]\ndata = {data:?}\n")).expect("written");
    for arguments in [&["--data", &data][..], &["--data", &data, "--server", &url], &["--server", &url], &[]]
    {
        let (found, errors) = is_admin(&whoami(home.path(), arguments));
        assert!(!found && errors.contains("no server is running on"), "{arguments:?}: {errors}");
    }
    let nobody_came = thief.accept().expect_err("no connection");
    assert_eq!(nobody_came.kind(), ErrorKind::WouldBlock, "the token was sent to another server");
}

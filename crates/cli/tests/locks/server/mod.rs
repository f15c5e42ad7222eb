//! A real `ade serve` for tests of the binary, and `ade` as others run it: as processes, with what they print.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use ade_client::Client;
use rustix::process::{Pid, Signal, kill_process};

const TOKEN: &str = "a-token-for-tests-of-the-binary";
/// Far beyond what anything here takes, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A process with what it prints, which does not outlive its test.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) out: Lines,
    pub(crate) err: Lines,
}

/// Lines of a stream, as they come.
#[derive(Debug)]
pub(crate) struct Lines {
    coming: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let (send, coming) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { coming, seen: Vec::new() }
    }

    /// Waits for a line that contains `text`.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.coming.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no line with {text:?} came: {:#?}", self.seen));
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Everything until the stream ends.
    pub(crate) fn all(mut self) -> String {
        self.seen.extend(&self.coming);
        self.seen.join("\n")
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("runs");
        let out = Lines::of(child.stdout.take().expect("piped"));
        let err = Lines::of(child.stderr.take().expect("piped"));
        Self { child, out, err }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it has not been waited for");
    }

    /// How it ends, within reason.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let pid = self.pid().as_raw_nonzero().get();
        let ended = ade_testkit::wait_for_exit(pid, Some(PATIENCE)).expect("observed");
        assert!(ended, "it does not end; {:?} {:?}", self.out.seen, self.err.seen);
        self.child.wait().expect("waited for")
    }

    /// Its exit code and its standard error, once it has ended.
    pub(crate) fn code_and_error(mut self) -> (i32, String) {
        let status = self.end();
        let err = std::mem::replace(&mut self.err, Lines::of(std::io::empty()));
        (status.code().unwrap_or(-1), err.all())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server on a folder.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Running,
    pub(crate) url: String,
}

/// `ade serve` on a folder, started by a shell so that a full disk answers instead of killing it.
pub(crate) fn serve(data: &Path) -> Running {
    let mut command = Command::new("sh");
    let script = "trap '' XFSZ; exec \"$0\" serve --listen 127.0.0.1:0 --data \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_ade")]).arg(data);
    Running::start(command.env("ADE_ADMIN_TOKEN", TOKEN).env("NO_COLOR", "1").current_dir("/"))
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        let process = serve(data);
        let Ok(line) = process.out.coming.recv_timeout(PATIENCE) else {
            panic!("it does not start: {}", process.code_and_error().1)
        };
        let url = line.strip_prefix("listening on ").expect("says where").to_owned();
        Self { process, url }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url, TOKEN).expect("usable")
    }

    /// The end without a warning.
    pub(crate) fn kill(mut self) {
        self.process.send(Signal::KILL);
        self.process.end();
    }

    /// `ade` with this server.
    pub(crate) fn ade(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
        command.args(arguments).env("ADE_SERVER", &self.url).env("ADE_TOKEN", TOKEN).env("NO_COLOR", "1");
        command.env_remove("ADE_AGENT").env("USER", "tester").stdin(Stdio::null()).current_dir("/");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.ade(arguments))
    }
}

/// A test that fails tells what its server said, and whether it was still there.
impl Drop for Server {
    #[expect(clippy::print_stderr, reason = "this is what a failed test has to say")]
    fn drop(&mut self) {
        if thread::panicking() {
            let ended = self.process.child.try_wait();
            let said = std::mem::replace(&mut self.process.err, Lines::of(std::io::empty()));
            // The rest of what it says comes with its end.
            let _ = self.process.child.kill();
            eprintln!("the server of this test: {ended:?} {}", said.all());
        }
    }
}

/// The folder of a server, inside of a folder that goes away.
pub(crate) fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    (folder, data)
}

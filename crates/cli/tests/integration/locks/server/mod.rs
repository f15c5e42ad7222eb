//! Fixture: `ade serve` and other `ade` commands as child processes with captured output.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use ade_client::Client;
use rustix::process::{Pid, Signal, kill_process};

const TOKEN: &str = "a-token-for-tests-of-the-binary";
/// Generous: only a hang reaches it, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A child process with captured output. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) out: Lines,
    pub(crate) err: Lines,
}

/// Lines of an output stream, read by a background thread.
#[derive(Debug)]
pub(crate) struct Lines {
    receiver: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    fn read(stream: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { receiver, seen: Vec::new() }
    }

    /// Returns the next line that contains `text`.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.receiver.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("no line contains {text:?}: {:#?}", self.seen));
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn read_to_end(mut self) -> String {
        self.seen.extend(&self.receiver);
        self.seen.join("\n")
    }
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("runs");
        let out = Lines::read(child.stdout.take().expect("piped"));
        let err = Lines::read(child.stderr.take().expect("piped"));
        Self { child, out, err }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process was not reaped yet");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let pid = self.pid().as_raw_nonzero().get();
        let exited = ade_testkit::wait_for_exit(pid, Some(TIMEOUT)).expect("observed");
        assert!(exited, "the process does not exit; {:?} {:?}", self.out.seen, self.err.seen);
        self.child.wait().expect("reaped")
    }

    /// Waits for the exit and returns the exit code (-1: killed by a signal) and standard error.
    pub(crate) fn code_and_error(mut self) -> (i32, String) {
        let status = self.wait();
        let err = std::mem::replace(&mut self.err, Lines::read(std::io::empty()));
        (status.code().unwrap_or(-1), err.read_to_end())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) url: String,
}

/// Starts `ade serve` on a data folder. The shell ignores SIGXFSZ, so that the file size limit gives an I/O error
/// instead of killing the server.
pub(crate) fn serve(data: &Path) -> Process {
    let mut command = Command::new("sh");
    let script = "trap '' XFSZ; exec \"$0\" serve --listen 127.0.0.1:0 --data \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_ade")]).arg(data);
    Process::start(command.env("ADE_ADMIN_TOKEN", TOKEN).env("NO_COLOR", "1").current_dir("/"))
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        let process = serve(data);
        let Ok(line) = process.out.receiver.recv_timeout(TIMEOUT) else {
            panic!("the server does not start: {}", process.code_and_error().1)
        };
        let url = line.strip_prefix("listening on ").expect("prints its address").to_owned();
        Self { process, url }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url, TOKEN).expect("a valid URL")
    }

    pub(crate) fn kill(mut self) {
        self.process.send(Signal::KILL);
        self.process.wait();
    }

    /// An `ade` command that uses this server.
    pub(crate) fn ade(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
        command.args(arguments).env("ADE_SERVER", &self.url).env("ADE_TOKEN", TOKEN).env("NO_COLOR", "1");
        command.env_remove("ADE_AGENT").stdin(Stdio::null()).current_dir("/");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Process {
        Process::start(&mut self.ade(arguments))
    }
}

/// A failed test prints the log and the exit status of its server.
impl Drop for Server {
    #[expect(clippy::print_stderr, reason = "diagnostics of a failed test")]
    fn drop(&mut self) {
        if thread::panicking() {
            let status = self.process.child.try_wait();
            let log = std::mem::replace(&mut self.process.err, Lines::read(std::io::empty()));
            // The log is complete only after the exit.
            let _ = self.process.child.kill();
            eprintln!("server status {status:?}, log:\n{}", log.read_to_end());
        }
    }
}

/// A path for the data of a server, inside a temporary folder.
pub(crate) fn data_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    (folder, data)
}

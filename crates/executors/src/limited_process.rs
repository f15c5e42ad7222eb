//! Processes with limits of the operating system on memory, CPU time and files, for what nobody has approved yet: the previews of
//! commands, and of statements on SQLite.
//!
//! Such a process is this program again, as a hidden subcommand. It limits itself before it does anything else, then either
//! replaces itself by a command, or previews statements. The limits are inherited by everything that it starts.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sql::serve_sqlite_preview;

/// The name of the hidden subcommand.
pub const SUBCOMMAND: &str = "limited";
/// The running executable, even if its file was replaced meanwhile.
const CURRENT_EXE: &str = "/proc/self/exe";
const EXEC_MODE: &str = "exec";
const SQLITE_MODE: &str = "sqlite";
pub(crate) const MIB: u64 = 1_048_576;

/// Limits of one process and of each process that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Bytes of address space, which also contains the program itself.
    pub memory_bytes: u64,
    pub cpu_seconds: u64,
    /// Bytes of each file that is written.
    pub file_bytes: u64,
    pub open_files: u64,
}

impl ProcessLimits {
    const COUNT: usize = 4;

    fn to_arguments(self) -> [String; Self::COUNT] {
        let Self { memory_bytes, cpu_seconds, file_bytes, open_files } = self;
        [memory_bytes, cpu_seconds, file_bytes, open_files].map(|limit| limit.to_string())
    }

    fn parse(arguments: &[OsString]) -> Option<Self> {
        let mut numbers =
            arguments.iter().map(|argument| argument.to_str().and_then(|text| text.parse().ok()));
        let mut next = || numbers.next().flatten();
        Some(Self { memory_bytes: next()?, cpu_seconds: next()?, file_bytes: next()?, open_files: next()? })
    }

    /// Limits the current process, which cannot lift the limits any more. Lower limits that it already has stay.
    fn apply(self) -> io::Result<()> {
        // A process at its soft limit of CPU time gets a signal that it may handle, and is killed at the hard one.
        let cpu_seconds = (self.cpu_seconds, self.cpu_seconds.saturating_add(1));
        let limits = [
            (Resource::Core, (0, 0)),
            (Resource::As, (self.memory_bytes, self.memory_bytes)),
            (Resource::Cpu, cpu_seconds),
            (Resource::Fsize, (self.file_bytes, self.file_bytes)),
            (Resource::Nofile, (self.open_files, self.open_files)),
        ];
        for (resource, (soft, hard)) in limits {
            let present = getrlimit(resource);
            let hard = present.maximum.map_or(hard, |present| present.min(hard));
            setrlimit(resource, Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) })?;
        }
        Ok(())
    }
}

/// The program that contains [`run`].
#[derive(Debug, Clone)]
pub struct LimitedProgram {
    path: PathBuf,
    subcommand: Option<&'static str>,
}

impl LimitedProgram {
    /// The current program, which must call [`run`] for its subcommand [`SUBCOMMAND`].
    #[must_use]
    pub fn current_exe() -> Self {
        Self { path: CURRENT_EXE.into(), subcommand: Some(SUBCOMMAND) }
    }

    /// Another program, which must do nothing but call [`run`].
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), subcommand: None }
    }

    /// The arguments that run a command with limits.
    pub(crate) fn limit_command(&self, limits: ProcessLimits, argv: &[String]) -> Vec<String> {
        let words = [self.path.to_string_lossy().into_owned()].into_iter();
        let words = words.chain(self.subcommand.map(str::to_owned)).chain(limits.to_arguments());
        words.chain([EXEC_MODE.to_owned()]).chain(argv.iter().cloned()).collect()
    }

    /// The process that previews statements on SQLite.
    pub(crate) fn sqlite_command(&self, limits: ProcessLimits) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.path);
        command.args(self.subcommand).args(limits.to_arguments()).arg(SQLITE_MODE).arg0("ade");
        command
    }
}

/// Runs the subcommand with its arguments. Returns only with an error, or once a preview has been written to stdout.
pub fn run(arguments: &[OsString]) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let (limits, rest) = arguments.split_at_checked(ProcessLimits::COUNT).ok_or_else(invalid)?;
    let limits = ProcessLimits::parse(limits).ok_or_else(invalid)?;
    let (mode, rest) = rest.split_first().ok_or_else(invalid)?;
    match (mode.to_str(), rest.split_first()) {
        (Some(EXEC_MODE), Some((program, arguments))) => {
            limits.apply()?;
            let error = Command::new(program).args(arguments).exec();
            Err(io::Error::new(error.kind(), format!("{}: {error}", program.to_string_lossy())))
        }
        (Some(SQLITE_MODE), None) => {
            limits.apply()?;
            serve_sqlite_preview()
        }
        _ => Err(invalid()),
    }
}

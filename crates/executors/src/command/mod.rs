//! Commands that an operator has allowed as templates: previewed, applied and rolled back by processes without a shell.
//!
//! Commands are not fenced, because their effects are unknown to us. A command gets the fencing tokens of its locks in its
//! environment, and nothing else of ours. When a run ends, or its worker dies, no process of its group is left.

mod preview_output;
mod process;
mod template;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use ade_domain::task::Preview;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::limited_process::{LimitedProgram, MIB, ProcessLimits};
use crate::parameters::Violations;
use crate::watchdog::WatchdogProgram;
use crate::{Executor, Failure, Parameters, Result, Run, SideEffects, StopReason, Validated};
use preview_output::PreviewOutput;
use process::{Environment, ProcessSpec, RunError, Stream};
use template::{Arguments, Argv, parse_arguments};
pub use template::{CommandTemplate, InvalidTemplate};
pub(crate) use template::{fill_text, placeholder_names};

/// Bytes of stderr that are quoted when a command fails.
const MAX_QUOTED_BYTES: usize = 2_048;
const MAX_QUOTED_LINES: usize = 10;
/// How long after the preview timeout and the grace the watchdog waits before it kills a preview.
const PREVIEW_WATCHDOG_SLACK: Duration = Duration::from_secs(2);
const LEFTOVERS_KILLED: &[u8] =
    b"(processes that the command left behind were killed; one that must keep running needs its own session)\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLimits {
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The timeout of a preview.
    pub preview_timeout: Duration,
    /// The limits of a preview, which nobody has approved yet.
    pub preview_limits: ProcessLimits,
}

impl Default for CommandLimits {
    fn default() -> Self {
        let preview_limits = ProcessLimits {
            memory_bytes: 2_048 * MIB,
            cpu_seconds: 15,
            file_bytes: 64 * MIB,
            open_files: 256,
        };
        Self { grace: Duration::from_secs(5), preview_timeout: Duration::from_secs(15), preview_limits }
    }
}

/// Runs the commands of one template.
#[derive(Debug, Clone)]
pub struct CommandExecutor {
    name: String,
    apply: Argv,
    preview: Option<Argv>,
    roll_back: Option<Argv>,
    limits: CommandLimits,
    watchdog: WatchdogProgram,
    limited_program: LimitedProgram,
}

#[derive(Debug, Serialize, Deserialize)]
struct RollbackData {
    version: u32,
    template: String,
    arguments: Arguments,
}

impl CommandExecutor {
    /// `watchdog` kills the commands if this process cannot.
    pub fn new(
        name: impl Into<String>,
        template: &CommandTemplate,
        limits: CommandLimits,
        watchdog: WatchdogProgram,
    ) -> Result<Self, InvalidTemplate> {
        let name = name.into();
        let parse = |field, argv: &[String]| {
            Argv::parse(argv).map_err(|reason| InvalidTemplate { template: name.clone(), field, reason })
        };
        let parse_optional =
            |field, argv: &Option<Vec<String>>| argv.as_deref().map(|argv| parse(field, argv)).transpose();
        let apply = parse("argv", &template.argv)?;
        let preview = parse_optional("preview_argv", &template.preview_argv)?;
        let roll_back = parse_optional("rollback_argv", &template.rollback_argv)?;
        let limited_program = LimitedProgram::current_exe();
        Ok(Self { name, apply, preview, roll_back, limits, watchdog, limited_program })
    }

    /// Sets the program that limits previews; by default the current one.
    #[must_use]
    pub fn with_limited_program(self, limited_program: LimitedProgram) -> Self {
        Self { limited_program, ..self }
    }

    #[must_use]
    pub fn work_queue(&self) -> String {
        format!("command:{}", self.name)
    }

    /// The apply command of the template, to verify the changes of another executor with [`Self::run_command`]. The paths of
    /// violations are relative to the object with the arguments.
    pub(crate) fn verification(&self, arguments: Option<&Value>) -> Validated<Vec<String>> {
        let mut violations = Violations::default();
        let arguments = parse_arguments(&[&self.apply], arguments, &mut violations);
        violations.finish(self.apply.fill(&arguments).unwrap_or_default())
    }

    fn arguments(&self, parameters: &Parameters) -> Validated<Arguments> {
        let mut violations = Violations::of_fields(parameters, &["template", "arguments", "worker"]);
        if parameters.get("template").and_then(Value::as_str) != Some(&self.name) {
            violations.report("template", format!("must be {:?}", self.name));
        }
        let commands = [Some(&self.apply), self.preview.as_ref(), self.roll_back.as_ref()];
        let commands: Vec<&Argv> = commands.into_iter().flatten().collect();
        let arguments = parse_arguments(&commands, parameters.get("arguments"), &mut violations);
        violations.finish(arguments)
    }

    fn filled_argv(&self, argv: &Argv, parameters: &Parameters) -> Result<Vec<String>> {
        fill(argv, &self.arguments(parameters)?)
    }

    fn process_spec<'a>(
        &'a self,
        argv: &'a [String],
        environment: Environment,
        valid_until: Option<watch::Receiver<Instant>>,
    ) -> ProcessSpec<'a> {
        ProcessSpec { argv, environment, grace: self.limits.grace, watchdog: &self.watchdog, valid_until }
    }

    /// Runs a command that may change something.
    pub(crate) async fn run_command(&self, argv: &[String], run: &Run) -> Result<()> {
        run.stop.check(SideEffects::None)?;
        let mut stderr = OutputTail::default();
        let spec = self.process_spec(argv, environment(run), run.stop.lease_valid_until());
        let exit = process::run(spec, run.stop.wait(), run.stop.wait_lease_lost(), |stream, bytes| {
            run.output.write(bytes);
            if stream == Stream::Stderr {
                stderr.push(bytes);
            }
        });
        let exit = exit.await.map_err(|error| run_failure(argv, &error))?;
        // If this process was suspended for too long, the watchdog has killed the command first. Any failure after the deadline is
        // attributed to that.
        let killed_by_watchdog = exit.deadline_passed && !exit.status.is_some_and(|status| status.success());
        let stop_reason = exit.stop_reason.or_else(|| killed_by_watchdog.then_some(StopReason::LeaseLost));
        if let Some(reason) = stop_reason.filter(|_| !exit.has_started) {
            return Err(Failure::stopped(reason, SideEffects::None));
        }
        if exit.left_processes {
            run.output.write(LEFTOVERS_KILLED);
        }
        // A killed command may have changed anything. If the template has a rollback command, that one handles it.
        let effects_if_killed =
            if self.roll_back.is_some() { SideEffects::Remaining } else { SideEffects::Unknown };
        if let Some(reason) = stop_reason {
            let message = format!("{reason}; the command was terminated");
            return Err(Failure { message, ..Failure::stopped(reason, effects_if_killed) });
        }
        let (side_effects, message) = match exit.status {
            Some(status) if status.success() => return Ok(()),
            Some(_) if exit.watchdog_died => {
                let message = "the watchdog of the command was killed, so the command was killed too";
                (effects_if_killed, message.to_owned())
            }
            Some(status) => {
                let has_exited = status.code().is_some();
                let side_effects = if has_exited { SideEffects::Remaining } else { effects_if_killed };
                (side_effects, stderr.append_to(&format!("the command failed ({status})")))
            }
            None => (SideEffects::Unknown, "the command did not exit after SIGKILL".to_owned()),
        };
        Err(Failure::with_side_effects(side_effects, message))
    }

    async fn run_preview(&self, argv: &[String]) -> Result<Preview> {
        let (mut stdout, mut stderr) = (PreviewOutput::default(), OutputTail::default());
        let CommandLimits { grace, preview_timeout: timeout, preview_limits } = self.limits;
        let limited_argv = self.limited_program.limit_command(preview_limits, argv);
        // The watchdog kills the preview if this process is suspended.
        let (_, valid_until) = watch::channel(Instant::now() + timeout + grace * 2 + PREVIEW_WATCHDOG_SLACK);
        let spec = self.process_spec(&limited_argv, Vec::new(), Some(valid_until));
        let timed_out = async {
            tokio::time::sleep(timeout).await;
            StopReason::TimedOut
        };
        let exit = process::run(spec, timed_out, std::future::pending(), |stream, bytes| match stream {
            Stream::Stdout => stdout.push(bytes),
            Stream::Stderr => stderr.push(bytes),
        });
        let exit = exit.await.map_err(|error| run_failure(argv, &error))?;
        let message = match exit.status {
            _ if exit.stop_reason.is_some() => {
                format!("the preview exceeded its timeout of {} s", timeout.as_secs_f32())
            }
            Some(status) if status.success() => {
                return stdout.into_preview(&self.work_queue()).map_err(Failure::permanent);
            }
            Some(status) if status.code().is_none() => {
                let ProcessLimits { memory_bytes, cpu_seconds, .. } = preview_limits;
                let memory = memory_bytes / MIB;
                format!(
                    "the preview command was killed ({status}); it may use {memory} MiB of memory and {cpu_seconds} s of CPU time"
                )
            }
            Some(status) => format!("the preview command failed ({status})"),
            None => "the preview command did not exit after SIGKILL".to_owned(),
        };
        Err(Failure::retryable(stderr.append_to(&message)))
    }
}

#[async_trait]
impl Executor for CommandExecutor {
    fn validate(&self, parameters: &Parameters) -> Validated<()> {
        self.arguments(parameters).map(drop)
    }

    async fn preview(&self, parameters: &Parameters) -> Result<Preview> {
        let Some(preview) = &self.preview else { return Ok(Preview::none()) };
        self.run_preview(&self.filled_argv(preview, parameters)?).await
    }

    async fn prepare_rollback(&self, run: &Run) -> Result<Vec<u8>> {
        let arguments = self.arguments(&run.parameters)?;
        if self.roll_back.is_none() {
            return Ok(Vec::new());
        }
        let data = RollbackData { version: 1, template: self.name.clone(), arguments };
        serde_json::to_vec(&data).map_err(|error| Failure::permanent(error.to_string()))
    }

    async fn apply(&self, run: &Run, _: &[u8]) -> Result<()> {
        self.run_command(&self.filled_argv(&self.apply, &run.parameters)?, run).await
    }

    async fn roll_back(&self, run: &Run, rollback_data: &[u8]) -> Result<()> {
        let refused = |message: String| Failure::with_side_effects(SideEffects::Remaining, message);
        let Some(roll_back) = &self.roll_back else {
            let message = "cannot roll back: the template has no rollback_argv; undo the change by hand";
            return Err(refused(message.to_owned()));
        };
        let data: RollbackData = serde_json::from_slice(rollback_data)
            .map_err(|error| refused(format!("cannot read the rollback data: {error}")))?;
        if data.version != 1 || data.template != self.name {
            return Err(refused("the rollback data belongs to another template".to_owned()));
        }
        let argv = fill(roll_back, &data.arguments).map_err(Failure::not_rolled_back)?;
        self.run_command(&argv, run).await.map_err(Failure::not_rolled_back)
    }

    fn can_roll_back(&self, _: &Parameters) -> bool {
        self.roll_back.is_some()
    }
}

fn fill(argv: &Argv, arguments: &Arguments) -> Result<Vec<String>> {
    argv.fill(arguments)
        .map_err(|name| Failure::permanent(format!("the argument {name:?} would be read as an option")))
}

fn run_failure(argv: &[String], error: &RunError) -> Failure {
    let program = argv.first().map(String::as_str).unwrap_or_default();
    let message = format!("cannot run {program:?}: {error}");
    match error {
        RunError::Spawn(_) | RunError::Watchdog(_) => Failure::retryable(message),
        RunError::Lost(_) => Failure::with_side_effects(SideEffects::Unknown, message),
    }
}

/// The variables that are added to the environment of a command.
fn environment(run: &Run) -> Environment {
    let tokens: Vec<_> =
        run.fencing_tokens.iter().map(|(lock, token)| json!({ "lock": lock, "token": token })).collect();
    let mut environment = vec![
        ("ADE_TASK_ID", run.task_id.clone()),
        ("ADE_ATTEMPT", run.attempt.to_string()),
        ("ADE_FENCING_TOKENS", Value::from(tokens).to_string()),
    ];
    if let Some(largest) = run.fencing_tokens.iter().map(|(_, token)| token).max() {
        environment.push(("ADE_FENCING_TOKEN", largest.to_string()));
    }
    environment
}

/// The last complete lines of a stream. Incomplete lines are left out, because a part of a secret would not be redacted.
#[derive(Debug, Default)]
struct OutputTail {
    bytes: VecDeque<u8>,
    is_truncated: bool,
}

impl OutputTail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(MAX_QUOTED_BYTES);
        self.bytes.drain(..excess);
        self.is_truncated |= excess > 0;
    }

    fn append_to(&self, message: &str) -> String {
        let complete = self.bytes.iter().copied().skip_while(|byte| self.is_truncated && *byte != b'\n');
        let complete = complete.collect::<Vec<u8>>();
        let text = String::from_utf8_lossy(&complete);
        let lines: Vec<&str> = text.trim().lines().collect();
        let tail = lines.get(lines.len().saturating_sub(MAX_QUOTED_LINES)..).unwrap_or_default().join("\n");
        if tail.is_empty() { message.to_owned() } else { format!("{message}: {tail}") }
    }
}

//! Commands that an operator has allowed as templates: previewed, applied and rolled back by processes without a shell.
//!
//! There is no fence: what a command does is known to nobody but the command. It gets the fencing tokens of its locks in its
//! environment, and nothing of ours besides. When a run ends, or its worker is gone, nothing of its process group is left.

mod process;
mod said;
mod template;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod watched;

use std::collections::VecDeque;
use std::time::Duration;

use ade_domain::Invalid;
use ade_domain::task::Preview;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::watchdog::Program;
use crate::{Changed, Executor, Failure, Fence, Halt, Parameters, Run, Settled, Work, unfit};
use process::{Ended, RunError, Start, Stream};
use said::Listener;
use template::{Arguments, Words, arguments};
pub use template::{BadTemplate, Template};

/// Bytes of the end of what a command says to be quoted when it fails.
const QUOTED: usize = 2_048;
/// What a watchdog leaves a preview beyond its limit and the grace.
const OVERTIME: Duration = Duration::from_secs(2);
/// Lines of them.
const QUOTED_LINES: usize = 10;
/// What whoever wonders about a process that is gone finds in the output.
const LEFT_SOME: &[u8] =
    b"(processes that the command left behind were ended; one that is to stay needs a session of its own)\n";

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLimits {
    /// Between the request to end (SIGTERM) and the end (SIGKILL).
    pub grace: Duration,
    /// A preview.
    pub preview: Duration,
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), preview: Duration::from_secs(15) }
    }
}

/// Runs the commands of one template.
#[derive(Debug, Clone)]
pub struct Command {
    name: String,
    apply: Words,
    preview: Option<Words>,
    roll_back: Option<Words>,
    limits: CommandLimits,
    watchdog: Program,
}

/// What is kept before a command is run.
#[derive(Debug, Serialize, Deserialize)]
struct Stash {
    version: u32,
    template: String,
    arguments: Arguments,
}

impl Command {
    /// A template under its name, and the program that ends its commands if we cannot.
    pub fn new(
        name: impl Into<String>,
        template: &Template,
        limits: CommandLimits,
        watchdog: Program,
    ) -> Result<Self, BadTemplate> {
        let name = name.into();
        let words = |field, argv: &[String]| {
            Words::parse(argv).map_err(|why| BadTemplate { template: name.clone(), field, why })
        };
        let maybe =
            |field, argv: &Option<Vec<String>>| argv.as_deref().map(|argv| words(field, argv)).transpose();
        let apply = words("argv", &template.argv)?;
        let preview = maybe("preview_argv", &template.preview_argv)?;
        let roll_back = maybe("rollback_argv", &template.rollback_argv)?;
        Ok(Self { name, apply, preview, roll_back, limits, watchdog })
    }

    /// Where its tasks are carried out.
    #[must_use]
    pub fn place(&self) -> String {
        format!("command:{}", self.name)
    }

    /// Everything about arguments that cannot be, if only what carries it out is run, to verify something else. Pointers begin
    /// at the arguments' object.
    pub fn check_to_verify(&self, arguments: Option<&Value>) -> Result<(), Vec<Invalid>> {
        self.to_verify(arguments).map(drop)
    }

    /// Runs what carries it out, to verify what another executor has changed.
    pub async fn verify(&self, arguments: Option<&Value>, run: &Run) -> Result<(), Failure> {
        let arguments = self.to_verify(arguments).map_err(|faults| unfit(&faults))?;
        self.change(&fill(&self.apply, &arguments)?, run).await
    }

    fn to_verify(&self, arguments: Option<&Value>) -> Result<Arguments, Vec<Invalid>> {
        let mut parameters = Map::from_iter([("template".to_owned(), Value::from(self.name.as_str()))]);
        parameters.extend(arguments.map(|arguments| ("arguments".to_owned(), arguments.clone())));
        template::arguments(&self.name, &[&self.apply], &parameters)
    }

    fn arguments(&self, parameters: &Parameters) -> Result<Arguments, Vec<Invalid>> {
        let commands: Vec<&Words> = [Some(&self.apply), self.preview.as_ref(), self.roll_back.as_ref()]
            .into_iter()
            .flatten()
            .collect();
        arguments(&self.name, &commands, parameters)
    }

    fn filled(&self, words: &Words, parameters: &Parameters) -> Result<Vec<String>, Failure> {
        fill(words, &self.arguments(parameters).map_err(|faults| unfit(&faults))?)
    }

    /// Runs a command that may change something.
    async fn change(&self, argv: &[String], run: &Run) -> Result<(), Failure> {
        if let Some(halt) = run.halted.now() {
            return Err(crate::halt_failure(halt));
        }
        let mut end = End::default();
        let start = Start {
            argv,
            environment: environment(run),
            grace: self.limits.grace,
            watchdog: &self.watchdog,
            good_until: run.halted.good_until(),
        };
        let lost = async {
            run.halted.lost().await;
            Halt::Lost
        };
        let ended = process::run(start, run.halted.wait(), lost, |stream, bytes| {
            run.output.say(bytes);
            if stream == Stream::Err {
                end.hear(bytes);
            }
        });
        let Ended { status, halted, begun, left_some, out_of_time, unwatched } =
            ended.await.map_err(|error| not_run(argv, &error))?;
        // If we stood still for too long, the watchdog has ended it before we could. Whatever else fails then is taken for that.
        let by_watchdog = out_of_time && !status.is_some_and(|status| status.success());
        let halted = halted.or_else(|| by_watchdog.then_some(Halt::Lost));
        if let Some(halt) = halted.filter(|_| !begun) {
            return Err(crate::halt_failure(halt));
        }
        if left_some {
            run.output.say(LEFT_SOME);
        }
        // What was ended in the middle may have done anything. Where there is a way back, that is what it is for.
        let cut_short = if self.roll_back.is_some() { Changed::Something } else { Changed::Unknown };
        if let Some(halt) = halted {
            let message = format!("{}; the command was ended", halt.message(None));
            return Err(Failure { halted: Some(halt), ..Failure::after(cut_short, message) });
        }
        match status {
            Some(status) if status.success() => Ok(()),
            Some(_) if unwatched => {
                let message = "somebody ended the watchdog of the command, and so it was ended too";
                Err(Failure::after(cut_short, message))
            }
            Some(status) => {
                let changed = if status.code().is_some() { Changed::Something } else { cut_short };
                Err(Failure::after(changed, end.quoted(&format!("the command failed ({status})"))))
            }
            None => Err(Failure::after(Changed::Unknown, "the command did not end")),
        }
    }

    async fn look(&self, argv: &[String]) -> Result<Preview, Failure> {
        let (mut heard, mut end) = (Listener::default(), End::default());
        let CommandLimits { grace, preview } = self.limits;
        // If we stand still, it is not looked at for ever.
        let (_, good_until) = watch::channel(Instant::now() + preview + grace * 2 + OVERTIME);
        let start = Start {
            argv,
            environment: Vec::new(),
            grace,
            watchdog: &self.watchdog,
            good_until: Some(good_until),
        };
        let late = tokio::time::sleep(preview);
        let ended = process::run(start, late, std::future::pending(), |stream, bytes| match stream {
            Stream::Out => heard.hear(bytes),
            Stream::Err => end.hear(bytes),
        });
        let Ended { status, halted, .. } = ended.await.map_err(|error| not_run(argv, &error))?;
        if halted.is_some() {
            let seconds = self.limits.preview.as_secs_f32();
            return Err(Failure::not_now(end.quoted(&format!("the preview took longer than {seconds} s"))));
        }
        match status {
            Some(status) if status.success() => heard.preview(&self.place()).map_err(Failure::refused),
            Some(status) => Err(Failure::not_now(end.quoted(&format!("the preview failed ({status})")))),
            None => Err(Failure::not_now("the preview did not end")),
        }
    }
}

impl Executor for Command {
    fn check(&self, parameters: &Parameters) -> Result<(), Vec<Invalid>> {
        self.arguments(parameters).map(drop)
    }

    fn preview<'a>(&'a self, parameters: &'a Parameters) -> Work<'a, Result<Preview, Failure>> {
        Box::pin(async {
            let Some(preview) = &self.preview else { return Ok(Preview::none()) };
            self.look(&self.filled(preview, parameters)?).await
        })
    }

    fn stash<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async {
            // Also without anything to put back: what there is tells that there is a way.
            self.filled(&self.apply, &run.parameters)?;
            if self.roll_back.is_none() {
                return Ok(Vec::new());
            }
            let arguments = self.arguments(&run.parameters).unwrap_or_default();
            let stash = Stash { version: 1, template: self.name.clone(), arguments };
            serde_json::to_vec(&stash).map_err(|error| Failure::refused(error.to_string()))
        })
    }

    fn apply<'a>(&'a self, run: &'a Run, _: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(async { self.change(&self.filled(&self.apply, &run.parameters)?, run).await })
    }

    fn roll_back<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(async {
            let stays = |failure| Failure { changed: Changed::Something, ..failure };
            let Some(roll_back) = &self.roll_back else {
                return Err(stays(Failure::refused(
                    "the template has no rollback_argv; change it back by hand",
                )));
            };
            let kept: Stash = serde_json::from_slice(stash).map_err(|error| {
                stays(Failure::refused(format!(
                    "what was kept before the command was run cannot be read: {error}"
                )))
            })?;
            if kept.version != 1 || kept.template != self.name {
                return Err(stays(Failure::refused("what was kept belongs to another template")));
            }
            self.change(&fill(roll_back, &kept.arguments).map_err(stays)?, run)
                .await
                .map_err(|failure| if failure.changed == Changed::Nothing { stays(failure) } else { failure })
        })
    }

    fn settle<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> Work<'a, Result<Settled, Failure>> {
        Box::pin(async { Err(Failure::after(Changed::Unknown, "nobody knows what a command has done")) })
    }

    fn fence(&self) -> Fence {
        Fence::Open
    }

    fn can_roll_back(&self, _: &Parameters) -> bool {
        self.roll_back.is_some()
    }
}

fn fill(words: &Words, arguments: &Arguments) -> Result<Vec<String>, Failure> {
    words
        .fill(arguments)
        .map_err(|name| Failure::refused(format!("the argument {name:?} would be an option")))
}

fn not_run(argv: &[String], error: &RunError) -> Failure {
    let program = argv.first().map(String::as_str).unwrap_or_default();
    let message = format!("{program:?} was not run: {error}");
    match error {
        RunError::NotStarted(_) | RunError::NotWatched(_) => Failure::not_now(message),
        RunError::Lost(_) => Failure::after(Changed::Unknown, message),
    }
}

/// What a command is told besides its arguments.
fn environment(run: &Run) -> Vec<(&'static str, String)> {
    let tokens: Vec<_> =
        run.tokens.iter().map(|(lock, token)| json!({ "lock": lock, "token": token })).collect();
    let mut environment = vec![
        ("ADE_TASK_ID", run.task_id.clone()),
        ("ADE_ATTEMPT", run.attempt.to_string()),
        ("ADE_FENCING_TOKENS", Value::from(tokens).to_string()),
    ];
    if let Some(largest) = run.tokens.iter().map(|(_, token)| token).max() {
        environment.push(("ADE_FENCING_TOKEN", largest.to_string()));
    }
    environment
}

/// The end of what a command says about what went wrong, in whole lines: half of a secret would not be recognised.
#[derive(Debug, Default)]
struct End {
    last: VecDeque<u8>,
    is_cut: bool,
}

impl End {
    fn hear(&mut self, bytes: &[u8]) {
        self.last.extend(bytes);
        let over = self.last.len().saturating_sub(QUOTED);
        self.last.drain(..over);
        self.is_cut |= over > 0;
    }

    fn quoted(&self, what: &str) -> String {
        let whole =
            self.last.iter().copied().skip_while(|byte| self.is_cut && *byte != b'\n').collect::<Vec<u8>>();
        let text = String::from_utf8_lossy(&whole);
        let lines: Vec<&str> = text.trim().lines().collect();
        let last = lines.get(lines.len().saturating_sub(QUOTED_LINES)..).unwrap_or_default().join("\n");
        if last.is_empty() { what.to_owned() } else { format!("{what}: {last}") }
    }
}

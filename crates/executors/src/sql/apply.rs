//! Carrying out and undoing, each as one transaction with a mark in it, and finding out by the mark how one ended.
//!
//! That nothing was changed is said only while COMMIT was not sent, or once the attempt is shut out by a mark.

use std::time::Duration;

use super::Sql;
use super::link::{Inside, Link, Trouble, WAIT_FOR_OTHERS};
use super::marks::{Kind, Marks, State};
use crate::{Changed, Failure, Halt, Run, Settled};

/// How often it is asked how a COMMIT ended whose answer was lost, and how long it waits after each time.
const PAUSES_MS: [u64; 12] = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000, 5_000, 5_000];
/// How often it is asked even though the run is to end: about three seconds.
const LEAST_TRIES: usize = 7;

/// How long finding out how it ended may take.
const SETTLE_WITHIN: Duration = Duration::from_secs(15);

/// For people.
pub(super) fn rows(number: u64) -> String {
    format!("{number} row{}", if number == 1 { "" } else { "s" })
}

/// What is ready to be committed, or need not be.
enum Ready {
    Commit(Link),
    /// The mark says that it was done before.
    Done(&'static str),
}

/// How one try to undo ended.
enum Undone {
    Yes(&'static str),
    /// The answer to COMMIT was lost.
    Perhaps(Trouble),
}

fn ended(halt: Halt, changed: Changed) -> Failure {
    let again = halt == Halt::Lost && changed == Changed::Nothing;
    Failure { halted: Some(halt), again, ..Failure::after(changed, halt.message(None)) }
}

fn failed(trouble: Trouble, changed: Changed) -> Failure {
    let changed = if trouble.escaped { Changed::Unknown } else { changed };
    Failure { again: trouble.again, ..Failure::after(changed, trouble.message) }
}

impl Sql {
    pub(super) async fn carry_out(&self, run: &Run) -> Result<(), Failure> {
        let statements = self.read_again(&run.parameters)?.forward;
        let ready = run.halted.or(self.make_ready(run, &statements)).await;
        let mut link = match ready.map_err(|halt| ended(halt, Changed::Nothing))? {
            Ok(Ready::Commit(link)) => link,
            Ok(Ready::Done(why)) => {
                say(run, why);
                return Ok(());
            }
            Err(trouble) => return Err(failed(trouble, Changed::Nothing)),
        };
        if let Some(halt) = run.halted.now() {
            return Err(ended(halt, Changed::Nothing));
        }
        // From here on a halt comes too late: what was sent cannot be taken back, only asked for.
        match link.commit().await {
            Ok(()) => {
                link.close().await;
                Ok(())
            }
            Err(lost) => {
                drop(link);
                self.after_lost_commit(run, lost).await
            }
        }
    }

    /// Everything up to COMMIT.
    async fn make_ready(&self, run: &Run, statements: &[String]) -> Result<Ready, Trouble> {
        let mut link = self.target.open().await?;
        let marks = link.marks(&run.task_id, run.attempt).await?;
        let begun = link.begin().await?;
        if !link.mark(&marks, Kind::Apply, State::Applied).await? {
            return match link.marked(&marks, Kind::Apply).await? {
                Some(State::Applied) => {
                    Ok(Ready::Done("this attempt was applied before: nothing is done again"))
                }
                _ => Err(Trouble::lasting(
                    "somebody else found this attempt without its worker and gave it up",
                )),
            };
        }
        run_all(&mut link, run, statements, begun).await?;
        still_marked(&mut link, &marks, Kind::Apply, State::Applied).await?;
        Ok(Ready::Commit(link))
    }

    /// Asks on new connections until it is known how it ended.
    async fn after_lost_commit(&self, run: &Run, lost: Trouble) -> Result<(), Failure> {
        let mut why = String::new();
        for (tries, pause) in PAUSES_MS.into_iter().enumerate() {
            match self.shut_out(&run.task_id, run.attempt).await {
                Ok(Settled::Everything | Settled::Part) => {
                    say(
                        run,
                        "the answer to COMMIT was lost, and the mark of this attempt says that it was done",
                    );
                    return Ok(());
                }
                Ok(Settled::Nothing) => {
                    let message = format!("nothing was committed: {}", lost.message);
                    return Err(failed(Trouble { message, ..lost }, Changed::Nothing));
                }
                Err(trouble) => why = trouble.message,
            }
            if tries + 1 >= LEAST_TRIES && run.halted.now().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let message = format!(
            "the answer to COMMIT was lost ({}), and nobody could be asked how it ended ({why})",
            lost.message
        );
        Err(Failure { halted: run.halted.now(), ..Failure::after(Changed::Unknown, message) })
    }

    /// Sets the mark of an attempt as given up, unless it says already how it ended. Waits for a transaction of that attempt
    /// that is still open, but not long.
    pub(super) async fn shut_out(&self, task_id: &str, attempt: u64) -> Result<Settled, Trouble> {
        let late =
            |_| Err(Trouble::passing(format!("the database took longer than {} s", SETTLE_WITHIN.as_secs())));
        // Whatever it did until then it would do again.
        tokio::time::timeout(SETTLE_WITHIN, self.mark_as_given_up(task_id, attempt))
            .await
            .unwrap_or_else(late)
    }

    async fn mark_as_given_up(&self, task_id: &str, attempt: u64) -> Result<Settled, Trouble> {
        let mut link = self.target.open().await?;
        let marks = link.marks(task_id, attempt).await?;
        link.begin().await?;
        link.limit(None, WAIT_FOR_OTHERS).await?;
        link.mark(&marks, Kind::Apply, State::Abandoned).await?;
        let settled = match link.marked(&marks, Kind::Apply).await? {
            Some(State::Applied) => Settled::Everything,
            Some(State::Abandoned) => Settled::Nothing,
            Some(State::Undone) | None => {
                let message = format!("the mark of attempt {attempt} of {task_id} says nothing known");
                return Err(Trouble::lasting(message));
            }
        };
        // Whoever hears of it relies on it.
        link.commit().await?;
        link.close().await;
        Ok(settled)
    }

    pub(super) async fn undo(&self, run: &Run, stash: &[u8]) -> Result<(), Failure> {
        let stays = |message: String| Failure::after(Changed::Something, message);
        let statements: Vec<String> = if stash.is_empty() {
            self.read_again(&run.parameters).map_err(|failure| stays(failure.message))?.back
        } else {
            let unreadable = |error| stays(format!("what was kept to undo it cannot be read: {error}"));
            serde_json::from_slice(stash).map_err(unreadable)?
        };
        if statements.is_empty() {
            return Err(stays("there is no way back: the task has no rollback_statements".to_owned()));
        }
        let (mut unsure, mut last) = (false, Failure::refused("it was not tried"));
        for (tries, pause) in PAUSES_MS.into_iter().enumerate() {
            match self.undo_once(run, &statements).await {
                Ok(Undone::Yes(how)) => {
                    say(run, how);
                    return Ok(());
                }
                // The mark tells the next try whether this one was committed.
                Ok(Undone::Perhaps(lost)) => (unsure, last) = (true, failed(lost, Changed::Something)),
                Err(failure) => last = failure,
            }
            let halted = last.halted.is_some() || (tries + 1 >= LEAST_TRIES && run.halted.now().is_some());
            if halted || !last.again {
                break;
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        if unsure {
            let message =
                format!("the answer to COMMIT was lost, and nobody could be asked: {}", last.message);
            return Err(Failure { changed: Changed::Unknown, message, ..last });
        }
        Err(last)
    }

    async fn undo_once(&self, run: &Run, statements: &[String]) -> Result<Undone, Failure> {
        let work = async {
            let mut link = self.target.open().await?;
            let marks = link.marks(&run.task_id, run.attempt).await?;
            let begun = link.begin().await?;
            // Only what was applied is undone; and what was not must not be applied afterwards.
            link.mark(&marks, Kind::Apply, State::Abandoned).await?;
            if link.marked(&marks, Kind::Apply).await? != Some(State::Applied) {
                return Ok((link, "nothing was applied, so nothing is changed back"));
            }
            if !link.mark(&marks, Kind::Undo, State::Undone).await? {
                return Ok((link, "it was changed back before: nothing is done again"));
            }
            run_all(&mut link, run, statements, begun).await?;
            still_marked(&mut link, &marks, Kind::Undo, State::Undone).await?;
            Ok((link, "changed back"))
        };
        let done = run.halted.or(work).await.map_err(|halt| ended(halt, Changed::Something))?;
        let (mut link, how) = done.map_err(|trouble| failed(trouble, Changed::Something))?;
        if let Some(halt) = run.halted.now() {
            return Err(ended(halt, Changed::Something));
        }
        match link.commit().await {
            Ok(()) => {
                link.close().await;
                Ok(Undone::Yes(how))
            }
            Err(lost) if lost.again => Ok(Undone::Perhaps(lost)),
            // The database refused it, and says so.
            Err(refused) => Err(failed(refused, Changed::Something)),
        }
    }
}

/// Carries out one after the other, and says how many rows each concerned.
async fn run_all(link: &mut Link, run: &Run, statements: &[String], begun: Inside) -> Result<(), Trouble> {
    for (number, sql) in (1..).zip(statements) {
        let done = link.run(sql).await;
        let done = done.map_err(|trouble| Trouble {
            message: format!("statement {number}: {}", trouble.message),
            ..trouble
        })?;
        if !link.is_inside(begun).await? {
            let message = format!("statement {number} ended the transaction: what is before it may stay");
            return Err(Trouble { escaped: true, ..Trouble::lasting(message) });
        }
        say(run, &format!("statement {number}: {}", rows(done)));
    }
    Ok(())
}

async fn still_marked(link: &mut Link, marks: &Marks, kind: Kind, state: State) -> Result<(), Trouble> {
    if link.marked(marks, kind).await? == Some(state) {
        return Ok(());
    }
    Err(Trouble::lasting(
        "the statements removed the mark of their own attempt: nothing of them is committed",
    ))
}

fn say(run: &Run, line: &str) {
    run.output.say(format!("{line}\n").as_bytes());
}

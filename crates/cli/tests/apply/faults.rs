//! Workers are killed, stopped and forgotten at every step of a task: nothing is applied twice, nothing is lost, no set of files
//! is left half, and what the record says is true.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::crashes::jobs::{Found, Job, Kind, wide};
use crate::crashes::moments::{MOMENTS, Met, Moment, beside, others, spin, started};
use crate::crashes::site::{LEASE, PATIENCE, Site, attempt, tree};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{Dice, effort};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long it may take after lease and locks have ended until it is settled.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);

/// What happens to whoever is at a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The process is gone (SIGKILL), and another one is started.
    Kill,
    /// The process is stopped until somebody else has taken over, and goes on (SIGSTOP, SIGCONT).
    Stop,
    /// Redis loses everything.
    Flush,
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded() {
    let site = Site::embedded().await;
    Drill::new("embedded", site, &[Fault::Kill]).run(effort::rounds(10, 100)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn distributed() {
    let site = Site::distributed().await;
    let drill = Drill::new("distributed", site, &[Fault::Kill, Fault::Stop, Fault::Flush]);
    drill.run(effort::rounds(10, 100)).await;
}

/// Whoever was stopped before it changed anything, and goes on after somebody else has taken over, is shut out.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_wakes_late_changes_nothing() {
    let site = Site::distributed().await;
    let mut dice = Dice::new(effort::seed(), 0);
    for moment in [Moment::Prepared, Moment::Started] {
        let name = format!("{moment:?}").to_lowercase();
        let met = moment.strike(&site, &name, &name, &mut dice, |by| site.stop(by)).await;
        drop(met.held);
        let over = site.office.wait_for("somebody else ends it", &met.job.id, Job::is_over).await;
        let set = met.job.set().expect("files");
        let (done, found) = (text(&over, "state") == "COMPLETED", set.look().expect("one of the two"));
        assert_eq!(done, moment == Moment::Prepared, "{over}");
        assert_eq!(found, if done { Found::New } else { Found::Old }, "{over}");
        // It may not even write the same again.
        let (first, last) = (set.watch(false), set.watch(true));
        let late = site.hand(&met.by);
        late.signal(Signal::CONT).expect("goes on");
        // Whoever is asked to end does so when it has ended all that it was at.
        late.signal(Signal::TERM).expect("asked");
        late.wait_for_end().expect("ends");
        assert!(!first() && !last(), "{moment:?}: it changed something");
        assert_eq!(set.look().expect("one of the two"), found);
        assert_eq!(site.office.task(&met.job.id).await, over, "what it said does not count");
        nothing_is_left_over(&site, &name).await;
        site.start_again();
    }
    an_agent_is_lost_where_nobody_works(&site).await;
}

/// Servers that leave work to others see to it that no task waits for an agent that is gone.
async fn an_agent_is_lost_where_nobody_works(site: &Site) {
    let job = Job::agent(site, true).await;
    let claim = site.bot.post("/tasks/claim", &json!({ "wait_seconds": 5.0 })).await.expect(200);
    assert_eq!(claim["task"]["task_id"], job.id.as_str());
    for worker in &site.workers {
        worker.process().kill().expect("killed");
    }
    let late = Instant::now() + LEASE;
    let over = site.office.wait_for("it is told", &job.id, Job::is_over).await;
    let took = Instant::now().saturating_duration_since(late);
    assert!(took <= SETTLED_WITHIN, "told only {took:.1?} after both deadlines");
    assert_eq!(text(&over["execution"], "code"), "OUTCOME_UNKNOWN", "{over}");
    // What it says now does not count, and it is told so.
    let body = json!({ "attempt": claim["attempt"], "result": "success" });
    let on = |what: &str| format!("/tasks/{}/{what}", job.id);
    let _ = site.bot.post(&on("complete"), &body).await.problem(409, "NOT_PRESENT");
    let beat = json!({ "attempt": claim["attempt"] });
    let _ = site.bot.post(&on("heartbeat"), &beat).await.problem(409, "NOT_PRESENT");
}

/// Another task waits for the same resource and changes one of the same files: it does not begin before the half that was left is
/// changed back, which otherwise could not be done any more.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_built_on_half_a_set() {
    let site = Site::embedded().await;
    let (job, _, held) = started(&site, wide(&site, "half"), "half").await;
    let set = job.set().expect("files");
    let next = set.last_as("by another task\n");
    let other = Job::files(&site, next, "half").await;
    site.waiter(&Job::lock_of("half"), &other.id).await;
    spin(set.watch(false), held, || site.hand("").kill().expect("killed"));
    assert_eq!(set.look().expect("one of the two"), Found::Half, "it was met in the middle");
    site.start_again();
    let over = site.office.wait_for("it is changed back", &job.id, Job::is_over).await;
    assert_eq!(over["execution"]["rolled_back"], true, "{over}");
    let done = site.office.wait_for("the other is done", &other.id, Job::is_over).await;
    assert_eq!(text(&done, "state"), "COMPLETED", "{done}");
    other.check(&site, &done).expect("the file of the other task");
    assert_eq!(set.without_last().look().expect("one of the two"), Found::Old, "all the others");
    whoever_is_asked_to_end_ends_what_it_began(&site).await;
}

/// More than there are slots: whatever was begun is done, whatever was not is done after the next start; nothing is in doubt.
async fn whoever_is_asked_to_end_ends_what_it_began(site: &Site) {
    let mut jobs = Vec::new();
    for number in 0..20 {
        jobs.push(Job::command(site, &format!("command-{number}")).await);
    }
    let begun = || async {
        let many = jobs.iter().filter(|job| job.written(site) > 0).count();
        if many > 4 { Ok(()) } else { Err(format!("{many} have begun")) }
    };
    until("some have begun", PATIENCE, begun).await.unwrap_or_else(|error| site.fail(&error.to_string()));
    site.servers[0].stop().expect("ends");
    site.start_again();
    for job in &jobs {
        let done = site.office.wait_for("it is done", &job.id, Job::is_over).await;
        assert_eq!((text(&done, "state").as_str(), job.written(site)), ("COMPLETED", 1), "{done}");
    }
}

/// Nothing of ADE's own stays in the root; the folder of the notes goes with the next who has the root for itself.
async fn nothing_is_left_over(site: &Site, what: &str) {
    let own = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(".ade");
    let gone = || async {
        let left = tree(&site.root).into_iter().filter(|path| path.file_name().is_some_and(own));
        let left: Vec<_> = left.collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    };
    let gone = until(&format!("{what}: nothing is left over"), SETTLED_WITHIN, gone).await;
    gone.unwrap_or_else(|error| site.fail(&error.to_string()));
}

struct Drill {
    name: &'static str,
    site: Site,
    faults: &'static [Fault],
    /// How often each moment was met, and ended as it does only if it was met indeed.
    met: BTreeMap<(Moment, Fault), (u32, u32)>,
    ended: BTreeMap<String, u32>,
    slowest: (Duration, String),
    count: u64,
}

impl Drill {
    fn new(name: &'static str, site: Site, faults: &'static [Fault]) -> Self {
        let (met, ended, slowest) = (BTreeMap::new(), BTreeMap::new(), (Duration::ZERO, String::new()));
        Self { name, site, faults, met, ended, slowest, count: 0 }
    }

    async fn run(mut self, rounds: u64) {
        let (seed, begun) = (effort::seed(), Instant::now());
        let mut order = Dice::new(seed, rounds);
        // Each moment in turn, with each fault in turn; the seed says with which it begins.
        let first = order.below(MOMENTS.len() as u64 * self.faults.len() as u64);
        for round in 0..rounds {
            let number = first + round;
            let at = |number: u64, of: usize| usize::try_from(number % of as u64).expect("few");
            let moment = MOMENTS[at(number, MOMENTS.len())];
            let fault = self.faults[at(number / MOMENTS.len() as u64 + number, self.faults.len())];
            let mut dice = Dice::new(seed, round);
            let begun = Instant::now();
            self.round(&format!("round-{round}"), moment, fault, &mut dice).await;
            eprintln!("{} round {round}: {fault:?} at {moment:?}, {:.1?}", self.name, begun.elapsed());
        }
        let verdict = self.site.office.admin.get("/audit/verify").await.expect(200);
        assert_eq!(verdict["valid"], true, "{verdict}");
        self.audit();
        let (took, when) = &self.slowest;
        eprintln!(
            "{}: {rounds} rounds in {:.0?} (seed {seed}); moments met (times, of them for certain): {:?}; \
             tasks ended: {:?}; slowest recovery {took:.1?} after both deadlines, {when}",
            self.name,
            begun.elapsed(),
            self.met,
            self.ended,
        );
        if rounds >= 100 {
            for moment in MOMENTS {
                let certain = self.met.iter().filter(|((of, _), _)| *of == moment).map(|(_, met)| met.1);
                assert!(certain.sum::<u32>() > 0, "{moment:?} was never met");
            }
        }
    }

    async fn round(&mut self, name: &str, moment: Moment, fault: Fault, dice: &mut Dice) {
        let what = format!("{name}: {fault:?} at {moment:?}");
        let on = format!("{name}-shared");
        let dies = dice.below(2) == 0;
        let others = others(&self.site, name, self.count, dice);
        let (mut jobs, agent) = tokio::join!(others, Job::agent(&self.site, dies));
        let claimed = self.claim(&agent).await;
        let site = &self.site;
        let strike = |by: &str| match fault {
            Fault::Kill => site.hand(by).kill().expect("killed"),
            Fault::Stop => site.stop(by),
            Fault::Flush => site.redis.as_ref().expect("has one").tell(&["FLUSHALL"]).expect("flushed"),
        };
        let met = moment.strike(site, name, &on, dice, strike).await;
        // Whoever was killed or stopped changes nothing any more.
        let left = match fault {
            Fault::Flush => None,
            _ => met.job.set().map(|set| set.look().unwrap_or_else(|error| site.fail(&error))),
        };
        let mut late = self.come_back(&what, met.at, fault, &met).await;
        let Met { job, attempt, blocked, held, beside: waiting, .. } = met;
        if let Some(blocked) = blocked {
            blocked.release().await;
            late = late.max(Instant::now());
        }
        if held.is_some() && moment == Moment::Started {
            // What was left is found out once the root is free.
            late = late.max(Instant::now());
        }
        drop(held);
        self.end_agent(&agent, claimed).await;
        self.settled(&what, &job, attempt, late, fault).await;
        let waiting = match waiting {
            Some(waiting) => waiting,
            None => Job::files(&self.site, beside(&self.site, name, dice), &on).await,
        };
        let counted = jobs.len();
        jobs.extend([job, agent, waiting]);
        let ended = self.ended(&what, &jobs).await;
        let victim = &ended[counted];
        self.count += u64::from(text(&ended[counted - 1], "state") == "COMPLETED");
        self.judge(&what, moment, fault, left, victim);
        self.clean(&what, &jobs).await;
    }

    /// The agent is given its task, and says that it is alive.
    async fn claim(&self, job: &Job) -> u64 {
        let look = || async {
            let answer = self.site.bot.post("/tasks/claim", &json!({ "wait_seconds": 5.0 })).await;
            if answer.status == 200 { Ok(answer.json()) } else { Err(answer.text()) }
        };
        let claim = until("the agent is given its task", PATIENCE, look).await;
        let claim = claim.unwrap_or_else(|error| self.site.fail(&error.to_string()));
        assert_eq!(claim["task"]["task_id"], job.id.as_str());
        attempt(&claim)
    }

    /// The agent says how it ended, unless it is not heard of any more.
    async fn end_agent(&self, job: &Job, attempt: u64) {
        if matches!(job.kind, Kind::Agent { dies: false }) {
            let body = json!({ "attempt": attempt, "result": "success" });
            let answer = self.site.bot.post(&format!("/tasks/{}/complete", job.id), &body).await;
            // It may have been too late.
            assert!(answer.status == 200 || answer.code() == "NOT_PRESENT", "{}", answer.text());
        }
    }

    /// Whoever was killed is replaced, whoever was stopped goes on. When the later of the two deadlines has passed.
    async fn come_back(&self, what: &str, struck: Instant, fault: Fault, met: &Met) -> Instant {
        let site = &self.site;
        match fault {
            Fault::Kill => site.start_again(),
            Fault::Stop if met.attempt > 0 => {
                // Somebody else has taken over, or waits for nothing but the files.
                site.execution(&format!("{what}: somebody takes over"), &met.job.id, |now| {
                    attempt(now) > met.attempt
                })
                .await;
            }
            Fault::Stop | Fault::Flush => {}
        }
        let mut late = struck + LEASE;
        if fault == Fault::Kill && site.redis.is_none() {
            late = late.max(Instant::now());
        }
        if fault == Fault::Stop {
            site.hand(&met.by).signal(Signal::CONT).expect("goes on");
            // It holds what recovery needs until it goes on.
            late = late.max(Instant::now());
        }
        late
    }

    /// What was under way is settled in time, and its locks are nobody's.
    async fn settled(&mut self, what: &str, job: &Job, before: u64, late: Instant, fault: Fault) {
        let site = &self.site;
        let holder = format!("{}:{before}", job.id);
        let look = || async {
            let task = site.office.task(&job.id).await;
            let now = task.get("execution").cloned().unwrap_or_default();
            let over = Job::is_over(&task) || attempt(&now) > before;
            // With Redis its worker may have gone on, and ended it or not.
            let over = over || (fault == Fault::Flush && text(&now, "phase") == "ENDED");
            for lock in &job.locks {
                if lock.contains(':') && site.holders(lock).await?.contains(&holder) && !Job::is_over(&task) {
                    return Err(format!("{lock} is held by {holder}"));
                }
            }
            if over { Ok(()) } else { Err(task.to_string()) }
        };
        let settled = until(&format!("{what}: it is settled"), PATIENCE, look).await;
        settled.unwrap_or_else(|error| site.fail(&error.to_string()));
        let took = Instant::now().saturating_duration_since(late);
        if took > SETTLED_WITHIN {
            site.fail(&format!("{what}: settled only {took:.1?} after both deadlines"));
        }
        self.slowest = self.slowest.clone().max((took, what.to_owned()));
    }

    /// Waits until all is over; attempts only grow meanwhile.
    async fn ended(&self, what: &str, jobs: &[Job]) -> Vec<Value> {
        let mut ended = Vec::new();
        for job in jobs {
            let highest = std::cell::Cell::new(0);
            let highest = &highest;
            let look = || async move {
                let task = self.site.office.task(&job.id).await;
                let now = attempt(&task["execution"]);
                assert!(now >= highest.replace(now), "{what}: attempts only grow: {task}");
                if Job::is_over(&task) { Ok(task) } else { Err(task.to_string()) }
            };
            let task = until(&format!("{what}: it ends"), PATIENCE, look).await;
            ended.push(task.unwrap_or_else(|error| self.site.fail(&error.to_string())));
        }
        for (job, task) in jobs.iter().zip(&ended) {
            if let Err(lie) = job.check(&self.site, task) {
                self.site.fail(&format!("{what}: {lie}"));
            }
        }
        ended
    }

    /// Whether the moment was met for certain, and what follows from how it was found.
    fn judge(&mut self, what: &str, moment: Moment, fault: Fault, left: Option<Found>, task: &Value) {
        let (done, execution) = (text(task, "state") == "COMPLETED", &task["execution"]);
        let certain = match moment {
            Moment::Waiting | Moment::Prepared => left.is_none_or(|left| left == Found::Old),
            Moment::Started => left.is_none_or(|left| left == Found::Old),
            Moment::Between => left == Some(Found::Half),
            Moment::Changed => left == Some(Found::New) && !done,
            Moment::Running => !done,
        };
        if fault == Fault::Kill {
            let found = left.unwrap_or(Found::Old);
            match moment {
                // Nothing may have been changed: it is carried out by somebody else.
                Moment::Waiting | Moment::Prepared => assert!(done, "{what}: {task}"),
                Moment::Started => assert_eq!(text(execution, "code"), "WORKER_LOST", "{what}: {task}"),
                Moment::Between | Moment::Changed if !done => {
                    let back = found != Found::Old;
                    assert_eq!(execution["rolled_back"] == true, back, "{what}, {found:?}: {task}");
                }
                Moment::Between | Moment::Changed => {
                    assert_eq!(found, Found::New, "{what}: {task}");
                }
                Moment::Running => assert!(done || text(execution, "code") == "OUTCOME_UNKNOWN", "{task}"),
            }
        }
        let met = self.met.entry((moment, fault)).or_default();
        met.0 += 1;
        met.1 += u32::from(certain);
    }

    /// Nothing is left over, and nobody holds anything.
    async fn clean(&mut self, what: &str, jobs: &[Job]) {
        nothing_is_left_over(&self.site, what).await;
        for lock in jobs.iter().flat_map(|job| &job.locks).filter(|lock| lock.contains(':')) {
            let wanted = format!("{what}: {lock} is free");
            let free = until(&wanted, LEASE + SETTLED_WITHIN, || async {
                let holders = self.site.holders(lock).await?;
                if holders.is_empty() { Ok(()) } else { Err(format!("{holders:?}")) }
            });
            free.await.unwrap_or_else(|error| self.site.fail(&error.to_string()));
        }
        for job in jobs {
            let task = self.site.office.task(&job.id).await;
            let how = format!("{} {}", text(&task, "state"), text(&task["execution"], "code"));
            *self.ended.entry(how.trim().to_owned()).or_default() += 1;
        }
    }

    /// `ade audit verify`, as its users run it.
    fn audit(&self) {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ade"));
        let url = self.site.servers[0].url();
        command.args(["audit", "verify"]).env("ADE_SERVER", url).env("ADE_TOKEN", ade_testkit::ade::TOKEN);
        let verified = command.output().expect("runs");
        assert!(verified.status.success(), "{verified:?}");
    }
}

//! Model-based test of tasks over HTTP: four clients send random commands, permitted and forbidden, to one server on SQLite
//! and to two servers on one PostgreSQL. After each round the state of the servers is compared with a model that knows only
//! the responses.

use std::sync::Arc;

use crate::tasks::model::{Model, commands, invariants};
use ade_testkit::server::ServerBuilder;
use ade_testkit::{AdeServer, Postgres, Redis, SeededRng, effort};
use tokio::time::Instant;

const CLIENTS: u64 = 4;
/// Minimum number of rounds, and maximum while something of [`MUST_HAPPEN`] is missing. All invariants are checked after
/// each round.
const ROUNDS: (u64, u64) = (4, 40);
/// Events without which the run has not tested enough. They depend on timing, not on the seed alone.
const MUST_HAPPEN: [&str; 7] = [
    "approval.approve",
    "approval.reject",
    "policy",
    "replayed",
    "task.modify",
    "task.submit",
    "user.deactivate",
];
/// Commands of one client in one round.
const COMMANDS_PER_ROUND: u64 = 40;

fn setup() -> ServerBuilder {
    let config = "[limit]\nrequests_per_minute = 10000000\n[worker]\nslots = 0\n";
    // No workers: the model does not know about applied tasks.
    ServerBuilder::new(env!("CARGO_BIN_EXE_ade")).config(config)
}

fn missing(model: &Model) -> Vec<&'static str> {
    let state = model.state();
    MUST_HAPPEN.into_iter().filter(|event| !state.tally.contains_key(*event)).collect()
}

async fn run(servers: &[AdeServer], seed: u64) {
    let started = Instant::now();
    let model = Arc::new(Model::new(servers, seed).await);
    let mut round = 0;
    while round < ROUNDS.0 || (round < ROUNDS.1 && !missing(&model).is_empty()) {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (model, mut rng) = (Arc::clone(&model), SeededRng::new(seed, round * CLIENTS + client));
                tokio::spawn(async move {
                    for _ in 0..COMMANDS_PER_ROUND {
                        commands::execute_random(&model, &mut rng).await;
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.expect("no panic");
        }
        invariants::check_all(&model).await;
        round += 1;
    }
    let tally = model.state().tally.clone();
    println!("seed {seed}, {:?}: {tally:?}", started.elapsed());
    assert_eq!(missing(&model), [""; 0], "some events never happened: {tally:?}");
    for server in servers {
        let errors = server.process().log_lines_with("ERROR");
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// One seed for each run; `ADE_SEED` repeats a run.
fn seeds() -> impl Iterator<Item = u64> {
    (0..effort::rounds(1, 50)).map(|round| effort::seed().wrapping_add(round))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_on_one_server_match_model() {
    for seed in seeds() {
        let server = setup().start().expect("starts");
        run(&[server], seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_on_two_servers_match_model() {
    let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
    for seed in seeds() {
        let database = postgres.create_database(&format!("ade{seed}")).expect("made");
        let setup = setup().arg("--redis").arg(&redis.url());
        let servers = setup.arg("--postgres").arg(&database).start_many(2).expect("start");
        run(&servers, seed).await;
    }
}

//! Reviews over HTTP, at random: four clients do anything that people and agents may try, and much that they may not, against
//! one server with its own record, and against two that share one. Whenever they pause, what the servers say is held against
//! a model that knows only what was answered.

use std::sync::Arc;

use crate::chance::{World, checks, deeds};
use ade_testkit::ade::Setup;
use ade_testkit::{Ade, Dice, Postgres, Redis, effort};
use tokio::time::Instant;

const CLIENTS: u64 = 4;
/// How often everything is looked at: at least, and at most while something of [`MUST_HAPPEN`] has not happened.
const PAUSES: (u64, u64) = (4, 40);
/// What never happened was not tested. Who is faster decides what is refused, so a seed alone does not say when all did.
const MUST_HAPPEN: [&str; 7] =
    ["approval.approve", "approval.reject", "left", "policy", "repeated", "task.modify", "task.submit"];
/// Commands of one client between two looks at everything.
const COMMANDS: u64 = 40;

fn setup() -> Setup {
    let config = "[limit]\nrequests_per_minute = 10000000\n[worker]\nslots = 0\n";
    // Nothing is carried out by itself: what the model knows is all that happens.
    Setup::new(env!("CARGO_BIN_EXE_ade")).config(config)
}

fn missing(world: &World) -> Vec<&'static str> {
    let known = world.known();
    MUST_HAPPEN.into_iter().filter(|what| !known.tally.contains_key(*what)).collect()
}

async fn drive(servers: &[Ade], seed: u64) {
    let begun = Instant::now();
    let world = Arc::new(World::new(servers, seed).await);
    let mut pause = 0;
    while pause < PAUSES.0 || (pause < PAUSES.1 && !missing(&world).is_empty()) {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (world, mut dice) = (Arc::clone(&world), Dice::new(seed, pause * CLIENTS + client));
                tokio::spawn(async move {
                    for _ in 0..COMMANDS {
                        deeds::anything(&world, &mut dice).await;
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.expect("a client ends well");
        }
        checks::everything(&world).await;
        pause += 1;
    }
    let tally = world.known().tally.clone();
    println!("seed {seed}, {:?}: {tally:?}", begun.elapsed());
    assert_eq!(missing(&world), [""; 0], "never happened: {tally:?}");
    for server in servers {
        let errors = server.process().lines_with("ERROR");
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// Companies one after the other, each with a seed of its own: `ADE_SEED` repeats one.
fn seeds() -> impl Iterator<Item = u64> {
    (0..effort::rounds(1, 50)).map(|round| effort::seed().wrapping_add(round))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_may_happen_on_one_server() {
    for seed in seeds() {
        let server = setup().start().expect("starts");
        drive(&[server], seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_may_happen_on_two_servers() {
    let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
    for seed in seeds() {
        let database = postgres.create_database(&format!("ade{seed}")).expect("made");
        let setup = setup().argument("--redis").argument(&redis.url());
        let servers = setup.argument("--postgres").argument(&database).start_many(2).expect("start");
        drive(&servers, seed).await;
    }
}

//! Size and seed of randomised tests: small in `make test`, large in `make soak`. Every run can be repeated by its seed.

use std::io::Write;
use std::process::Command;
use std::sync::OnceLock;
use std::{env, io};

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Every run tests this seed besides its own. Also used where the commit is unknown, such as in an unpacked archive.
const FIXED_SEED: u64 = 20_261_115;

/// Whether this is a long run: the variable `ADE_SOAK` is set.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "tests are configured here by environment variables")]
pub fn is_soak() -> bool {
    env::var_os("ADE_SOAK").is_some()
}

/// The first number in normal runs, the second in long ones.
#[must_use]
pub fn rounds(normal: u64, soak: u64) -> u64 {
    if is_soak() { soak } else { normal }
}

/// The seed of randomised tests: `ADE_SEED`, or the commit, so that each commit is tested with another one.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "tests are configured here by environment variables")]
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = env::var("ADE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.or_else(commit_seed).unwrap_or(FIXED_SEED);
        // Not with a macro: the test harness captures those unless the first test that asks for the seed fails.
        let _ = writeln!(io::stderr(), "seed of randomised tests: ADE_SEED={seed}");
        seed
    })
}

/// Seed and number of each round: all rounds with the fixed seed, then all with the seed of this run.
pub fn seeded_rounds(rounds: u64) -> impl Iterator<Item = (u64, u64)> {
    [FIXED_SEED, seed()].into_iter().flat_map(move |seed| (0..rounds).map(move |round| (seed, round)))
}

/// The configuration of a property test, with the seed of this run.
#[must_use]
pub fn property(cases: u32) -> ProptestConfig {
    // A failure is reproduced by the seed, which needs no file.
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn commit_seed() -> Option<u64> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = Command::new("git").args(["-C", folder, "rev-parse", "HEAD"]).output().ok()?;
    let hash = String::from_utf8(output.stdout).ok()?;
    // 48 bits: short enough to copy, and exact as a JSON number.
    u64::from_str_radix(hash.get(..12)?, 16).ok()
}

/// Random numbers that are the same for the same seed.
#[derive(Debug)]
pub struct SeededRng(StdRng);

impl SeededRng {
    /// The generator for one round of a test.
    #[must_use]
    pub fn new(seed: u64, round: u64) -> Self {
        Self(StdRng::seed_from_u64(seed ^ round.wrapping_mul(0xD6E8_FEB8_6659_FD93)))
    }

    pub fn any(&mut self) -> u64 {
        self.0.random()
    }

    /// A number below `end`; zero if `end` is.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end.max(1))
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = self.below(items.len() as u64);
        usize::try_from(index).ok().and_then(|index| items.get(index))
    }
}

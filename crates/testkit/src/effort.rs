//! Size and seed of randomised tests: small in `make test`, large in `make soak`. Every run can be repeated by its seed.

use std::process::Command;
use std::sync::OnceLock;
use std::{env, iter};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Used where the commit is unknown, such as in an unpacked archive.
const FALLBACK_SEED: u64 = 20_261_115;

/// The first number in normal runs, the second if the variable `ADE_SOAK` is set.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "tests are configured here by environment variables")]
pub fn rounds(normal: u64, soak: u64) -> u64 {
    if env::var_os("ADE_SOAK").is_some() { soak } else { normal }
}

/// The seed of randomised tests: `ADE_SEED`, or the commit, so that each commit is tested with another one.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests are configured by environment variables, and show the seed of a failure"
)]
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = env::var("ADE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.or_else(commit_seed).unwrap_or(FALLBACK_SEED);
        eprintln!("seed of randomised tests: ADE_SEED={seed}");
        seed
    })
}

/// Seeds that found a bug once, then the seed of this run. `ADE_SEED` alone where it is set.
#[expect(clippy::disallowed_methods, reason = "tests are configured here by environment variables")]
pub fn seeds(regressions: &[u64]) -> impl Iterator<Item = u64> + use<> {
    let known = if env::var_os("ADE_SEED").is_some() { Vec::new() } else { regressions.to_vec() };
    known.into_iter().chain(iter::once_with(seed))
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

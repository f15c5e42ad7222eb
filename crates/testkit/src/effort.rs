//! How much a randomised test does: little in `make test`, much in `make soak`; always repeatable by its seed.

use std::env;

/// The first number for usual runs, the second if the variable `ADE_SOAK` is set.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the edge where the effort of tests is configured")]
pub fn rounds(usual: u64, soak: u64) -> u64 {
    if env::var_os("ADE_SOAK").is_some() { soak } else { usual }
}

/// The seed of randomised tests: `ADE_SEED`, or always the same.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the edge where the effort of tests is configured")]
pub fn seed() -> u64 {
    env::var("ADE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_115)
}

/// Random numbers that are the same for the same seed, on every machine (SplitMix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice for one round of a test.
    #[must_use]
    pub const fn new(seed: u64, round: u64) -> Self {
        Self(seed ^ round.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end.max(1)
    }

    /// One of several, if there are any.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let at = self.below(from.len() as u64);
        usize::try_from(at).ok().and_then(|at| from.get(at))
    }
}

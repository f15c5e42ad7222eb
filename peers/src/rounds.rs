//! Slices of all contestants in turns, A B C A B C …: a noisy neighbour disturbs all alike, and ratios compare what was
//! measured within the same round.
//!
//! Invariant: a contestant that fails in a round is not asked again for that row, and the report says why.

use indicatif::ProgressBar;

use crate::contestants::Contestant;
use crate::failure::Failure;
use crate::report::{Measured, RowReport};
use crate::rows::Row;
use crate::servers::Servers;

pub(crate) async fn measure(
    row: Row,
    contestants: &[Contestant],
    servers: &Servers,
    seconds: f64,
    rounds: usize,
    bar: &ProgressBar,
) -> RowReport {
    let mut all: Vec<Measured> = contestants.iter().map(Measured::of).collect();
    for round in 0..rounds {
        for (contestant, measured) in contestants.iter().zip(&mut all) {
            bar.set_message(format!("{}: {}", row.name(), contestant.name));
            if measured.not_measured.is_none() {
                match slice(row, contestant, servers, seconds, round).await {
                    Ok(figures) => measured.rounds.push(figures),
                    Err(failure) => measured.not_measured = Some(failure.to_string()),
                }
            }
            bar.inc(1);
        }
    }
    RowReport::new(row, all)
}

async fn slice(
    row: Row,
    contestant: &Contestant,
    servers: &Servers,
    seconds: f64,
    round: usize,
) -> Result<Vec<crate::rows::Figure>, Failure> {
    servers.quiet(contestant.server).await?;
    row.slice(contestant, servers, seconds, round).await
}

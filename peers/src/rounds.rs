//! Slices of all peers alternate, A B C A B C …, so that noise affects all alike. Ratios compare figures of the same round.
//!
//! Invariant: a peer that fails in a round is not measured again in that row, and the report has the reason.

use indicatif::ProgressBar;

use crate::error::BenchError;
use crate::registry::Peer;
use crate::report::{PeerResults, RowReport};
use crate::rows::Row;
use crate::servers::Servers;

pub(crate) async fn measure(
    row: Row,
    peers: &[Peer],
    servers: &Servers,
    seconds: f64,
    rounds: usize,
    bar: &ProgressBar,
) -> RowReport {
    let mut all: Vec<PeerResults> = peers.iter().map(PeerResults::new).collect();
    for round in 0..rounds {
        for (peer, results) in peers.iter().zip(&mut all) {
            bar.set_message(format!("{}: {}", row.name(), peer.name));
            if results.not_measured.is_none() {
                match measure_slice(row, peer, servers, seconds, round).await {
                    Ok(figures) => results.rounds.push(figures),
                    Err(error) => results.not_measured = Some(error.to_string()),
                }
            }
            bar.inc(1);
        }
    }
    RowReport::new(row, all)
}

async fn measure_slice(
    row: Row,
    peer: &Peer,
    servers: &Servers,
    seconds: f64,
    round: usize,
) -> Result<Vec<crate::rows::Figure>, BenchError> {
    servers.wait_until_idle(peer.server).await?;
    row.measure_slice(peer, servers, seconds, round).await
}

//! Ports for servers, for many tests in many processes at the same time.
//!
//! Asking the system for a free port and giving it to a server later is a race. Here a port is claimed by locking a file
//! named after it, which every process of the same user respects and which a dying process gives back; and it lies below the
//! range from which the system picks ports for outgoing connections.

use std::fs::{self, File, TryLockError};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;

use crate::error::StartError;

const FIRST: u32 = 20_000;
const COUNT: u32 = 10_000;

/// A port that no other test has, while this lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: File,
}

impl Port {
    /// Claims a port of the loopback interface that nobody listens on.
    pub fn claim() -> Result<Self, StartError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = folder();
        fs::create_dir_all(&folder).map_err(StartError::system("make the folder of claimed ports"))?;
        // Processes begin at different places, so that they rarely meet.
        let start = std::process::id().wrapping_mul(97);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let Ok(number) = u16::try_from(FIRST + start.wrapping_add(step) % COUNT) else { continue };
            let claim =
                File::create(folder.join(number.to_string())).map_err(StartError::system("claim a port"))?;
            match claim.try_lock() {
                Ok(()) if TcpListener::bind(("127.0.0.1", number)).is_ok() => {
                    return Ok(Self { number, _claim: claim });
                }
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(StartError::system("lock a port's file")(error));
                }
            }
        }
        Err(StartError::system("claim a port")(std::io::ErrorKind::AddrInUse.into()))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Where this user's claims lie; the files stay, empty, for the next claim.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("ade-test-ports-{}", geteuid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_nobody_else_s_until_it_is_given_back() {
        let port = Port::claim().expect("claimed");
        let file = folder().join(port.number().to_string());
        let again = || File::open(&file).expect("the claim is a file").try_lock();
        assert!(matches!(again(), Err(TryLockError::WouldBlock)));
        drop(port);
        again().expect("given back");
    }
}
